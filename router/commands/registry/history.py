"""``xrouter registry history``: who changed what, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
import typer

from catalog.documents.connecting import origin_of
from catalog.documents.fetching import is_url
from catalog.documents.reach import Trust
from catalog.errors import DocumentError
from registry.core import history as kept
from registry.http.openapi.operations import HISTORY
from router.commands.registries import LoginsOption, fetcher
from router.commands.registry.opening import opened
from router.errors import CatalogUnavailable, RouterError
from router.terminal import say, write_document

_PAGE: Final = 500
_PAGE_BYTES: Final = 8 * 2**20
_LONGEST: Final = 200
"""Characters of a value that are shown as text."""
_SERVED: Final = ("/epoch", "/modifiedat", "/createdat")


class HistoryForm(StrEnum):
    """How entries are written."""

    text = "text"
    json = "json"


def history(
    source: Annotated[str, typer.Argument(metavar="CONFIG|URL", help="Settings file, or URL, of the registry.")],
    xid: Annotated[str, typer.Argument(metavar="XID", help="Entity, such as /endpoints/e; without it, all.")] = "",
    below: Annotated[bool, typer.Option("--below", help="Entities below that one too.")] = False,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Entries at most.")] = 50,
    form: Annotated[HistoryForm, typer.Option("--format", help="Text, or JSON, one entry a line.")] = HistoryForm.text,
    logins: LoginsOption = None,
) -> None:
    """Show who changed what and when, the newest first; `who` of a URL needs credentials there.

    Example: xrouter registry history registry.yaml /messagegroups/orders --below
    """
    if xid and not xid.startswith("/"):
        raise RouterError(f"{xid} is no xid", hint="write the path of the entity, such as /endpoints/e")
    asked = kept.Question(xid, below, oldest, None, limit)
    if is_url(source):
        _write(_of_url(source, asked, logins), form)
        return
    with opened(Path(source), lint=False) as service, service.session(writing=False) as session:
        connection = session.reader.connection
        _write(_pages(asked, lambda each: kept.page(connection, each, _PAGE_BYTES)[0]), form)


def _of_url(url: str, asked: kept.Question, logins: Path | None) -> Iterator[Mapping[str, Any]]:
    reads = fetcher(logins)
    url = reads.address(url)
    reads.reach.name(origin_of(url), Trust.OPERATOR)  # who runs the command names it, wherever it is

    def page(each: kept.Question) -> list[dict[str, Any]]:
        query = {"limit": str(each.limit), "sort": "number=asc" if each.oldest else "number=desc"}
        query |= {"xid": each.xid} if each.xid else {}
        query |= {"below": ""} if each.below else {}
        query |= {"cursor": str(each.after)} if each.after is not None else {}
        address = f"{url.rstrip('/')}{HISTORY}?{urlencode(query)}"
        try:
            return msgspec.json.decode(reads.fetch(address), type=list[dict[str, Any]])
        except DocumentError as error:
            raise CatalogUnavailable(str(error), hint=error.hint or "check the URL and `--logins`") from error
        except msgspec.MsgspecError as error:
            raise CatalogUnavailable(
                f"{url} has no history: {error}", hint="it needs to be a registry of xrouter"
            ) from error

    return _pages(asked, page)


def _pages(asked: kept.Question, page: Callable[[kept.Question], list[dict[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    """Yield entries until there are none, or as many as are asked for; a page may be short and not the last."""
    left, after = asked.limit, asked.after
    while left:
        found = page(kept.Question(asked.xid, asked.below, asked.oldest, after, min(left, _PAGE)))
        if not found:
            return
        yield from found
        left -= min(len(found), left)
        after = found[-1]["number"]


def _write(entries: Iterator[Mapping[str, Any]], form: HistoryForm) -> None:
    for entry in entries:
        if form is HistoryForm.json:
            write_document(msgspec.json.encode(entry) + b"\n")
            continue
        say(f"{entry['at']}  {entry.get('who') or '-'}  {entry['action']}  {entry['xid']}")
        changed = entry.get("changed")
        if changed is None:
            say("    what it changed is not kept any more")
            continue
        for pointer, values in changed.items():
            if pointer not in _SERVED:
                say(f"    {_line(pointer, values)}")


def _line(pointer: str, values: Mapping[str, Any]) -> str:
    old, new = (_short(values[name]) if name in values else "" for name in ("old", "new"))
    if not old:
        return f"+ {pointer}: {new}"
    return f"~ {pointer}: {old} -> {new}" if new else f"- {pointer}: {old}"


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode("utf-8")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
