"""A plant whose records come by Kafka, with a catalog and settings for ``xrouter plan``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

READING: Final = "/messagegroups/Plant/messages/Reading"
ALARM: Final = "/messagegroups/Plant/messages/Alarm"
VALVE: Final = "/messagegroups/Plant/messages/Valve"


def message(type_: str, **options: Any) -> dict[str, Any]:
    """A definition of mapped Kafka records, told apart by a header."""
    return {
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {"type": {"value": type_}, "subject": {"value": "{line}", "type": "uritemplate"}},
        "protocol": "KAFKA",
        "protocoloptions": {
            "key": {"value": "lines/{line}", "type": "uritemplate"},
            "headers": [{"name": "kind", "value": type_}],
            **options,
        },
    }


def catalog() -> dict[str, Any]:
    """An endpoint of Kafka with three definitions."""
    return {
        "endpoints": {
            "plant": {
                "usage": ["consumer"],
                "protocol": "KAFKA",
                "protocoloptions": {"endpoints": [{"uri": "127.0.0.1:1"}], "options": {"topic": "plant"}},
                "messagegroups": ["/messagegroups/Plant"],
            }
        },
        "messagegroups": {
            "Plant": {"messages": {"Reading": message("reading"), "Alarm": message("alarm"), "Valve": message("valve")}}
        },
    }


def record(kind: str, line: str = "7", **headers: str) -> dict[str, Any]:
    """A record of the plant, of that kind and line."""
    listed = [{"name": name, "value": value} for name, value in {"kind": kind, **headers}.items()]
    return {"protocol": "KAFKA", "native": {"topic": "plant", "key": f"lines/{line}", "headers": listed}, "body": "x"}


RECORDS: Final = [record("reading"), record("reading", "8"), record("alarm"), record("valve"), record("door")]


def lines(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    """Write records as `match` takes them."""
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return path


def settings(folder: Path, **more: Any) -> Path:
    """Write settings that route alarms elsewhere."""
    told = {
        "catalog": {"source": "catalog.json"},
        "sinks": {"events": {"type": "jsonl"}, "alarms": {"type": "jsonl"}, "dead": {"type": "table", "path": "dead"}},
        "routes": [{"when": {"message": "*/Alarm*"}, "to": ["alarms"]}, {"to": ["events"]}],
        "dead_letters": {"sinks": ["dead"]},
        "state": "state",
        **more,
    }
    file = folder / "router.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


def messages(tree: dict[str, Any]) -> dict[str, Any]:
    """The definitions of the plant in its catalog."""
    found: dict[str, Any] = tree["messagegroups"]["Plant"]["messages"]
    return found
