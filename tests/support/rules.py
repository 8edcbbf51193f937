"""The rules of MATCHING.md as data: read from tests/conformance/rules, and rendered for every protocol they apply to.

The words of those files are told in their README. Each case has a small catalog; for a protocol it becomes part of one
large document, its ids prefixed so that cases do not meet, and its records become samples with the outcome due to them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.load import build_catalog
from catalog.model import PROTOCOLS, Catalog
from catalog.schemas.ids.client import Framing
from catalog.schemas.ids.deciding import FrameSettings
from router.matching.schema_validation import Validation
from router.matching.tie_breaker import Ambiguous
from tests.support.cases import read_cases
from tests.support.evaluating import RECEIVED
from tests.support.schemas import KnownIds, known_ids

# A record or constraint that a rule writes once, as each protocol has it.
#
# The words are those of tests/conformance/rules/README.md.

POSITION: Final = "$position"
TIME: Final = "$time"
"""When every record arrived, as the inbox tells it; Kafka's own timestamp is the same moment in milliseconds."""
TIMESTAMP: Final = 1_767_323_045_000
TIMES: Final = {"KAFKA": "2026-01-02T03:04:05.000Z"}
CORE: Final = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
TEXTS: Final = {
    "HTTP": "headers",
    "KAFKA": "headers",
    "NATS": "headers",
    "MQTT/5.0": "user_properties",
    "AMQP/1.0": "application-properties",
}
"""Where a constrained text property goes; MQTT 3.1.1 has one only, its topic."""
NAMES: Final = {"text": "x-text", "other": "x-other"}
"""What the text properties are called; no attribute could be called so, whatever the protocol."""
PREFIXES: Final = {"HTTP": "ce-", "NATS": "ce-", "KAFKA": "ce_", "MQTT/5.0": "", "AMQP/1.0": "cloudEvents:"}
ENCODED: Final = frozenset({"HTTP", "NATS"})
NESTED: Final = "$nested "
"""Begins a body that is that many arrays in each other."""
VISIBLE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '%"')


class RuleError(Exception):
    """A rule is written in a way that cannot be rendered; the message names rule, case and what is wrong."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """One record of one protocol. ``attributes`` are those it says it has, None when it is no CloudEvent of ours;
    ``data`` is the body that leaves when it is routed. ``events`` are the attributes of each event of a batch.
    """

    native: dict[str, Any]
    body: bytes | None
    attributes: dict[str, str] | None
    data: bytes | None
    events: tuple[dict[str, str], ...] = ()


def options_of(protocol: str, where: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol options that constrain these text properties."""
    member = TEXTS.get(protocol)
    if member is None:
        return {"topic_name": _only_text(protocol, where)}
    if member == "application-properties":
        return {member: {NAMES[name]: body for name, body in where.items()}}
    bodies = ((name, body) for name, given in where.items() for body in (given if isinstance(given, list) else [given]))
    return {member: [{"name": NAMES[name], **body} for name, body in bodies]}


def property_of(protocol: str, name: str) -> str:
    """Return the full name of a text property, as explanations have it; other names are full already."""
    first, space, rest = name.partition(" ")
    if first not in ("text", "other"):
        return name
    member = TEXTS.get(protocol)
    place = f"protocoloptions.{member}.{NAMES[first]}" if member else "protocoloptions.topic_name"
    return f"{place}{space}{rest}"


def render(protocol: str, words: Mapping[str, Any]) -> Rendered:
    """Return what a client of that protocol would send."""
    native = _texts(protocol, {name: words[name] for name in ("text", "other") if words.get(name) is not None})
    body = _body(words)
    media, content = words.get("media"), words.get("content")
    attributes: dict[str, str] | None = None
    data = body
    events: tuple[dict[str, str], ...] = ()
    if "batch" in words:
        entries = [each if isinstance(each, str) else json.dumps(_named(each)) for each in words["batch"]]
        events = tuple({} if isinstance(each, str) else _named(each) for each in words["batch"])
        body, media = f"[{','.join(entries)}]".encode(), media or BATCH
    elif "structured" in words or ("event" in words and protocol == "MQTT/3.1.1"):
        attributes = _named(words.get("structured", words.get("event")))
        attributes |= {"datacontenttype": content} if content else {}
        body = _structured(attributes, body, content)
        attributes |= {"datacontenttype": "application/json"} if data is not None and not content else {}
        media = media if "media" in words or "event" in words else STRUCTURED
    elif "event" in words:
        attributes = _named(words["event"])
        native = merged(native, _binary(protocol, attributes))
        attributes |= {"datacontenttype": content} if content else {}
        media = content
    elif content is not None:
        if protocol == "MQTT/3.1.1":
            raise RuleError("MQTT/3.1.1 has no content type; say media for one that it may lack")
        media = content
    native = merged(native, _media(protocol, media))
    if "coding" in words:
        native = merged(native, _coding(protocol, words["coding"]))
    return Rendered(merged(native, words.get("native", {})), body, attributes, data, events)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both; maps are united member by member, lists appended, all else is the other's."""
    united = dict(one)
    for name, value in other.items():
        known = united.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            united[name] = merged(known, value)
        else:
            united[name] = [*known, *value] if isinstance(known, list) and isinstance(value, list) else value
    return united


