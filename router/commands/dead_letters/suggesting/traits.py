"""What a record shows of its kind: its envelope, the content type of its data, and the properties worth asking for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from bindings.parts import BINARY_KIND, Part
from bindings.protocols import Binding, binding_of
from catalog.errors import RecordError
from catalog.linting.values import is_media_type
from catalog.protocols.properties import VOCABULARIES, Vocabulary
from catalog.record import Record
from catalog.schemas.bodies import json_value
from catalog.values import media_type_of
from router.commands.dead_letters.suggesting.noise import is_noise

_ATTRIBUTE: Final = re.compile(r"(?!data\Z)[a-z0-9]{1,64}", re.ASCII)
_MARKS: Final = frozenset({"oversized", "undecodable"})
MAX_VALUE: Final = 1_000
"""Characters of a value; a property with a longer one is never asked for."""
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Traits:
    """One record as drafting sees it.

    ``media`` is the media type of the data without parameters, lower case, ``""`` for none; ``typed`` is True when the
    record itself gave it. ``properties`` are texts by key: ``e.NAME`` for an attribute, ``p.PATH`` for a protocol
    option; None for one that is there and no text, or too long a one. ``body`` is the data, ``document`` its value when
    it is JSON, inside a tuple. ``content_key`` is the option of the native content type, when the record has one.
    """

    record: Record
    protocol: str
    event: bool
    media: str
    typed: bool
    properties: Mapping[str, str | None]
    body: bytes | None
    document: tuple[object] | None
    content_key: str | None = None

    @property
    def endpoint(self) -> str | None:
        """The xid of the endpoint that the record came through."""
        return self.record.endpoint

    @property
    def address(self) -> str:
        """The key of the property that says what the message is about; empty for events where none does."""
        vocabulary = VOCABULARIES[self.protocol]
        return "" if self.event and not vocabulary.about_events else f"p.{vocabulary.about}"

    @property
    def size(self) -> int:
        """About how many bytes of memory the record takes."""
        return 2_000 + 3 * len(self.record.body or b"")


Hides = Callable[[str, str], bool]
"""Returns whether the value of a name (``x-card``) at a path (``headers.x-card``; ``""`` in bodies) is sensitive."""


def never(name: str, path: str) -> bool:
    """Take nothing as sensitive."""
    return False


def traits_of(record: Record, sniffs: Callable[[str], bool], hides: Hides = never) -> Traits | str:
    """Return what a record shows, or why no definition can be drafted from it; what *hides* names is left aside.

    *sniffs* returns, by protocol, whether its channel takes events in plain JSON bodies (JUDGING.md#cloudevents).
    """
    binding = binding_of(record.protocol)
    if binding is None:
        return "of an unknown protocol"
    try:
        parts = binding.parts(record.native)
    except RecordError:
        return "no native record"
    if any(part.key in _MARKS for part in parts):
        return "oversized or undecodable"
    envelope = binding.envelope(parts, record.body, lambda: sniffs(binding.protocol))
    if envelope.mode in ("batch", "undecodable") or envelope.faults:
        return "a batch of events" if envelope.mode == "batch" else "no valid event"
    event = envelope.is_event
    content = envelope.attributes.get("datacontenttype") if event else envelope.content_type
    media = media_type_of(content)
    media = media if is_media_type(media) else ""
    document = document_of(envelope.data) if not media or "json" in media else None
    if not content and document is not None and isinstance(document[0], (dict, list)):
        media = JSON
    properties = _attributes(envelope.attributes) if event else {}
    properties.update(_options(parts, binding, event=event))
    shown = {key: text for key, text in properties.items() if not hides(key.rpartition(".")[2], key[2:])}
    has_key = not event and envelope.content_type is not None and binding.binary
    key = f"p.{binding.rule.content_type}" if has_key else None
    return Traits(record, binding.protocol, event, media, bool(content), shown, envelope.data, document, key)


def document_of(body: bytes | None) -> tuple[object] | None:
    """Return the value of a JSON body in a tuple; None for what is no JSON."""
    if not body:
        return None
    try:
        return (json_value(body.removeprefix(b"\xef\xbb\xbf"), doubles=True),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _attributes(attributes: Mapping[str, str]) -> dict[str, str | None]:
    return {
        f"e.{name}": text if 0 < len(text) <= MAX_VALUE else None
        for name, text in attributes.items()
        if _ATTRIBUTE.fullmatch(name) and not is_noise(f"e.{name}", "")
    }


def _options(parts: Iterable[Part], binding: Binding, *, event: bool) -> dict[str, str | None]:
    """Return the options of a record, first value of each; of an event only the address, where that says something."""
    protocol, vocabulary = binding.protocol, VOCABULARIES[binding.protocol]
    options: dict[str, str | None] = {}
    for part in parts:
        key = f"p.{part.key}"
        if key in options or part.key.lower() == binding.rule.content_type or not _is_option(part.key, vocabulary):
            continue
        if event and not (vocabulary.about_events and part.key == vocabulary.about):
            continue
        if is_noise(key, protocol):
            continue
        text = None if part.kind == BINARY_KIND else part.text
        options[key] = text if text and len(text) <= MAX_VALUE else None
    return options


def _is_option(path: str, vocabulary: Vocabulary) -> bool:
    """Tell whether a definition can ask for a member of the native record."""
    holder, dot, name = path.partition(".")
    if not dot:
        return path in vocabulary.scalars
    table = vocabulary.sections.get(holder)
    return bool(name) and (
        holder in vocabulary.lists or (holder in vocabulary.sections and (table is None or name in table))
    )
