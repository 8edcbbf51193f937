"""Which endpoint takes a request: routes by path template and method, in the order of the settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\{[A-Za-z0-9_.-]+\}")


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """What one endpoint hosts.

    ``path`` is compared with the raw, undecoded path: plain text, or a template whose placeholders each take one or
    more characters without ``/``; a path that is one placeholder takes any (semantics.md section 5, rule 2).
    ``users`` are the names of those who may send to it; None is everybody whom the gateway lets in.
    """

    endpoint: str
    path: str
    methods: tuple[str, ...] = ("POST",)
    users: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a look-up: ``endpoint`` None means that no route takes the request; else ``users`` may use it.

    ``allowed`` are the methods of all routes that take the path; empty when none does.
    """

    endpoint: str | None
    allowed: tuple[str, ...]
    users: frozenset[str] | None = None


class Routes:
    """All routes of one gateway. Of several that take a request the first wins; the router unites their candidates."""

    def __init__(self, routes: Sequence[HttpRoute]) -> None:
        self.replace(routes)

    def replace(self, routes: Sequence[HttpRoute]) -> None:
        """Take other routes from now on; a look-up under way on another thread sees the old ones or the new."""
        plain: dict[str, list[tuple[int, HttpRoute]]] = {}
        templates: list[tuple[int, HttpRoute, re.Pattern[str]]] = []
        for index, route in enumerate(routes):
            if _PLACEHOLDER.search(route.path):
                templates.append((index, route, _pattern(route.path)))
            else:
                plain.setdefault(route.path, []).append((index, route))
        self._table = (plain, templates)

    def find(self, method: str, path: str) -> Found:
        """Look up a request by its method (upper case) and raw path."""
        plain, templates = self._table
        taking = list(plain.get(path, ()))
        taking.extend((index, route) for index, route, pattern in templates if pattern.fullmatch(path))
        ordered = [route for _, route in sorted(taking, key=lambda each: each[0])]
        allowed = tuple(dict.fromkeys(each for route in ordered for each in route.methods))
        taker = next((route for route in ordered if method in route.methods), None)
        return Found(None, allowed) if taker is None else Found(taker.endpoint, allowed, taker.users)


def _pattern(template: str) -> re.Pattern[str]:
    if _PLACEHOLDER.fullmatch(template):
        return re.compile(".+", re.DOTALL)
    literals = [re.escape(text) for text in _PLACEHOLDER.split(template)]
    return re.compile("[^/]+".join(literals))
