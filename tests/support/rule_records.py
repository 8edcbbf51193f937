"""A record or constraint that a rule writes once, as each protocol has it.

The words are those of tests/conformance/rules/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

POSITION: Final = "$position"
TIME: Final = "$time"
RECEIVED: Final = "2026-01-02T03:04:05.000000Z"
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
