"""What stands in ``metadata`` before 1.0, and what of ``envelopeoptions`` and ``config`` belongs elsewhere.

``metadata`` holds attributes of an envelope or options of a protocol, by what ``format`` names, else by the names in
it. The specification's own example puts attribute constraints into ``envelopeoptions`` of a message; they are
``envelopemetadata`` (JUDGING.md#catalogs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from catalog.declared import Place
from catalog.dialects.messagesections import described
from catalog.dialects.names import DocumentReader, message_names, spellings
from catalog.dialects.reading import Format
from catalog.protocols.properties import canonical_option, canonical_type

CLOUDEVENTS_ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}
)
_CONSTRAINT: Final = frozenset({"type", "value", "required", "description", "specurl"})
_OPTIONS: Final = frozenset({"mode", "format"})
"""Options that an envelope has (xRegistry 1.0 endpoint, envelopeoptions)."""


@dataclass(frozen=True, slots=True)
class Content:
    """Attributes of a message under their 1.0 names, and where they are written.

    ``protocol`` is what the content settles, as ``mqttversion`` of Message Catalog 0.1 does.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Place] = field(default_factory=dict)

    def put(self, name: str, value: Any, place: Place) -> None:
        """Add an attribute that is not there yet."""
        if name not in self.attributes:
            self.attributes[name] = value
            self.written[name] = place

    def add_constraints(self, constraints: Mapping[str, Any], at: Place) -> None:
        """Add constraints of envelope attributes to those that are there and count."""
        known = self.attributes.get("envelopemetadata")
        if not isinstance(known, dict):
            self.put("envelopemetadata", dict(constraints), at)
            return
        new = {name: body for name, body in constraints.items() if name not in known}
        self.attributes["envelopemetadata"] = {**known, **new}
        self.written.update({f"envelopemetadata.{name}": at / name for name in new})


def add_metadata(holder: Mapping[str, Any], form: Format, at: Place, content: Content, reader: DocumentReader) -> None:
    """Put ``metadata`` where its format has it: envelope attributes, or options of a protocol."""
    for name, _ in reader.spelled(holder, "metadata", at):
        place, metadata = at / name, holder[name]
        if not isinstance(metadata, dict):
            text = f"{name} is no object, and ignored"
            reader.findings.error(place, "wrong-shape", text, "write it as a map")
            continue
        if _is_of_protocol(metadata, form, content):
            content.put("protocoloptions", metadata, place)
            continue
        nested = metadata.get("attributes")
        flat, inside = (nested, place / "attributes") if isinstance(nested, dict) else (metadata, place)
        content.add_constraints(flat, inside)


def document_of(holder: Mapping[str, Any]) -> str | None:
    """Return the member that nests the whole document of a definition, as registries of 0.5 do with ``?inline``.

    Message Catalog 0.1 calls the content of a version so, which has sections instead.
    """
    names = message_names() | {"versions"}
    for name in [name for name in holder if name.lower() in spellings("definition")]:
        body = holder[name]
        if isinstance(body, dict) and any(inner.lower() in names for inner in body):
            return name
    return None


def add_definition(
    holder: Mapping[str, Any], form: Format, at: Place, content: Content, reader: DocumentReader
) -> None:
    """Add what ``definition`` of Message Catalog 0.1 holds, in its sections."""
    for name, _ in reader.spelled(holder, "definition", at):
        sections = holder[name]
        if not isinstance(sections, dict):
            text = f"{name} is no object, and ignored"
            reader.findings.error(at / name, "wrong-shape", text, "write it as a map")
            continue
        read = described(sections, form, at / name, reader.findings)
        for attribute, value in read.attributes.items():
            if attribute == "envelopemetadata":
                content.add_constraints(value, read.written[attribute])
            else:
                content.put(attribute, value, read.written[attribute])
        for path, place in read.written.items():
            content.written.setdefault(path, place)
        if read.protocol is not None and read.protocol != form.protocol:
            content.attributes["protocol"] = read.protocol