def _only_text(protocol: str, named: Mapping[str, Any]) -> Any:
    if set(named) != {"text"} or isinstance(named["text"], list):
        raise RuleError(f"{protocol} has one text property, its topic: {', '.join(named)} cannot be rendered")
    return named["text"]


def _texts(protocol: str, texts: Mapping[str, Any]) -> dict[str, Any]:
    member = TEXTS.get(protocol)
    if not texts:
        return {}
    if member is None:
        return {"topic_name": _only_text(protocol, texts)}
    if member == "application-properties":
        return {member: {NAMES[name]: value for name, value in texts.items()}}
    listed = ((name, each) for name, given in texts.items() for each in (given if isinstance(given, list) else [given]))
    return {member: [_entry(NAMES[name], each) for name, each in listed]}


def _entry(name: str, value: Any) -> dict[str, Any]:
    return (
        {"name": name, "value_base64": value["base64"]} if isinstance(value, dict) else {"name": name, "value": value}
    )


def _body(words: Mapping[str, Any]) -> bytes | None:
    body = words.get("body")
    if isinstance(body, str) and body.startswith(NESTED):
        levels = int(body.removeprefix(NESTED))
        body = "[" * levels + "]" * levels
    return None if body is None else str(body).encode()


def _coding(protocol: str, coding: str) -> dict[str, Any]:
    if protocol == "MQTT/3.1.1":
        raise RuleError("MQTT/3.1.1 has no place for a content coding")
    if protocol == "AMQP/1.0":
        return {"properties": {"content-encoding": coding}}
    return {TEXTS[protocol]: [_entry("Content-Encoding" if protocol == "HTTP" else "content-encoding", coding)]}


