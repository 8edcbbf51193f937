"""References to messages and groups: xids, JSON pointers, relative and absolute URIs, and bare names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

_SEGMENT: Final = r"[^/?#]+"
MESSAGE_REFERENCE: Final = re.compile(
    rf"(?:^|[/#])(?:\$)?(messagegroups|endpoints)/({_SEGMENT})/messages/({_SEGMENT})(?:/versions/({_SEGMENT}))?/?$"
)
_GROUP_REFERENCE: Final = re.compile(rf"(?:^|[/#])messagegroups/({_SEGMENT})/?$")


class Resolver:
    """Finds what references mean among the things that were read; all documents of a load share one space of xids."""

    def __init__(self, messages: Mapping[str, Any], groups: Mapping[str, Any]) -> None:
        self._messages = messages
        self._groups = groups
        self._folded: dict[str, str] | None = None

    def message(self, reference: str, source: str) -> str | None:
        """Return the xid of the message that *reference*, written in the message *source*, means; None when dangling.

        A version that is not there means its message. A reference into another document that would be *source*
        itself dangles: that document was not read, and this is no cycle.
        """
        found = MESSAGE_REFERENCE.search(reference)
        if found is None:
            return self._sibling(reference, source)
        for xid in self._spellings(found):
            known = self._known(xid)
            if known is not None:
                elsewhere = not reference.startswith(("#", "/"))
                return None if elsewhere and known == source else known
        return None

    def group(self, reference: str) -> str | None:
        """Return the xid of the message group that *reference* means, None when there is none."""
        found = _GROUP_REFERENCE.search(reference)
        names = (found.group(1), *_unescaped(found.group(1))) if found else (reference,)
        for name in names:
            xid = f"/messagegroups/{name}"
            if xid in self._groups:
                return xid
        wanted = f"/messagegroups/{names[0]}".lower()
        return next((xid for xid in self._groups if xid.lower() == wanted), None)

    def _spellings(self, found: re.Match[str]) -> list[str]:
        """Give the xids a reference may mean: as written, then unescaped as a pointer or URI; versions first."""
        kind, group, message, version = found.groups()
        xids: list[str] = []
        for names in ((group, message), *zip(_unescaped(group), _unescaped(message), strict=True)):
            xid = f"/{kind}/{names[0]}/messages/{names[1]}"
            xids.extend([f"{xid}/versions/{version}", xid] if version else [xid])
        return xids

    def _sibling(self, reference: str, source: str) -> str | None:
        name = reference.rsplit("/", 1)[-1].lstrip("#")
        plain = re.fullmatch(r"(?:\.\.?/)*(?:messages/)?[^/?#:]+", reference)
        return self._known(f"{source.split('/messages/', 1)[0]}/messages/{name}") if plain and name else None

    def _known(self, xid: str) -> str | None:
        if xid in self._messages:
            return xid
        if self._folded is None:
            self._folded = {known.lower(): known for known in self._messages}
        return self._folded.get(xid.lower())  # ids are unique without regard to case


def _unescaped(name: str) -> tuple[str, str]:
    pointer = name.replace("~1", "/").replace("~0", "~")
    return pointer, unquote(pointer)
