"""A small xRegistry server over a tree of collections: inlining, pages and entity tags as in the specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.web import Reply, Request, Web

_BELOW: Final = {
    0: ("messagegroups", "endpoints", "schemagroups"),
    2: ("messages", "schemas"),
    4: ("versions",),
}


@dataclass(slots=True)
class Registry:
    """Serves *tree* below ``/reg``. *inline* says which values of that flag are known; others are refused, or ignored.

    ``origin`` is what the server believes its own address to be.
    """

    web: Web
    tree: dict[str, Any]
    inline: tuple[str, ...] = ("*",)
    refuses: bool = False
    page: int = 1000
    origin: str = ""

    def __post_init__(self) -> None:
        self.origin = self.origin or self.web.url

    @property
    def url(self) -> str:
        """The address of the root."""
        return f"{self.web.url}/reg"

    def open(self) -> Registry:
        """Answer every path of the tree."""
        self.web.routes["/reg"] = self.answer
        paths: list[list[str]] = [[]]
        while paths:
            path = paths.pop()
            node = self._at(path)
            self.web.routes["/".join(["/reg", *map(quote, path)])] = self.answer
            names = [name for name in _BELOW.get(len(path), ()) if name in node] if len(path) % 2 == 0 else list(node)
            paths.extend([*path, name] for name in names)
        return self

    def answer(self, request: Request) -> Reply:
        """Answer for one entity or one page of a collection."""
        parts = urlsplit(request.target)
        query = parse_qs(parts.query)
        path = [unquote(step) for step in parts.path.removeprefix("/reg").split("/") if step]
        asked = query.get("inline", [""])[0]
        if asked and asked not in self.inline and self.refuses:
            return Reply({"title": "bad_inline"}, 400)
        depth = 100 if asked in self.inline and asked else 0
        if len(path) % 2 == 0:
            return Reply(self._entity(path, depth), etag="auto")
        start = int(query.get("offset", ["0"])[0])
        node = self._at(path)
        keys = sorted(node)[start : start + self.page]
        headers = {}
        if start + self.page < len(node):
            inline = f"&inline={asked}" if asked else ""
            target = f"{self._url(path)}?offset={start + self.page}{inline}"
            headers["Link"] = f'<{self._url(path)}>; rel="first", <{target}>;rel=next;count={len(node)}'
        return Reply({key: self._entity([*path, key], depth) for key in keys}, 200, headers, etag="auto")

    def _at(self, path: list[str]) -> Any:
        node: Any = self.tree
        for step in path:
            node = node[step]
        return node

    def _url(self, path: list[str]) -> str:
        return "/".join([f"{self.origin}/reg", *map(quote, path)])

    def _entity(self, path: list[str], depth: int) -> dict[str, Any]:
        node = self._at(path)
        below = [name for name in _BELOW.get(len(path), ()) if name in node]
        shown = {name: value for name, value in node.items() if name not in below}
        shown |= {"self": self._url(path) or "/", "xid": "/" + "/".join(path), "epoch": 1}
        for name in below:
            shown |= {f"{name}url": self._url([*path, name]), f"{name}count": len(node[name])}
            if depth:
                shown[name] = {key: self._entity([*path, name, key], depth - 1) for key in node[name]}
        return shown