def _named(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the attributes of an event: the core ones unless they are given or null."""
    return {name: value for name, value in {**CORE, **(given or {})}.items() if value is not None}


def _structured(attributes: Mapping[str, str], data: bytes | None, content: str | None) -> bytes:
    text = json.dumps(attributes)
    if data is None:
        return text.encode()
    raw = data.decode()
    media = (content or "application/json").partition(";")[0].lower()
    return f'{text[:-1]}, "data": {raw if media.endswith("json") else json.dumps(raw)}}}'.encode()


def _binary(protocol: str, attributes: Mapping[str, str]) -> dict[str, Any]:
    member, prefix = TEXTS[protocol], PREFIXES[protocol]
    encoded = {
        f"{prefix}{name}": quote(value, safe=VISIBLE) if protocol in ENCODED else value
        for name, value in attributes.items()
    }
    if member == "application-properties":
        return {member: encoded}
    return {member: [{"name": name, "value": value} for name, value in encoded.items()]}


def _media(protocol: str, media: str | None) -> dict[str, Any]:
    if media is None or protocol == "MQTT/3.1.1":
        return {}
    if protocol == "AMQP/1.0":
        return {"properties": {"content-type": media}}
    return (
        {"content_type": media} if protocol == "MQTT/5.0" else {"headers": [{"name": "content-type", "value": media}]}
    )


FOLDER: Final = Path(__file__).resolve().parents[1] / "conformance" / "rules"
INPUTS: Final = frozenset(
    {"text", "other", "event", "structured", "batch", "content", "media", "body", "body_base64", "native", "coding"}
    | {"endpoint", "protocol", "time"}
)
OUTCOME: Final = frozenset(
    {"routed", "ambiguous", "context", "cloudevent", "exactly", "data", "dead", "nearest", "names"}
)
ABOUT: Final = frozenset({"sign", "bug", "events"})
CASE: Final = frozenset(
    {"protocols", "catalog", "messages", "group", "endpoint", "given", "records", "settings", "self"}
)
PREFIXED: Final = ("messagegroups", "endpoints", "schemagroups")
ANY: Final = object()
"""A body that a case says nothing about."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule that decides something. ``inapplicable`` says why a protocol cannot have it."""

    id: str
    title: str
    file: str
    inapplicable: Mapping[str, str]
    cases: Sequence[Mapping[str, Any]]

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols it applies to."""
        return tuple(each for each in PROTOCOLS if each not in self.inapplicable)


@dataclass(frozen=True, slots=True)
class Expected:
    """The outcome due to one record, or to one event of a batch; ``message`` is None for a dead letter.

    ``nearest`` and ``names`` (texts in the detail of a dead letter) are None and empty when a case leaves them open.
    """

    message: str | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    cloudevent: Mapping[str, str] = field(default_factory=dict)
    data: Any = ANY
    reason: str | None = None
    nearest: Sequence[tuple[str, tuple[str, ...]]] | None = None
    names: Sequence[str] = ()
    ambiguous: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One record of one rule for one protocol. ``bugs`` say by way of judging what makes the outcome wrong."""

    rule: str
    protocol: str
    place: str
    prefix: str
    record: Mapping[str, Any]
    expected: Sequence[Expected]
    batch: bool
    positive: bool
    settings: Settings
    bugs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Settings:
    """What of the settings decides outcomes."""

    hop_by_hop: bool = False
    validate: Validation = "ambiguous"
    framing: Framing = "auto"
    ambiguous: Ambiguous = "dead-letter"
    schema_registry: KnownIds | None = None
    framing_ids: str = "any"

    @property
    def frames(self) -> FrameSettings:
        """How bodies of Kafka begin, and who knows their ids."""
        return FrameSettings(self.framing, self.schema_registry, self.framing_ids == "require")


def _settings(given: Mapping[str, Any]) -> Settings:
    registry = given.get("schema_registry")
    return Settings(**{**given, "schema_registry": None if registry is None else known_ids(registry)})


@dataclass(slots=True)
class Suite:
    """All samples, and one catalog with the definitions of all of them."""

    rules: Sequence[Rule]
    samples: list[Sample] = field(default_factory=list)
    documents: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """By the address that each gives itself, which is empty for most."""

    def catalog(self) -> Catalog:
        """Return the catalog of all cases."""
        documents = []
        for number, (address, document) in enumerate(self.documents.items()):
            tree: dict[str, Any] = {name: members for name, members in document.items() if members}
            documents.append(Document(f"rules{number}.json", tree | ({"self": address} if address else {})))
        return build_catalog(documents, Findings())


def read_rules(folder: Path = FOLDER) -> list[Rule]:
    """Read the files of rules, in the order of their names; an id that occurs twice or an unknown word is an error."""
    rules: dict[str, Rule] = {}
    for path in sorted(folder.glob("*.yaml")):
        for entry in read_cases(path):
            rule = _rule(entry, path.name)
            if rule.id in rules:
                raise RuleError(f"{path.name}: {rule.id} is already in {rules[rule.id].file}; choose another id")
            rules[rule.id] = rule
    return list(rules.values())


def _rule(entry: Mapping[str, Any], file: str) -> Rule:
    _known(entry, {"id", "title", "inapplicable", "cases"}, f"{file}: {entry.get('id')}")
    reasons = {each: why for names, why in entry.get("inapplicable", {}).items() for each in names.split()}
    rule = Rule(entry["id"], entry["title"], file, reasons, entry["cases"])
    wrong = [each for each in reasons if each not in PROTOCOLS]
    if wrong:
        raise RuleError(f"{file}: {rule.id} names {wrong}; protocols are {', '.join(PROTOCOLS)}")
    for number, case in enumerate(rule.cases):
        where = f"{file}: {rule.id} case {number}"
        _known(case, CASE, where)
        for record in case["records"]:
            _known(record, INPUTS | OUTCOME | ABOUT, where)
    return rule


def _known(entry: Mapping[str, Any], words: frozenset[str] | set[str], where: str) -> None:
    unknown = sorted(set(entry) - words)
    if unknown:
        raise RuleError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(words))}")


def suite_of(rules: Sequence[Rule]) -> Suite:
    """Render every case for every protocol it is for."""
    suite = Suite(rules)
    for rule in rules:
        for number, case in enumerate(rule.cases):
            for protocol in case.get("protocols", rule.protocols):
                prefix = f"c{len(suite.samples):04}."
                try:
                    _add_catalog(suite, case, protocol, prefix)
                    suite.samples.extend(_samples(rule, case, number, protocol, prefix))
                except RuleError as error:
                    raise RuleError(f"{rule.file}: {rule.id} case {number} for {protocol}: {error}") from error
    return suite


def _add_catalog(suite: Suite, case: Mapping[str, Any], protocol: str, prefix: str) -> None:
    catalog = case.get("catalog") or {
        "messagegroups": {"g": {**case.get("group", {}), "messages": case["messages"]}},
        "endpoints": {"e": {"usage": ["consumer"], "messagegroups": ["/messagegroups/g"], **case.get("endpoint", {})}},
    }
    expanded = _expanded(catalog, protocol, prefix)
    document = suite.documents.setdefault(case.get("self", ""), {name: {} for name in PREFIXED})
    for name in PREFIXED:
        document[name].update({f"{prefix}{key}": body for key, body in expanded.get(name, {}).items()})


