"""Headers that a record came with and that were no CloudEvents attributes, passed on with the message it becomes.

Each protocol has a place of its own for them: headers, user properties, application properties. Four kinds are left
out: headers of a connection and not of the message, those that would be read as an attribute of the event, those that
the target sets by itself, and those that its protocol has no form for. No message is rejected for a header.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from bindings.amqp.forms import TYPES, types_of
from bindings.envelope import ATTRIBUTE_NAME, EVENT_MEDIA, AttributeRule, attribute_name
from bindings.parts import JSON_KIND, Part, Parts, first
from bindings.protocols import CARRIED, Binding, binding_of
from catalog.errors import RecordError
from catalog.protocols.properties import CONNECTION_HEADERS
from catalog.values import media_type_of

LINEAGE: Final = "xrouter-"
"""Prefix of the names this router adds; those of a router before it are not passed on."""
_HEADERS: Final = "headers."
_MEMBERS: Final = tuple(f'"{name[:-1]}"' for name in CARRIED)


@dataclass(frozen=True, slots=True)
class HeaderPassing:
    """What is passed on to one target; ``taken`` are the names, in lower case, that its client sets by itself."""

    binding: Binding
    taken: frozenset[str] = frozenset()

    def parts(self, protocol: str, native: str, *, binary: bool, structured: bool) -> Iterator[Part]:
        """Give the parts for a record of that protocol, whose native form is JSON text.

        *binary* and *structured* say the mode of the message that is made; without an envelope it is neither.
        """
        source = binding_of(protocol)
        if source is None or not self.binding.binary or not any(member in native for member in _MEMBERS):
            return
        place = self.binding.headers
        types: dict[str, str] = {}
        for name, part, wire_type in _came(source, native):
            if structured and name.lower().startswith("content-"):
                continue  # of the body as it was, which is now within another one
            header = self.binding.sending.header(name, part)
            if header is None or header.key.lower() in self.taken:
                continue
            key = f"{place}.{header.key}"
            if not _reads_as_attribute(key, self.binding.rule, binary=binary):
                yield header._replace(key=key)
                if wire_type and source.protocol == self.binding.protocol:
                    types[key] = wire_type
        if types:
            yield Part(TYPES, msgspec.json.encode(types), JSON_KIND)


def _came(source: Binding, native: str) -> Iterator[tuple[str, Part, str]]:
    """Give names, parts and AMQP types of the headers that were no attributes of the record's own envelope."""
    try:
        parts: Parts = source.parts(msgspec.json.decode(native))
    except (msgspec.DecodeError, RecordError):
        return  # the native record is shown, not relied on: an odd one has no headers
    types = types_of(parts)
    bare = source.rule.prefixes[0] in CARRIED
    is_event = any(attribute_name(part.key, source.rule) == "specversion" for part in parts)
    content = first(parts, source.rule.content_type)
    within = content is not None and media_type_of(content.text).startswith(EVENT_MEDIA)
    for part in parts:
        prefix = next((known for known in CARRIED if part.key.startswith(known)), None)
        if prefix is None or part.value is None:
            continue
        name = part.key.removeprefix(prefix)
        attribute = attribute_name(part.key, source.rule)
        if attribute is not None and (not bare or (is_event and ATTRIBUTE_NAME.fullmatch(attribute))):
            continue
        lowered = name.lower()
        if not name or lowered == "content-type" or lowered.startswith(LINEAGE):
            continue
        if prefix == _HEADERS and (lowered in CONNECTION_HEADERS or (within and lowered.startswith("content-"))):
            continue
        yield name, part, types.get(part.key, "")


def _reads_as_attribute(key: str, rule: AttributeRule, *, binary: bool) -> bool:
    """Return whether a reader of the message would take a part for an attribute of the event.

    Where attributes have no prefix (MQTT), any name of the right form is one in binary mode; without an envelope, the
    one that would make an event of the message.
    """
    name = attribute_name(key, rule)
    if name is None or rule.prefixes[0] not in CARRIED:
        return name is not None
    return ATTRIBUTE_NAME.fullmatch(name) is not None if binary else name == "specversion"