def flat_attributes(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return envelope attributes by name, also those that stand below ``attributes``."""
    nested = metadata.get("attributes")
    if not _is_attributes(nested):
        return dict(metadata)
    return {**nested, **{name: body for name, body in metadata.items() if name != "attributes"}}


def flatten_metadata(content: Content, reader: DocumentReader) -> None:
    """Put the attributes that stand below ``attributes`` of ``envelopemetadata`` where 1.0 has them."""
    metadata = content.attributes.get("envelopemetadata")
    if not isinstance(metadata, dict) or not _is_attributes(metadata.get("attributes")):
        return
    at = content.written["envelopemetadata"]
    reader.unusual(at / "attributes", "attributes in envelopemetadata", "envelopemetadata")
    nested = (name for name in metadata["attributes"] if name not in metadata)
    content.written.update({f"envelopemetadata.{name}": at / "attributes" / name for name in nested})
    content.attributes["envelopemetadata"] = flat_attributes(metadata)


def split_options(content: Content, reader: DocumentReader) -> None:
    """Take the constraints of attributes out of ``envelopeoptions``, also those that stand below ``attributes``."""
    options = content.attributes.get("envelopeoptions")
    if not isinstance(options, dict):
        return
    at = content.written["envelopeoptions"]
    nested = options.get("attributes")
    if _is_attributes(nested):
        reader.unusual(at / "attributes", "attributes in envelopeoptions", "envelopemetadata")
        content.add_constraints(nested, at / "attributes")
        options = {name: each for name, each in options.items() if name != "attributes"}
        content.attributes["envelopeoptions"] = options
    constraints = {name: body for name, body in options.items() if _is_constraint(name, body)}
    if constraints:
        reader.unusual(at, f"{', '.join(list(constraints)[:5])} in envelopeoptions", "envelopemetadata")
        content.add_constraints(constraints, at)
        options = {name: each for name, each in options.items() if name not in constraints}
        content.attributes["envelopeoptions"] = options
    if not options:
        del content.attributes["envelopeoptions"]


def split_config(config: Mapping[str, Any], at: Place, content: Content) -> tuple[dict[str, Any], Any]:
    """Return the options of ``config`` of a message, also those one level deeper, and the protocol that it names."""
    nested = config.get("options")
    kept = {name: value for name, value in config.items() if name not in ("protocol", "options")}
    if isinstance(nested, dict):
        content.written.update({f"protocoloptions.{name}": at / "options" / name for name in nested})
        kept.update(nested)
    return kept, config.get("protocol")


def _is_attributes(body: Any) -> TypeGuard[dict[str, Any]]:
    """Whether ``attributes`` is a map of attributes, and not an attribute of that name."""
    if not isinstance(body, dict):
        return False
    kind = body.get("type")
    return not isinstance(body.get("required"), bool) and not (isinstance(kind, str) and canonical_type(kind))


def _is_constraint(name: str, body: Any) -> bool:
    """Tell a constraint of an attribute from an option: by its members, or as a scalar by CloudEvents' own names."""
    if name in _OPTIONS or body is None:
        return False
    if isinstance(body, dict):
        return all(member in _CONSTRAINT for member in body) and (bool(body) or name in CLOUDEVENTS_ATTRIBUTES)
    return name in CLOUDEVENTS_ATTRIBUTES and not isinstance(body, list)


def _is_of_protocol(metadata: Mapping[str, Any], form: Format, content: Content) -> bool:
    """Tell options of a protocol from attributes of an envelope."""
    if isinstance(metadata.get("attributes"), dict) or "protocoloptions" in content.attributes:
        return False
    if form.by_format or form.envelope is not None:
        return form.by_format and form.envelope is None
    return any(
        canonical_option(form.protocol, name) is not None
        for name in metadata
        if form.protocol is not None or name not in CLOUDEVENTS_ATTRIBUTES
    )
