"""Protocol options as written, to the one shape in which they merge: canonical names, ordered lists of named values.

Only the spelling is settled here; what is inside a property (``{type, value}`` or a bare scalar) stays as written until
it is merged, since a scalar replaces a whole inherited object and an object does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from catalog.declared import Place
from catalog.findings import Findings
from catalog.model import PropertyType
from catalog.protocols.properties import ANY_VOCABULARY, VOCABULARIES, Vocabulary, canonical_member, canonical_option
from catalog.values import is_number, text_of

CONTENT_TYPE: Final = "content-type"
_MEMBERS: Final = frozenset({"name", "type", "value", "required", "description", "specurl"})


@dataclass(frozen=True, slots=True)
class Named:
    """A list of named values in order; a name may occur more than once and then all must hold."""

    entries: tuple[tuple[str, Any], ...]

    def merged(self, overlay: Named, lay: Callable[[list[Any], list[Any]], list[Any]]) -> Named:
        """Lay *overlay* over this list; *lay* gives the bodies of a name from those below and above, if any."""
        own: dict[str, list[Any]] = {}
        for name, body in overlay.entries:
            own.setdefault(name, []).append(body)
        inherited: dict[str, list[Any]] = {}
        for name, body in self.entries:
            inherited.setdefault(name, []).append(body)
        united: list[tuple[str, Any]] = []
        for name in dict.fromkeys((*inherited, *own)):
            united.extend((name, body) for body in lay(inherited.get(name, []), own.get(name, [])))
        return Named(tuple(united))


def short_entry(body: Any) -> tuple[str, Any] | None:
    """Return name and body of an entry ``{NAME: {…}}`` in a list of named values; None when it is no such entry."""
    if not isinstance(body, dict) or len(body) != 1:
        return None
    name, inner = next(iter(body.items()))
    return None if name in _MEMBERS or isinstance(inner, list) else (name, inner)


def normal_options(
    options: Mapping[str, Any], protocol: str | None, place: Place, findings: Findings
) -> dict[str, Any]:
    """Return the options in canonical spelling; what the protocol does not know is reported and left out."""
    vocabulary = VOCABULARIES.get(protocol or "", ANY_VOCABULARY)
    normal: dict[str, Any] = {}
    for name, value, at in _flat(options, protocol, place):
        if value is None:
            continue
        canonical = canonical_option(protocol, name)
        if canonical is None:
            if protocol in VOCABULARIES:
                hint = f"remove it, or correct the name; {protocol} has {', '.join(_names(vocabulary))}"
                findings.warning(at, "unknown-option", f"{protocol} has no option {name}; it is ignored", hint)
            continue
        if canonical != name:
            findings.respelled(at, name, canonical)
        if canonical in normal and canonical != name:
            continue
        read = _option(vocabulary, canonical, value, at, findings)
        if read is not None:
            normal[canonical] = read
    return normal


def _option(vocabulary: Vocabulary, name: str, value: Any, at: Place, findings: Findings) -> Any:
    if name in vocabulary.lists:
        return Named(tuple(_named(value, at, findings, lower=name in vocabulary.lower)))
    if name in vocabulary.sections:
        return _section(value, vocabulary.sections[name], at, findings)
    return value


def _flat(options: Mapping[str, Any], protocol: str | None, place: Place) -> Iterator[tuple[str, Any, Place]]:
    """Give the options; those of MQTT may stand below ``properties``."""
    for name, value in options.items():
        if name == "properties" and isinstance(value, dict) and (protocol or "").startswith("MQTT/"):
            for inner, member in value.items():
                yield inner, member, place / name / inner
        else:
            yield name, value, place / name


def _named(value: Any, at: Place, findings: Findings, *, lower: bool) -> Iterator[tuple[str, Any]]:
    """Read named values from a list of ``{name, …}``, of ``{NAME: {…}}`` as 0.5 has it, or a map by name."""
    for key, body, place in _entries(value, at, findings):
        name: Any = key
        short = short_entry(body) if key is None else None
        if short is not None:
            name, body = short
        elif isinstance(body, dict):
            name = body.get("name", key)
            body = {member: content for member, content in body.items() if member != "name"}
        if is_number(name):
            name = text_of(name)
        if not isinstance(name, str) or not name:
            findings.error(place, "unnamed-property", "a property has no name, and is ignored", "give it a name")
        elif body is not None:
            yield name.lower() if lower or name.lower() == CONTENT_TYPE else name, body


def _entries(value: Any, at: Place, findings: Findings) -> Iterator[tuple[str | None, Any, Place]]:
    if isinstance(value, dict):
        for key, body in value.items():
            yield key, body, at / key
    elif isinstance(value, list):
        for index, body in enumerate(value):
            yield None, body, at / index
    else:
        hint = "write a list of {name, type, value}"
        findings.error(at, "wrong-shape", "neither a list nor a map of properties; it is ignored", hint)


def _section(
    value: Any, table: Mapping[str, PropertyType] | None, at: Place, findings: Findings
) -> dict[str, Any] | None:
    if not isinstance(value, (dict, list)):
        findings.error(at, "wrong-shape", "an AMQP section is a map; it is ignored", "write a map by name")
        return None
    section: dict[str, Any] = {}
    for name, body in _named(value, at, findings, lower=False):
        canonical = name if table is None else canonical_member(table, name)
        if canonical is None:
            hint = "correct the name, or move it to application-properties"
            findings.warning(at / name, "unknown-option", f"AMQP has no such property: {name}; it is ignored", hint)
            continue
        if canonical != name:
            findings.respelled(at / name, name, canonical)
        section[canonical] = body
    return section


def _names(vocabulary: Vocabulary) -> tuple[str, ...]:
    return (*vocabulary.scalars, *vocabulary.lists, *vocabulary.sections)
