"""Dead letters as sinks write them, and settings of a router that has them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import yaml
from hypothesis import strategies as st

from bindings.inbox.source import READ_SCHEMA
from bindings.protocols import BINDINGS, binding_of
from catalog.findings import RecordError
from catalog.model import Catalog
from catalog.record import record_from_json
from catalog.schemas.ids.deciding import FrameSettings
from catalog.schemas.validation import PayloadValidation
from router.evaluation.outputs import OutputBuilder
from router.evaluation.plan import Evaluator
from router.matching.channels import ChannelBuilder
from router.matching.inbox_columns import inbox_parts
from router.matching.matcher import Matcher
from router.matching.record_columns import RawRow, RecordColumns, RecordColumnsBuilder
from router.matching.schema_validation import Validation
from router.matching.tie_breaker import Ambiguous
from router.routing import Routes, SizeLimits
from router.settings import Settings, load_settings, settings_from_dict
from router.sinks import Commit, open_sink
from router.sinks.jsonlines import DEAD_LETTER
from tests.support import plain
from tests.support.cases import bytes_of, filled, read_cases
from tests.support.evaluating import lists_of

WRITTEN: Final = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
SINKS: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {"type": "table", "path": "./delta"},
    "parquet": {"type": "table", "format": "parquet", "path": "./parquet"},
    "lines": {"type": "jsonl", "path": "./lines"},
}
"""A sink of each kind on disk."""
BUS: Final = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "dead"}
"""A sink that nobody answers at."""
_SALE: Final = plain.event("sale")
CATALOG: Final = plain.catalog(
    {"till": plain.endpoint("HTTP", {}, "G", uri="http://127.0.0.1/till")},
    G={"Sale": {**_SALE, "envelopemetadata": {**_SALE["envelopemetadata"], "subject": {"value": "shop/{shop}"}}}},
)


def letter_id(number: int) -> str:
    """Return the id of letter *number*: all differ in their first characters."""
    return f"{number:04x}{'0' * 28}"


def row(number: int, **changes: Any) -> dict[str, Any]:
    """Return one dead letter as a row of :data:`DEAD_LETTER`."""
    mismatches = [{"property": "type", "expected": "sale", "found": "sold"}]
    nearest = [{"message": "/messagegroups/G/messages/Sale", "mismatches": mismatches}]
    named = {"specversion": "1.0", "type": "sold", "source": "/tills/1", "id": str(number), "subject": "shop/7"}
    headers = {**{f"ce-{name}": value for name, value in named.items()}, "content-type": "application/json"}
    listed = [{"name": name, "value": value} for name, value in headers.items()]
    native = {"method": "POST", "path": "/till", "headers": listed}
    made = {
        "letter": letter_id(number),
        "reason": "no-match",
        "detail": "type: expected 'sale', found 'sold'",
        "nearest": json.dumps(nearest),
        "endpoint": "/endpoints/till",
        "protocol": "HTTP",
        "native": json.dumps(native),
        "body": b'{"amount": 1.50}',
        "epoch": "0123456789abcdef",
        "position": f"inbox-0-{number}",
        "received": WRITTEN,
        "failed": WRITTEN,
        "attempts": 1,
    }
    return made | changes


def settings_file(folder: Path, sinks: Sequence[str] = ("delta",), **dead_letters: Any) -> Path:
    """Write settings whose dead letters go to these of :data:`SINKS` (else :data:`BUS`), and a catalog."""
    catalog = folder / "catalog.json"
    if not catalog.exists():
        plain.write(folder, CATALOG)
    sinks_of = {"events": {"type": "jsonl", "path": "./events"}, **{name: SINKS.get(name, BUS) for name in sinks}}
    more = {"routes": [{"to": "events"}], "dead_letters": {"sinks": list(sinks), **dead_letters}}
    told = plain.routed(Path(catalog.name), json.loads(json.dumps(sinks_of)), **more)
    file = folder / "router.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


def write_letters(
    settings: Settings | Path, rows: Sequence[Mapping[str, Any]], version: int = 1, app: str = "app"
) -> Settings:
    """Write rows as one batch to every sink of dead letters; return the settings."""
    loaded = load_settings(settings) if isinstance(settings, Path) else settings
    table = pa.Table.from_pylist([dict(each) for each in rows], DEAD_LETTER)
    for name in loaded.dead_letters.sinks:
        open_sink(name, loaded.sinks[name], "dead-letters").write(table, Commit(f"{app}-{name}-letters", version))
    return loaded


# Rows of an inbox, sane and hostile, and their judgement by the exact codec alone, which columns must equal.

ENDPOINT: Final = "/endpoints/e"
RECEIVED: Final = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
EVENT: Final = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}'
_ROWS: Final = filled(
    read_cases(Path(__file__).resolve().parents[1] / "cases/hostile/rows.yaml")["inbox"],
    {"${CORE}": '"specversion":"1.0","id":"1","source":"/s","type":"t"'},
)
PREFIXES: Final[list[str]] = _ROWS["prefixes"]
NAMES: Final[list[str]] = _ROWS["names"]
VALUES: Final = [None if each is None else bytes_of(each) for each in _ROWS["values"]]
KINDS: Final = (None, None, None, "json", "binary", "odd")
JSON_EVENTS: Final = [bytes_of(each) for each in _ROWS["events"]]
"""Events that are plain for the columns."""
BODIES: Final = [*JSON_EVENTS, *(None if each is None else bytes_of(each) for each in _ROWS["bodies"])]
PROTOCOLS: Final = (*BINDINGS, "http/2", "mqtt", "NATS/2.11", "AMQP", "none")
Entry = tuple[str, bytes | None, str | None]
CORE: Final = (("specversion", b"1.0"), ("id", b"1"), ("source", b"/s"), ("type", b"t"))


def judge_of(
    catalog: Catalog,
    folder: Path,
    endpoints: Collection[str] = (ENDPOINT,),
    *,
    validation: Validation = "ambiguous",
    hop_by_hop: bool = False,
    ambiguous: Ambiguous = "dead-letter",
    frames: FrameSettings = FrameSettings(),  # noqa: B008 - it cannot be changed
    topic: str = "t-{attributes.type|x}-{attributes.ext|x}",
) -> Evaluator:
    """Return what judges records with these endpoints as channels, whatever their protocols, to a topic that looks at
    attributes.
    """
    sinks = plain.topics("broker:9092", bus=topic, dead="dead")
    settings = settings_from_dict(plain.routed(Path("catalog"), sinks), {}, folder)
    builder = ChannelBuilder(catalog, hop_by_hop=hop_by_hop, ambiguous=ambiguous)
    numbers = {xid: number for number, xid in enumerate(sorted(endpoints))}
    for xid in numbers:
        builder.add_endpoints(xid, [xid], frames=frames)
    matcher = Matcher(builder.targets, builder.channels, PayloadValidation(catalog), validation, builder.tie_breaker())
    return Evaluator(matcher, OutputBuilder(matcher, Routes(settings), SizeLimits(settings)), numbers, 2**30)


def inbox_row(
    entries: Sequence[Entry], protocol: str = "HTTP", body: bytes | None = None, **more: Any
) -> dict[str, Any]:
    """Return one row; *more* replaces its other columns."""
    properties = [{"key": key, "value": value, "type": kind} for key, value, kind in entries]
    given = {"endpoint": ENDPOINT, "protocol": protocol, "received": RECEIVED, "position": "u-0-0-0", **more}
    return {**given, "properties": properties, "body": body}


def row_of(record: Mapping[str, Any], **more: Any) -> dict[str, Any] | None:
    """Return the row that a gateway would store for a native record; None where it is no record."""
    try:
        known = record_from_json(dict(record))
        binding = binding_of(known.protocol)
        parts = binding.split(known.native) if binding is not None else None
    except RecordError:
        return None
    if parts is None:
        return None
    return inbox_row([(part.key, part.value, part.kind) for part in parts], known.protocol, known.body, **more)


def batch_of(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows as the inbox gives them, each with a position of its own."""
    return pa.RecordBatch.from_pylist(
        [{**each, "position": f"u-0-0-{number}"} for number, each in enumerate(rows)], READ_SCHEMA
    )


