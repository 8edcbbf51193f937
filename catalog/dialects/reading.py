"""How single values of a document are read: selectors, texts and what counts as not given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.declared import Place
from catalog.dialects.names import DocumentReader
from catalog.findings import Findings
from catalog.model import PROTOCOLS
from catalog.protocols.properties import canonical_envelope, canonical_protocol
from catalog.values import is_number, text_of

_MESSAGES: Final = re.compile(
    r"(^|[/#])(?:definitiongroups|messagegroups)/([^/?#]+)/(?:definitions|messagedefinitions)(?=/[^/?#]+)",
    re.IGNORECASE,
)
_LISTED: Final = re.compile(
    r"^(#?/)groups/([^/?#]+)/(?:definitions|messagedefinitions|messages)(?=/[^/?#]+)", re.IGNORECASE
)
_INLINE: Final = re.compile(
    r"(^|[/#])endpoints/([^/?#]+)/(?:definitions|messagedefinitions)(?=/[^/?#]+)", re.IGNORECASE
)
_GROUP: Final = re.compile(r"(^|[/#])definitiongroups(?=/[^/?#]+)", re.IGNORECASE)
_LISTED_GROUP: Final = re.compile(r"^(#?/)groups(?=/[^/?#]+/?$)", re.IGNORECASE)


def given(text: str | None) -> str | None:
    """Return None for what real catalogs write when they mean nothing: an empty text or ``None``."""
    return None if text is None or text.strip().lower() in ("", "none") else text


def optional_text(value: Any, place: Place, findings: Findings) -> str | None:
    """Return a text, a number as it is written; anything else but null is reported and read as not given."""
    if value is None or isinstance(value, str):
        return value
    if is_number(value):
        return text_of(value)
    findings.error(place, "wrong-shape", "a text is expected here; the value is ignored", "write it as a string")
    return None


def spelled(value: Any, canonical: Callable[[str], str], place: Place, findings: Findings) -> str | None:
    """Read an envelope or protocol name in any letter case and version spelling."""
    text = given(optional_text(value, place, findings))
    return None if text is None else canonical(text)


@dataclass(frozen=True, slots=True)
class Format:
    """The envelope and the protocol that something names.

    ``by_format`` tells a protocol that ``format`` or ``envelope`` names, as dialects before 1.0 do, from one that is
    named as such. ``written`` is where each of the two is written.
    """

    envelope: str | None = None
    protocol: str | None = None
    by_format: bool = False
    written: Mapping[str, Place] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether either is named at all."""
        return self.envelope is not None or self.protocol is not None


def read_format(holder: Mapping[str, Any], at: Place, reader: DocumentReader) -> Format:
    """Read envelope and protocol, each from the first of its names that is given; ``None`` is not given.

    An envelope that is the name of a protocol is the protocol, unless another is named as such.
    """
    named: dict[str, str] = {}
    written: dict[str, Place] = {}
    by_format = False
    for name, canonical in sorted(
        reader.spelled(holder, "selectors", at, several=True), key=lambda each: each[1] != "protocol"
    ):
        text = given(optional_text(holder[name], at / name, reader.findings))
        if text is None or canonical in named:
            continue
        protocol = canonical_protocol(text)
        if canonical == "envelope" and protocol in PROTOCOLS:
            if name == canonical:
                reader.unusual(at / name, f"the envelope {text}", f"protocol {protocol}")
            if "protocol" not in named:
                named["protocol"], written["protocol"], by_format = protocol, at / name, True
            continue
        named[canonical] = canonical_envelope(text) if canonical == "envelope" else protocol
        written[canonical] = at / name
    return Format(named.get("envelope"), named.get("protocol"), by_format, written)


def reference_of(reference: str) -> str:
    """Return a reference to a definition or a group of them in the names of 1.0; any other as it is."""
    renamed = _LISTED_GROUP.sub(r"\1messagegroups", _LISTED.sub(r"\1messagegroups/\2/messages", reference))
    renamed = _MESSAGES.sub(r"\1messagegroups/\2/messages", renamed)
    renamed = _INLINE.sub(r"\1endpoints/\2/messages", renamed)
    return _GROUP.sub(r"\1messagegroups", renamed)
