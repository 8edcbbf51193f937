"""Whom a case of commands asks: a web server, a small registry below its ``/reg``, and a registry of ours.

``web`` has answers by path: ``json`` or ``text`` with a ``status``, or a list of them, of which the last stays; with
``tls`` it has a certificate that nobody trusts. ``registry`` is a tree that is served at ``$WEB/reg``, without inlining
if ``inline`` is false, and to nobody else than who has ``bearer``. With ``serves`` there is a registry of ours at
``$REGISTRY``; ``asks`` of a step are steps of its own cases (:func:`tests.support.registry.run`). A step has ``web``
for other answers, where null takes a path away, and ``asked``, the paths and statuses since it was looked at last.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from router.logs import configure_logs
from router.settings import LogSettings
from tests.support.ports import Authority
from tests.support.registry import Case, Registry, run, served
from tests.support.web import Reply, Request, Route, Web, serving


class Peers:
    """The servers of one case; ``words`` are their addresses."""

    def __init__(self, case: Mapping[str, Any], folder: Path, stack: ExitStack) -> None:
        self.words: dict[str, str] = {}
        self._web: Web | None = None
        self._client: httpx.Client | None = None
        if "web" in case or "registry" in case:
            pair = Authority(folder).sign("c", alternatives="IP:127.0.0.1") if case.get("tls") else None
            self._web = stack.enter_context(serving(pair))
            self.words |= {"$WEB": self._web.url, "$PORT": self._web.url.rpartition(":")[2]}
        if "registry" in case:
            self._open_registry(case)
        if case.get("serves"):
            configure_logs(LogSettings(), io.StringIO())  # What a case before it ran may log to what is closed by now.
            (folder / "served").mkdir()
            self._client = stack.enter_context(served(folder / "served"))
            self.words["$REGISTRY"] = str(self._client.base_url)

    def _open_registry(self, case: Mapping[str, Any]) -> None:
        assert self._web is not None
        registry = Registry(self._web, case["registry"], ("*",) if case.get("inline", True) else ()).open()
        if "bearer" in case:

            def answer(request: Request) -> Reply:
                known = request.headers.get("authorization") == f"Bearer {case['bearer']}"
                return registry.answer(request) if known else Reply("who?", 401)

            self._web.routes.update(dict.fromkeys(self._web.routes, answer))

    def change(self, answers: Mapping[str, Any]) -> None:
        """Let the web server answer otherwise."""
        for path, answer in answers.items():
            assert self._web is not None
            if answer is None:
                del self._web.routes[path]
            else:
                self._web.routes[path] = _route(answer)

    def check(self, step: Mapping[str, Any]) -> None:
        """Hold what was asked, and what the registry of ours has, against what the step says."""
        if "asked" in step:
            assert self._web is not None
            assert [list(each) for each in self._web.asked] == step["asked"], self._web.asked
            self._web.asked.clear()
        if "asks" in step:
            assert self._client is not None
            run(Case("asks", "", tuple(step["asks"])), self._client)


def _route(answer: Any) -> Route:
    if not isinstance(answer, list):
        return Reply(answer.get("json", answer.get("text", "")), answer.get("status", 200))
    replies = [Reply(each.get("json", each.get("text", "")), each.get("status", 200)) for each in answer]
    return lambda _: replies.pop(0) if len(replies) > 1 else replies[0]
