"""Quix Streams as one writes it by hand for a catalog of the load, without a router.

Definitions are found by type, or by the header ``kind`` where records are no CloudEvents; templates are regular
expressions. Events go to a topic for each message group with headers of lineage, the rest to one for dead letters.
It runs in an environment of its own (``quix_requirements.txt``), and so imports nothing of this project.
Arguments: bootstrap servers, catalog, topic, prefix of the topics for events, topic of dead letters, a folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from quixstreams import Application, message_context

ENDPOINT: Final = "/endpoints/plant"
EPOCH: Final = "0123456789abcdef"
PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
Headers = list[tuple[str, bytes | None]]


class Invalid(Exception):
    """A record that is not a valid CloudEvent."""


@dataclass(frozen=True, slots=True)
class Template:
    """A URI template of a property."""

    name: str
    pattern: re.Pattern[str]
    placeholders: list[str]

    @classmethod
    def of(cls, name: str, text: str) -> Template:
        literals = map(re.escape, PLACEHOLDER.split(text)[::2])
        return cls(name, re.compile("([^/]+?)".join(literals)), PLACEHOLDER.findall(text))

    def read(self, text: str | None, context: dict[str, str]) -> bool:
        """Add the values of the placeholders; false if the text does not match, or a value differs from another's."""
        found = self.pattern.fullmatch(text or "")
        if found is None:
            return False
        pairs = zip(self.placeholders, found.groups(), strict=True)
        return all(context.setdefault(name, value) == value for name, value in pairs)


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition of the catalog."""

    xid: str
    group: str
    type: str
    templates: list[Template]


class Definitions:
    """Those of a catalog, by what finds them."""

    def __init__(self, catalog: dict[str, Any]) -> None:
        self.events: dict[str, Definition] = {}
        self.natives: dict[str, Definition] = {}
        self.groups = list(catalog["messagegroups"])
        for group, members in catalog["messagegroups"].items():
            for name, told in members["messages"].items():
                self._add(group, f"/messagegroups/{group}/messages/{name}", told)

    def _add(self, group: str, xid: str, told: dict[str, Any]) -> None:
        attributes = {name: each["value"] for name, each in told["envelopemetadata"].items()}
        kind = attributes.pop("type")
        if options := told.get("protocoloptions"):
            templates = [Template.of("key", options["key"]["value"])]
            self.natives[options["headers"][0]["value"]] = Definition(xid, group, kind, templates)
        else:
            templates = [Template.of(*each) for each in attributes.items()]
            self.events[kind] = Definition(xid, group, kind, templates)

    def match(self, key: bytes | None, headers: dict[str, bytes | None], context: dict[str, str]) -> Definition | None:
        """Return the definition of a record, and the values of its placeholders in *context*.

        Raises:
            Invalid: it is not a valid CloudEvent.
        """
        event = "ce_specversion" in headers
        if event:
            definition = self.events.get(required(headers, "ce_type"))
            required(headers, "ce_id")
            required(headers, "ce_source")
        elif (decode(headers.get("content-type")) or "").startswith("application/cloudevents"):
            raise Invalid  # Structured mode is another program.
        else:
            definition = self.natives.get(decode(headers.get("kind")) or "")
        if definition is None:
            return None
        for each in definition.templates:
            if not each.read(decode(headers.get(f"ce_{each.name}") if event else key), context):
                return None
        return definition


def required(headers: dict[str, bytes | None], name: str) -> str:
    text = decode(headers.get(name))
    if not text:
        raise Invalid
    return text


def decode(content: bytes | None) -> str | None:
    """Return the text of bytes; None if they are none."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def instant(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def main(bootstrap: str, catalog: str, topic: str, out: str, dead: str, _: str) -> None:
    definitions = Definitions(json.loads(Path(catalog).read_bytes()))
    app = Application(bootstrap, consumer_group="quix-by-hand", auto_offset_reset="earliest", loglevel="WARNING")
    as_bytes: dict[str, Any] = {"key_serializer": "bytes", "value_serializer": "bytes"}
    events = {group: app.topic(out + group, **as_bytes) for group in definitions.groups}
    letters = app.topic(dead, **as_bytes)

    def add_headers(value: bytes, key: bytes | None, timestamp: int, headers: Headers | None) -> Headers:
        came, at = headers or [], message_context()
        position = f"{at.topic}-{at.partition}-{at.offset}"
        context: dict[str, str] = {}
        added: dict[str, str] = {}
        reason, definition = "no-match", None
        try:
            definition = definitions.match(key, dict(came), context)
        except Invalid:
            reason = "invalid-cloudevent"
        if definition is None:
            added["xrouter-letter"] = hashlib.sha256(position.encode()).hexdigest()[:32]
            added["xrouter-reason"] = reason
            added["xrouter-received"] = instant(timestamp)
            added["xrouter-failed"] = datetime.now(UTC).isoformat()
        else:
            if definition.templates[0].name == "key":
                subject = "/".join(context.values())
                added |= {"ce_specversion": "1.0", "ce_id": position, "ce_type": definition.type}
                added |= {"ce_source": ENDPOINT, "ce_subject": subject, "ce_partitionkey": subject}
                added["ce_time"] = instant(timestamp)
            added["xrouter-message"] = definition.xid
            added["xrouter-context"] = json.dumps(context)
            added["xrouter-endpoint"] = ENDPOINT
        added |= {"xrouter-epoch": EPOCH, "xrouter-position": position}
        return [*came, *((name, text.encode()) for name, text in added.items())]

    def choose_topic(value: bytes, key: bytes | None, timestamp: int, headers: Headers) -> Any:
        message = dict(headers).get("xrouter-message")
        return letters if message is None else events[message.decode().split("/")[2]]

    rows = app.dataframe(app.topic(topic, key_deserializer="bytes", value_deserializer="bytes"))
    rows.set_headers(add_headers).to_topic(choose_topic)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