def spoil(chosen: Random, row: dict[str, Any]) -> None:
    """Do to a row what no sane sender does: up to four entries more, at any place; another protocol or body."""
    properties = row["properties"]
    for _ in range(chosen.choice((0, 1, 1, 2, 4))):
        keys = [each["key"] for each in properties]
        fresh = f"{chosen.choice(PREFIXES)}{chosen.choice(NAMES)}"
        key = chosen.choice(keys) if keys and chosen.random() < 0.4 else fresh
        entry = {"key": key, "value": chosen.choice(VALUES), "type": chosen.choice(KINDS)}
        properties.insert(chosen.randint(0, len(properties)), entry)
    if chosen.random() < 0.1:
        row["protocol"] = chosen.choice(PROTOCOLS)
    if chosen.random() < 0.2:
        row["body"] = chosen.choice(BODIES)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """A row of any protocol: often an event by its own prefix, with whatever else beside."""
    protocol = draw(st.sampled_from(PROTOCOLS))
    entries: list[Entry] = []
    if draw(st.booleans()):
        binding = binding_of(protocol) or BINDINGS["HTTP"]
        entries += [(f"{binding.rule.prefixes[0]}{name}", value, None) for name, value in CORE]
    if draw(st.integers(0, 3)) == 0:
        binding = binding_of(protocol) or BINDINGS["HTTP"]
        entries.append((binding.rule.content_type, b"application/cloudevents+json", None))
    keys = st.one_of(
        st.builds(str.__add__, st.sampled_from(PREFIXES), st.sampled_from(NAMES)), st.sampled_from(("", "a.b", "\0"))
    )
    values = st.one_of(st.sampled_from(VALUES), st.binary(max_size=6))
    entries += draw(st.lists(st.tuples(keys, values, st.sampled_from(KINDS)), max_size=6))
    entries = draw(st.permutations(entries))
    received = draw(st.sampled_from((RECEIVED, RECEIVED, datetime.min.replace(tzinfo=UTC), None)))
    endpoint = draw(st.sampled_from((ENDPOINT, ENDPOINT, ENDPOINT, "/endpoints/other", None)))
    return inbox_row(entries, protocol, draw(st.sampled_from(BODIES)), received=received, endpoint=endpoint)