def _expanded(tree: Any, protocol: str, prefix: str) -> Any:
    """Return a part of a catalog with ``where`` and ``$protocol`` rendered and references prefixed."""
    if isinstance(tree, list):
        return [_expanded(each, protocol, prefix) for each in tree]
    if isinstance(tree, str):
        for collection in PREFIXED:
            tree = tree.replace(f"/{collection}/", f"/{collection}/{prefix}")
        return tree.replace("$protocol", protocol).replace("$foreign", "KAFKA" if protocol == "HTTP" else "HTTP")
    if not isinstance(tree, dict):
        return tree
    made = {name: _expanded(value, protocol, prefix) for name, value in tree.items()}
    if "where" in made:
        made["protocoloptions"] = merged(options_of(protocol, made.pop("where")), made.get("protocoloptions", {}))
        made.setdefault("protocol", protocol)
    return made


def _samples(rule: Rule, case: Mapping[str, Any], number: int, protocol: str, prefix: str) -> Iterator[Sample]:
    for place, written in enumerate(case["records"]):
        words = merged(case.get("given", {}), written)
        rendered = render(protocol, words)
        endpoint = f"/endpoints/{prefix}{words.get('endpoint', 'e')}"
        record: dict[str, Any] = {"endpoint": endpoint, "protocol": words.get("protocol", protocol), "time": RECEIVED}
        record["native"] = _placed(rendered.native, protocol, prefix, place)
        if rendered.body is not None:
            record["body"] = rendered.body.decode()
        if "body_base64" in words:
            record["body_base64"] = words["body_base64"]
        batch = "events" in words
        attributes = rendered.events if batch else (rendered.attributes,)
        data = base64.b64decode(words["body_base64"]) if "body_base64" in words else rendered.data
        told = words["events"] if batch else [words]
        if len(told) != len(attributes):
            raise RuleError(f"record {place} has {len(attributes)} events and outcomes for {len(told)}")
        expected = tuple(
            _expected(each, protocol, words, own, ANY if batch else data)
            for each, own in zip(told, attributes, strict=True)
        )
        positive = any(each.message for each in expected) if "sign" not in words else words["sign"] == "positive"
        yield Sample(
            rule.id,
            protocol,
            f"{rule.file}: {rule.id} case {number} record {place} for {protocol}",
            prefix,
            record,
            expected,
            batch,
            positive,
            _settings(case.get("settings", {})),
            words.get("bug", {}),
        )


def _placed(native: dict[str, Any], protocol: str, prefix: str, offset: int) -> dict[str, Any]:
    """Give a Kafka record the place that a broker would."""
    if protocol != "KAFKA":
        return native
    return {"topic": f"{prefix}e", "partition": 0, "offset": offset, "timestamp": TIMESTAMP, **native}


def _expected(
    told: Mapping[str, Any], protocol: str, words: Mapping[str, Any], attributes: Mapping[str, str] | None, data: Any
) -> Expected:
    if "dead" in told:
        nearest = told.get("nearest")
        if nearest is not None:
            nearest = [(name, _failed(protocol, properties)) for name, properties in nearest.items()]
        return Expected(reason=told["dead"], nearest=nearest, names=told.get("names", ()))
    if "routed" not in told:
        raise RuleError("a record needs routed or dead")
    base: Mapping[str, Any] = (
        attributes
        if attributes is not None
        else {
            "specversion": "1.0",
            "id": POSITION,
            "source": f"/endpoints/{words.get('endpoint', 'e')}",
            "type": told["routed"].rpartition("/")[2],
            "time": TIME,
            **({"datacontenttype": words["content"]} if "content" in words else {}),
        }
    )
    event = {name: text for name, text in {**base, **told.get("cloudevent", {})}.items() if text is not None}
    event = {name: TIMES.get(protocol, RECEIVED) if text == TIME else text for name, text in event.items()}
    if "data" in told:
        data = None if told["data"] is None else str(told["data"]).encode()
    return Expected(
        told["routed"], told.get("context", {}), told.get("exactly", event), data, ambiguous=told.get("ambiguous")
    )


def _failed(protocol: str, properties: Any) -> tuple[str, ...]:
    listed = properties if isinstance(properties, list) else [properties]
    return tuple(sorted(property_of(protocol, each) for each in listed))


def line_of(sample: Sample) -> str:
    """Return the record as ``match`` reads it."""
    return json.dumps(sample.record)


def without_prefix(sample: Sample, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outcome with the ids that the case wrote."""
    return cast(dict[str, Any], json.loads(json.dumps(outcome).replace(sample.prefix, "")))
