"""Drafts: what a bundle of records has in common, as a message definition in the spelling of xRegistry 1.0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from catalog.linting.values import is_media_type
from catalog.model import CLOUDEVENTS
from catalog.protocols.properties import ATTRIBUTE_TYPES, VOCABULARIES
from catalog.values import is_valid
from router.commands.dead_letters.suggesting.bundles import Bundle
from router.commands.dead_letters.suggesting.columns import Column, Gap, column_of
from router.commands.dead_letters.suggesting.placeholders import GapPlace, names_of, shared_gaps
from router.commands.dead_letters.suggesting.schemas import FORMAT, schema_of
from router.commands.dead_letters.suggesting.traits import Hides, never

MOST_PROPERTIES: Final = 32
_OFTEN: Final = 0.05
_DOCUMENTS: Final = 0.95
"""Share of bodies that must be JSON for a schema to be drafted."""
_ABSOLUTE: Final = ("e.dataschema",)
_URIS: Final = frozenset({"uri", "urireference", "uritemplate"})


@dataclass(frozen=True, slots=True)
class AskedProperty:
    """One property of a draft: what definitions write as ``{type, value, required}``, under its key."""

    key: str
    value: str | None = None
    type: str | None = None
    required: bool = False

    def form(self) -> dict[str, Any]:
        """Return the JSON form, without the name."""
        written = {"type": self.type, "value": self.value, "required": True if self.required else None}
        return {name: value for name, value in written.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Draft:
    """One drafted definition and the bundle it is for. ``messageid`` is unique in its group once it is placed there."""

    bundle: Bundle
    messageid: str
    datacontenttype: str | None
    asked: tuple[AskedProperty, ...]
    schema: Mapping[str, Any] | None = None

    @property
    def address(self) -> str:
        """What the draft asks of the address, or of the type of the event when it asks nothing there."""
        by_key = {each.key: each.value for each in self.asked if each.value is not None}
        return by_key.get(self.bundle.records[0].address) or by_key.get("e.type") or ""


def draft_of(bundle: Bundle, hides: Hides = never) -> Draft:
    """Draft the definition of a bundle; no value is shown of members of bodies that *hides* names."""
    columns = sorted(
        _columns(bundle), key=lambda column: (column.key not in (bundle.records[0].address, "e.type"), column.key)
    )
    shared = shared_gaps(columns)
    telling = _telling(columns, shared, bundle.records[0].address)
    names = names_of([column if number in telling else _mute(column) for number, column in enumerate(columns)], shared)
    drafted = [_asked(columns[number], number, names) for number in sorted(telling)]
    asked = [each for each in drafted if each is not None]
    asked += _presence(columns, telling, {each.key for each in asked})
    if bundle.pinned and bundle.shape.media and bundle.records[0].content_key:
        asked.append(AskedProperty(bundle.records[0].content_key, bundle.shape.media))
    media = bundle.shape.media if is_media_type(bundle.shape.media) else None
    media = None if media and media.startswith("application/cloudevents") else media
    return Draft(bundle, "", media, tuple(asked), _schema(bundle, hides))


def message_form(draft: Draft, schemaxid: str | None) -> dict[str, Any]:
    """Return the message as a document has it; *schemaxid* names its data schema, if it has one.

    A draft for native records declares the event that they become, with a type of its own: so it takes no events that
    come the same way, and plain JSON bodies that are events stay events (JUDGING.md#cloudevents).
    """
    shape = draft.bundle.shape
    metadata = {each.key[2:]: each.form() for each in draft.asked if each.key.startswith("e.")}
    if not shape.event:
        metadata = {"type": {"value": draft.messageid}}
    # A protocol that an event's draft declares would make it one for native records too.
    options = _options(draft)
    protocol = {} if shape.event and not options else {"protocol": shape.protocol}
    place = f" at {shape.endpoint}" if shape.endpoint else ""
    return {
        "messageid": draft.messageid,
        "description": f"Drafted from {draft.bundle.seen} dead letters{place}; review before use.",
        "envelope": CLOUDEVENTS,
        "envelopemetadata": metadata,
        **protocol,
        **({"protocoloptions": options} if options else {}),
        **({"datacontenttype": draft.datacontenttype} if draft.datacontenttype else {}),
        **({"dataschemaformat": FORMAT, "dataschemaxid": schemaxid} if schemaxid else {}),
    }


def _columns(bundle: Bundle) -> Iterator[Column]:
    texts: dict[str, list[str | None]] = {}
    for record in bundle.records:
        for key, text in record.properties.items():
            wanted = key.startswith("e.") or not bundle.shape.event or bundle.pinned
            if wanted and key not in bundle.barred:
                texts.setdefault(key, []).append(text)
    address = bundle.records[0].address
    for key, values in texts.items():
        missing = len(bundle.records) - len(values)
        pattern = bundle.pattern if key == address else None
        pinned = any(key == pin for pin, _ in bundle.pins)
        yield column_of(key, values, missing, bundle.shape.protocol, pattern=pattern, pinned=pinned)


def _telling(columns: list[Column], shared: dict[GapPlace, GapPlace], address: str) -> set[int]:
    """Return the numbers of the columns whose value is worth asking for.

    The address always is; others when a part of them is literal, or when all they hold occurs elsewhere too.
    """
    uses: dict[GapPlace, set[int]] = {}
    for place, owner in shared.items():
        uses.setdefault(owner, set()).add(place[0])
    telling: set[int] = set()
    for number, column in enumerate(columns):
        if column.pieces is None:
            continue
        places = [(number, gap) for gap in range(len(column.gaps))]
        elsewhere = bool(places) and all(len(uses[shared[place]]) > 1 for place in places)
        if column.key == address or column.says_something or elsewhere:
            telling.add(number)
    return telling


def _mute(column: Column) -> Column:
    return replace(column, pieces=None)


def _asked(column: Column, number: int, names: Mapping[GapPlace, str]) -> AskedProperty | None:
    """Return a property with its literal or template; None for one that cannot be written as valid."""
    texts: list[str] = []
    gap = 0
    for piece in column.pieces or ():
        if isinstance(piece, Gap):
            texts.append(f"{{{names[number, gap]}}}")
            gap += 1
        else:
            texts.append(piece)
    value = "".join(texts)
    if column.key in _ABSOLUTE and ":" not in value.partition("{")[0]:
        return None
    kind = _type(column.key)
    valid = gap or is_valid(kind, value)
    return AskedProperty(column.key, value, None if valid else "string")


def _presence(columns: list[Column], telling: set[int], known: set[str]) -> Iterator[AskedProperty]:
    """Give the properties that are asked for without a value: those always there, then some that often are."""
    rest = [
        column
        for number, column in enumerate(columns)
        if number not in telling and column.key not in known and column.askable and not column.identity
    ]
    rest = [column for column in rest if column.key not in ("e.source", "e.type", *_ABSOLUTE)]
    always = [column for column in rest if column.always]
    often = [column for column in rest if not column.always and column.share >= _OFTEN]
    for column in (always + often)[: max(0, MOST_PROPERTIES - len(known))]:
        kind = _type(column.key)
        yield AskedProperty(column.key, None, "string" if kind not in ("string", "symbol") else None, column.always)


def _type(key: str) -> str:
    """Return the type that a property has when none is written."""
    side, _, path = key.partition(".")
    if side == "e":
        return ATTRIBUTE_TYPES.get(path, "string")
    holder, _, name = path.partition(".")
    for shape in VOCABULARIES.values():
        table = shape.sections.get(holder)
        kind = shape.scalars.get(path) or (table.get(name) if table is not None else None)
        if kind is not None:
            return kind
    return "string"


def _options(draft: Draft) -> dict[str, Any]:
    """Return the protocol options: scalars, lists of named values, and sections that are maps."""
    protocol = VOCABULARIES[draft.bundle.shape.protocol]
    options: dict[str, Any] = {}
    for each in draft.asked:
        if not each.key.startswith("p."):
            continue
        holder, dot, name = each.key[2:].partition(".")
        if not dot:
            options[holder] = each.form()
        elif holder in protocol.lists:
            options.setdefault(holder, []).append({"name": name, **each.form()})
        else:
            options.setdefault(holder, {})[name] = each.form()
    return options


def _schema(bundle: Bundle, hides: Hides) -> Mapping[str, Any] | None:
    """Draft the data schema, when nearly all bodies are JSON and say more than that."""
    bodies = [record for record in bundle.records if record.body]
    documents = [record.document[0] for record in bodies if record.document is not None]
    if not documents or "json" not in bundle.shape.media or len(documents) < _DOCUMENTS * len(bodies):
        return None
    if len(documents) < _DOCUMENTS * len(bundle.records):
        return None
    schema = schema_of(documents, lambda name: hides(name, ""))
    return schema if len(schema) > 1 else None
