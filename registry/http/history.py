"""History over HTTP, at ``/history.json``, a path that no type of groups can have: who changed what, and when."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from bindings.http.request import Reply, RequestHead
from registry.core import changes as history
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.access import READING, Call
from registry.http.openapi.operations import HISTORY_SORTS
from registry.http.replies import JSON, refusal_of
from registry.http.requests import limit_of, once, query_of

FLAGS: Final = ("xid", "limit", "cursor", "sort")
_ALLOW: Final = (b"Allow", ", ".join(READING).encode("ascii"))
_PAGE_BYTES: Final = 8 * 2**20
_MAX_NUMBER: Final = 2**63 - 1


class HistoryFace:
    """Keeps :class:`registry.http.access.Face`, for all who may read; names of writers are not for those without
    one.
    """

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: Call) -> Reply:
        """Answer a page of entries."""
        path = call.head.path.decode("latin-1")
        if call.path.strip(b"/"):
            raise Refusal("api_not_found", path)
        if call.head.method == "OPTIONS":
            return Reply(204, (_ALLOW,))
        if call.head.method not in READING:
            refusal = refusal_of(call.head, call.registry, Refusal("action_not_supported", path))
            return Reply(refusal.status, (*refusal.headers, _ALLOW), refusal.body)
        given = query_of(call.head.query)
        values = {name: once(given, name, path) for name in FLAGS}
        if values["sort"] not in (None, *HISTORY_SORTS):
            why = "history is in the order of number, or of number=desc"
            raise Refusal("bad_sort", path, value=str(values["sort"]), error_detail=why)
        if "\0" in (values["xid"] or ""):  # which no text of PostgreSQL can hold
            raise Refusal("bad_request", path, error_detail="xid has a NUL character")
        asked = history.Question(
            xid=values["xid"] or "",
            below="below" in given,
            oldest=values["sort"] in HISTORY_SORTS[:2],
            after=_after(values["cursor"], path),
            limit=min(limit_of(values["limit"], path) or call.pages.usual, call.pages.most),
            who=call.writer.administrator or bool(call.writer.name),
        )
        with self._service.session(writing=False) as session:
            found, more = history.page(session.reader.connection, asked, min(call.max_answer, _PAGE_BYTES))
        links = [(b"Link", f"<{call.registry}/>;rel=xregistry-root".encode("latin-1", "replace"))]
        if more:
            kept = {name: text for name, text in values.items() if text is not None and name in ("xid", "sort")}
            query = {**kept, **({"below": ""} if asked.below else {})}
            query |= {"limit": str(asked.limit), "cursor": str(found[-1]["number"])}
            links.append((b"Link", f"<{call.url}?{urlencode(query)}>;rel=next".encode("latin-1", "replace")))
        return Reply(200, ((b"Content-Type", JSON), *links), msgspec.json.encode(found))

    def refused(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Report a refusal as the core API does."""
        return refusal_of(head, url, refusal)


def _after(text: str | None, path: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _MAX_NUMBER):
        raise Refusal("bad_request", path, error_detail="cursor needs to be the number of an entry")
    return int(text)
