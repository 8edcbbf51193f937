"""The names of all dialects, and whose they are: every name is read in every document (semantics.md section 10).

A name that is not of the document's own dialect is remarked upon, since other tools may not know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from catalog.declared import Declarations, Place
from catalog.dialects.detection import Dialect
from catalog.findings import Findings

_NEW: Final = frozenset({Dialect.XREGISTRY, Dialect.OLDER_XREGISTRY})
_1_0: Final = frozenset({Dialect.XREGISTRY})
_OLDER: Final = frozenset({Dialect.OLDER_XREGISTRY, Dialect.DEFINITION_GROUPS})
_CEREG: Final = frozenset({Dialect.DEFINITION_GROUPS})
_0_1: Final = frozenset({Dialect.MESSAGE_CATALOG})
_NOBODY: Final[frozenset[Dialect]] = frozenset()
Names = Mapping[str, tuple[str, frozenset[Dialect]]]
"""By spelling in lower case: the name of 1.0, and the dialects that spell it so."""

GROUPS: Final[Names] = {
    "messagegroups": ("messagegroups", _NEW),
    "definitiongroups": ("messagegroups", _CEREG),
    "groups": ("messagegroups", _0_1),
}
MESSAGES: Final[Names] = {
    "messages": ("messages", _NEW),
    "definitions": ("messages", _CEREG | _0_1),
    "messagedefinitions": ("messages", _0_1),
}
SELECTORS: Final[Names] = {
    "envelope": ("envelope", _NEW),
    "format": ("envelope", _OLDER | _0_1),
    "protocol": ("protocol", _NEW | _CEREG),
    "binding": ("protocol", frozenset({Dialect.OLDER_XREGISTRY})),
}
ATTRIBUTES: Final[Names] = {
    "envelopemetadata": ("envelopemetadata", _NEW),
    "envelopeoptions": ("envelopeoptions", _NEW),
    "protocoloptions": ("protocoloptions", _NEW),
    "protocolmetadata": ("protocoloptions", frozenset({Dialect.OLDER_XREGISTRY})),
    "config": ("protocoloptions", _NOBODY),
    "dataschemaformat": ("dataschemaformat", _1_0),
    "schemaformat": ("dataschemaformat", _OLDER),
    "dataschema": ("dataschema", _1_0),
    "schema": ("dataschema", _NEW | _OLDER),
    "dataschemauri": ("dataschemauri", _1_0),
    "dataschemaurl": ("dataschemauri", frozenset({Dialect.OLDER_XREGISTRY})),
    "schemauri": ("dataschemauri", _NEW | _OLDER),
    "schemaurl": ("dataschemauri", _NEW | _OLDER),
    "dataschemaxid": ("dataschemaxid", _1_0),
    "datacontenttype": ("datacontenttype", _NEW | _CEREG | _0_1),
}
"""What makes a message, but for its selectors and what is read by its content (``metadata``, ``definition``)."""
BASES: Final[Names] = {
    "basemessage": ("basemessage", _1_0),
    "basemessageuri": ("basemessage", frozenset({Dialect.OLDER_XREGISTRY})),
    "basemessageurl": ("basemessage", frozenset({Dialect.OLDER_XREGISTRY})),
    "basemessagexid": ("basemessage", frozenset({Dialect.OLDER_XREGISTRY})),
}
HOLDERS: Final[Names] = {
    "protocoloptions": ("protocoloptions", _NEW | _CEREG),
    "protocolmetadata": ("protocoloptions", frozenset({Dialect.OLDER_XREGISTRY})),
    "config": ("protocoloptions", _CEREG),
}
"""What holds addresses and options of an endpoint."""
METADATA: Final[Names] = {"metadata": ("envelopemetadata", _OLDER)}
DEFINITION: Final[Names] = {"definition": ("envelopemetadata and protocoloptions", _0_1)}
ALL: Final = frozenset({*SELECTORS, *ATTRIBUTES, *BASES, *METADATA, *DEFINITION, "versions"})
"""All that is said of how a message looks, in lower case."""


@dataclass(frozen=True, slots=True)
class Reader:
    """What reading one document takes along: its dialect, where declarations go, and where to report."""

    dialect: Dialect
    into: Declarations
    findings: Findings

    def spelled(
        self, holder: Mapping[str, Any], names: Names, at: Place, *, several: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Give the spellings of *names* that *holder* has, each with its 1.0 name; those of 1.0 first.

        Of *several* spellings of one name all are given, else the first counts. One of another dialect than the
        document's is remarked upon.
        """
        found = [(written, *names[written.lower()]) for written in holder if written.lower() in names]
        given: set[str] = set()
        for written, canonical, own in sorted(found, key=lambda each: each[0] != each[1]):
            if holder[written] is not None and (several or canonical not in given):
                given.add(canonical)
                if self.dialect not in own:
                    self.unusual(at / written, written, canonical)
                yield written, canonical

    def unusual(self, place: Place, written: str, canonical: str) -> None:
        """Report a name that is understood, and is not one of the document's own dialect."""
        text = f"{written} is read as {canonical}"
        if written == canonical:
            text = f"{written} is a name of xRegistry 1.0; it is read as such"
            self.findings.warning(place, "unusual-name", text, "write the whole document as xRegistry 1.0")
            return
        self.findings.warning(place, "unusual-name", text, f"write {canonical}")
