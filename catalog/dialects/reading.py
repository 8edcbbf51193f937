"""How single values of a document are read: selectors, texts and what counts as not given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from catalog.declared import Place
from catalog.findings import Findings
from catalog.model import PROTOCOLS
from catalog.protocol_properties import canonical_envelope, canonical_protocol

_MESSAGES: Final = re.compile(
    r"(^|[/#])(?:definitiongroups|messagegroups)/([^/?#]+)/definitions(?=/[^/?#]+)", re.IGNORECASE
)
_INLINE: Final = re.compile(r"(^|[/#])endpoints/([^/?#]+)/definitions(?=/[^/?#]+)", re.IGNORECASE)
_GROUP: Final = re.compile(r"(^|[/#])definitiongroups(?=/[^/?#]+)", re.IGNORECASE)
_OLD_NOW: Final = "01-01-0000T00:00:00Z"
_NOW: Final = "0000-01-01T00:00:00Z"


def given(text: str | None) -> str | None:
    """Return None for what real catalogs write when they mean nothing: an empty text or ``None``."""
    return None if text is None or text.strip().lower() in ("", "none") else text


def optional_text(value: Any, place: Place, findings: Findings) -> str | None:
    """Return a text; anything else but null is reported and read as not given."""
    if value is None or isinstance(value, str):
        return value
    findings.error(place, "wrong-shape", "a text is expected here; the value is ignored", "write it as a string")
    return None


def spelled(value: Any, canonical: Callable[[str], str], place: Place, findings: Findings) -> str | None:
    """Read an envelope or protocol name in any letter case and version spelling."""
    text = given(optional_text(value, place, findings))
    return None if text is None else canonical(text)


def selector(
    holder: Mapping[str, Any], names: tuple[str, ...], canonical: Callable[[str], str], at: Place, findings: Findings
) -> str | None:
    """Read the first of *names* that is given."""
    for name in names:
        found = spelled(holder.get(name), canonical, at / name, findings)
        if found is not None:
            return found
    return None


@dataclass(frozen=True, slots=True)
class Format:
    """What ``format`` of the dialects before 1.0 says: an envelope or a protocol, never both; maybe neither."""

    envelope: str | None = None
    protocol: str | None = None

    @property
    def given(self) -> bool:
        """Whether there is a format at all."""
        return self.envelope is not None or self.protocol is not None


def read_format(holder: Mapping[str, Any], at: Place, findings: Findings) -> Format:
    """Read ``format``, in which older dialects name an envelope or a protocol; else the names of 1.0."""
    text = given(optional_text(holder.get("format"), at / "format", findings))
    if text is None:
        envelope = selector(holder, ("envelope",), canonical_envelope, at, findings)
        return Format(envelope, None if envelope else selector(holder, ("protocol",), canonical_protocol, at, findings))
    protocol = canonical_protocol(text)
    return Format(None, protocol) if protocol in PROTOCOLS else Format(canonical_envelope(text), None)


def now_of(body: Any) -> Any:
    """Return a property with the "now" of 0.4, ``01-01-0000T00:00:00Z``, as 1.0 spells it."""
    if isinstance(body, dict) and body.get("value") == _OLD_NOW:
        return {**body, "value": _NOW}
    return _NOW if body == _OLD_NOW else body


def reference_of(reference: str) -> str:
    """Return a reference to a definition or a group of them in the names of 1.0; any other as it is."""
    renamed = _MESSAGES.sub(r"\1messagegroups/\2/messages", reference)
    renamed = _INLINE.sub(r"\1endpoints/\2/messages", renamed)
    return _GROUP.sub(r"\1messagegroups", renamed)
