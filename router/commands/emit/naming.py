"""What a user calls definitions and endpoints: xids, or as much of a name as only one of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from bindings.protocols import binding_of
from catalog.definitions.targets import target_of
from catalog.model import Catalog, Definition
from router.errors import RouterError

_SHOWN: Final = 5


class UnknownName(RouterError):
    """A name that nothing in the catalog has, or that several have; exit code 1."""


def xid_called(name: str, xids: Iterable[str], what: str) -> str:
    """Return the xid that a name stands for: itself, ``ID``, ``GROUP/ID``, or the last part of an id behind a dot.

    The first of these ways in which any is called so counts; then letter case does not.

    Raises:
        UnknownName: none or several are called so; *what* they are is said.
    """
    known = tuple(xids)
    if name in known:
        return name
    for way in _WAYS:
        for wanted, names in ((name, way), (name.lower(), lambda xid, way=way: [each.lower() for each in way(xid)])):
            called = [xid for xid in known if wanted in names(xid)]
            if len(called) == 1:
                return called[0]
            if called:
                more = f" and {len(called) - _SHOWN} more" if len(called) > _SHOWN else ""
                text = f"several {what}s are called {name}: {', '.join(called[:_SHOWN])}{more}"
                raise UnknownName(text, hint="give more of the name, or the xid")
    near = get_close_matches(name, known, 1) or _near_ids(name, known)
    hint = f"did you mean {near[0]}?" if near else "`xrouter catalog list` shows what there is"
    raise UnknownName(f"the catalog has no {what} {name}", hint=hint)


def only_endpoint(catalog: Catalog, xid: str, protocol: str | None) -> str | None:
    """Return the endpoint that a definition is sent to, when there is one alone; None for none or several.

    *protocol* is what is asked for, None for any. An endpoint that the definition can never match at does not count.
    """
    definition = catalog.definitions[xid]
    endpoints = [
        endpoint.xid
        for endpoint in catalog.endpoints.values()
        if xid in endpoint.candidates and _speaks(endpoint.protocol, definition, protocol)
        if target_of(definition, endpoint) is not None
    ]
    return endpoints[0] if len(endpoints) == 1 else None


def _speaks(spoken: str | None, definition: Definition, asked: str | None) -> bool:
    if asked is None:
        return binding_of(spoken or "") is not None
    return binding_of(spoken or definition.protocol or "") is binding_of(asked)


def _parts(xid: str) -> Sequence[str]:
    return xid.strip("/").split("/")


def _by_id(xid: str) -> Iterable[str]:
    return (_parts(xid)[-1],)


def _by_group(xid: str) -> Iterable[str]:
    parts = _parts(xid)
    return (f"{parts[1]}/{parts[-1]}",) if len(parts) > 2 else ()


def _by_end(xid: str) -> Iterable[str]:
    """Yield what stands behind each dot of the id."""
    parts = _parts(xid)[-1].split(".")
    return (".".join(parts[start:]) for start in range(1, len(parts)))


_WAYS: Final[tuple[Callable[[str], Iterable[str]], ...]] = (_by_id, _by_group, _by_end)


def _near_ids(name: str, xids: Sequence[str]) -> list[str]:
    ids = {end: xid for xid in xids for end in _ends(xid)}
    return [ids[each] for each in get_close_matches(name, ids, 1)]


def _ends(xid: str) -> Iterator[str]:
    yield from _by_id(xid)
    yield from _by_end(xid)
