"""Headers that a record came with and that were no CloudEvents attributes, passed on with the message it becomes.

Architecture.md section 9 asks it of Kafka; the other protocols do the same in their own place: user properties,
application properties, headers. Left out is what speaks of a connection and not of the message, what would be read as
an attribute of the event, what the target sets by itself, and what its protocol has no form for: a header is never
worth a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from bindings.amqp.forms import TYPES, types_of
from bindings.envelope import ATTRIBUTE_NAME, AttributeRule, attribute_name
from bindings.parts import BINARY_KIND, JSON_KIND, Part, Parts, first
from bindings.protocols import Binding, binding_of
from catalog.errors import RecordError
from catalog.values import media_type_of

LINEAGE: Final = "xrouter-"
"""Prefix of the names this router adds; those of a router before it are not passed on."""
_LISTS: Final = ("headers.", "user_properties.", "application-properties.")
_MEMBERS: Final = tuple(f'"{name[:-1]}"' for name in _LISTS)
_EVENT_MEDIA: Final = "application/cloudevents"
_CONNECTION: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authenticate", "proxy-authorization", "cookie", "set-cookie"})
_CLIENT: Final = frozenset({"accept", "accept-charset", "accept-encoding", "accept-language", "user-agent"})
"""What an HTTP client says of itself."""
_HTTP_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_HTTP_VALUE: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[!-~\x80-\xff \t]*[!-~\x80-\xff])?)?")
_NATS_NAME: Final = re.compile(r"[!-9;-~]+")
_MOST_BYTES: Final = 65_535
_LONG: Final = 2**63


@dataclass(frozen=True, slots=True)
class HeaderPassing:
    """What is passed on to one target; ``taken`` are the names, in lower case, that its client sets by itself."""

    binding: Binding
    taken: frozenset[str] = frozenset()

    def parts(self, protocol: str, native: str, *, binary: bool, structured: bool) -> Iterator[Part]:
        """Give the parts for a record of that protocol, whose native form is JSON text.

        *binary* and *structured* tell the mode of the message that is made; neither is one without an envelope.
        """
        source = binding_of(protocol)
        if source is None or not self.binding.binary or not any(member in native for member in _MEMBERS):
            return
        place = self.binding.rule.prefixes[0].partition(".")[0]
        types: dict[str, str] = {}
        for name, part, told in _came(source, native):
            if structured and name.lower().startswith("content-"):
                continue  # of the body as it was, which is now within another one
            wanted = name.lower() if place == "headers" and self.binding.protocol == "HTTP" else name
            made = _FORMS[self.binding.protocol](wanted, part)
            if made is None or wanted.lower() in self.taken:
                continue
            key = f"{place}.{wanted}"
            if not _reads_as_attribute(key, self.binding.rule, binary=binary):
                yield made._replace(key=key)
                if told and source.protocol == self.binding.protocol:
                    types[key] = told
        if types:
            yield Part(TYPES, msgspec.json.encode(types), JSON_KIND)


def _came(source: Binding, native: str) -> Iterator[tuple[str, Part, str]]:
    """Give names, parts and AMQP types of the headers that were no attributes of the record's own envelope."""
    try:
        parts: Parts = source.parts(msgspec.json.decode(native))
    except (msgspec.DecodeError, RecordError):
        return  # the native record is shown, not relied on: an odd one has no headers
    types = types_of(parts)
    bare = source.rule.prefixes[0] in _LISTS
    is_event = any(attribute_name(part.key, source.rule) == "specversion" for part in parts)
    content = first(parts, source.rule.content_type)
    within = content is not None and media_type_of(content.text).startswith(_EVENT_MEDIA)
    for part in parts:
        prefix = next((known for known in _LISTS if part.key.startswith(known)), None)
        if prefix is None or part.value is None:
            continue
        name = part.key.removeprefix(prefix)
        attribute = attribute_name(part.key, source.rule)
        if attribute is not None and (not bare or (is_event and ATTRIBUTE_NAME.fullmatch(attribute))):
            continue
        lowered = name.lower()
        if not name or lowered == "content-type" or lowered.startswith(LINEAGE):
            continue
        if prefix == _LISTS[0] and (lowered in _CONNECTION or (within and lowered.startswith("content-"))):
            continue
        yield name, part, types.get(part.key, "")


def _reads_as_attribute(key: str, rule: AttributeRule, *, binary: bool) -> bool:
    """Tell whether a reader of the message would take a part for an attribute of the event.

    Where attributes have no prefix (MQTT), any name of the right form is one in binary mode; without an envelope, the
    one that would make an event of the message.
    """
    name = attribute_name(key, rule)
    if name is None or rule.prefixes[0] not in _LISTS:
        return name is not None
    return ATTRIBUTE_NAME.fullmatch(name) is not None if binary else name == "specversion"


def _text(part: Part) -> str | None:
    text = part.text
    return None if text is None or "\0" in text or len(part.value or b"") > _MOST_BYTES else text


def _http(name: str, part: Part) -> Part | None:
    ours = name in _CREDENTIALS or name in _CLIENT or name in _CONNECTION
    if ours or not _HTTP_NAME.fullmatch(name) or not _HTTP_VALUE.fullmatch(part.value or b""):
        return None
    return Part(name, part.value)


def _nats(name: str, part: Part) -> Part | None:
    # Servers act upon names that begin with Nats-: one passed on would set conditions for storing the message.
    if name.lower().startswith("nats-") or not _NATS_NAME.fullmatch(name) or set(part.value or b"") & set(b"\r\n"):
        return None
    return Part(name, part.value)


def _mqtt(name: str, part: Part) -> Part | None:
    named = _text(Part("", name.encode("utf-8", "surrogatepass")))
    return None if named is None or _text(part) is None else Part(name, part.value)


def _amqp(name: str, part: Part) -> Part | None:
    if part.text is None:
        return Part(name, part.value, BINARY_KIND)
    if part.kind != JSON_KIND:
        return Part(name, part.value, part.kind)
    value = msgspec.json.decode(part.value or b"null")
    typed = isinstance(value, (bool, float)) or (isinstance(value, int) and -_LONG <= value < _LONG)
    return Part(name, part.value, JSON_KIND if typed else None)


def _kafka(name: str, part: Part) -> Part | None:
    return Part(name, part.value)


_FORMS: Final[Mapping[str, Callable[[str, Part], Part | None]]] = {
    "HTTP": _http,
    "NATS": _nats,
    "MQTT/5.0": _mqtt,
    "AMQP/1.0": _amqp,
    "KAFKA": _kafka,
}
"""What a header becomes in each protocol that has headers; None for one that it has no form for."""
