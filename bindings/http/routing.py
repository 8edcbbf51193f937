"""Which endpoint takes a request: routes by path template and method, in the order of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from catalog.templates import Template, parse


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """What one endpoint hosts.

    ``path`` is compared with the raw, undecoded path: plain text, or a template (JUDGING.md#templates), which
    is matched in time linear in the path. ``users`` are the names of those who may send to it; None is everybody whom
    the gateway lets in.
    """

    endpoint: str
    path: str
    methods: tuple[str, ...] = ("POST",)
    users: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The outcome of a look-up: ``endpoint`` None means that no route takes the request; else ``users`` may use it.

    ``allowed`` are the methods of all routes that take the path; empty when none does.
    """

    endpoint: str | None
    allowed: tuple[str, ...]
    users: frozenset[str] | None = None


class PathRoutes:
    """All routes of one gateway. Of several that take a request the first wins; the router unites their candidates."""

    def __init__(self, routes: Sequence[HttpRoute]) -> None:
        self.replace(routes)

    def replace(self, routes: Sequence[HttpRoute]) -> None:
        """Take other routes from now on; a look-up under way on another thread sees the old ones or the new."""
        self._table = _Table(routes)

    def find(self, method: str, path: str) -> RouteMatch:
        """Look up a request by its method (upper case) and raw path."""
        return self._table.find(method, path)


class _Table:
    """One state of the routes. The outcome for each plain path is computed once, unless templates may take it."""

    def __init__(self, routes: Sequence[HttpRoute]) -> None:
        plain: dict[str, list[tuple[int, HttpRoute]]] = {}
        templates: list[tuple[int, HttpRoute, Template]] = []
        for index, route in enumerate(routes):
            template = parse(route.path)
            if template.is_literal:
                plain.setdefault(route.path, []).append((index, route))
            else:
                templates.append((index, route, template))
        self._plain, self._templates = plain, templates
        methods = {method for route in routes for method in route.methods}
        self._settled = {(method, path): self._decided(method, path) for path in plain for method in methods}

    def find(self, method: str, path: str) -> RouteMatch:
        return self._settled.get((method, path)) or self._decided(method, path)

    def _decided(self, method: str, path: str) -> RouteMatch:
        taking = list(self._plain.get(path, ()))
        taking.extend((index, route) for index, route, template in self._templates if template.match(path) is not None)
        ordered = [route for _, route in sorted(taking, key=lambda each: each[0])]
        allowed = tuple(dict.fromkeys(each for route in ordered for each in route.methods))
        taker = next((route for route in ordered if method in route.methods), None)
        return RouteMatch(None, allowed) if taker is None else RouteMatch(taker.endpoint, allowed, taker.users)