def exact_facts(judge: Evaluator, batch: pa.RecordBatch) -> RecordColumns:
    """Return the facts of a batch by the exact codec alone."""
    raw = RecordColumnsBuilder(judge.matcher.index.keys)
    for number, each in enumerate(batch.to_pylist()):
        binding = binding_of(each["protocol"]) or BINDINGS["HTTP"]
        channel = judge.channel_numbers.get(each["endpoint"], -1)
        time = each["received"].isoformat(timespec="microseconds").replace("+00:00", "Z") if each["received"] else None

        def sniff(channel: int = channel, protocol: str = binding.protocol) -> bool:
            return judge.matcher.sniffs(channel, protocol)

        parts = inbox_parts(each["properties"])
        raw.add(RawRow(number, binding, parts, each["body"], channel, sniff, each["position"], time))
    return raw.build()


def judged_exactly(judge: Evaluator, batch: pa.RecordBatch) -> tuple[pa.ListArray, str | None]:
    """Judge a batch by the exact codec alone: what :func:`tests.support.evaluating.outcome_lists` must return."""
    given = batch.to_pylist()
    epoch, millisecond = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
    arrivals = [(each["received"] - epoch) // millisecond if each["received"] else 0 for each in given]
    sizes = [len(each["body"] or b"") for each in given]
    outcomes = judge.matcher.match(exact_facts(judge, batch))
    return lists_of(
        judge, judge.outputs.route_outcomes(outcomes, np.array(arrivals, np.int64), np.array(sizes, np.int64))
    )
