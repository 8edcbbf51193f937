"""A catalog of many definitions for load tests, made by rule: ``python -m tests.support.large_catalog 200``.

Definitions come in fours: a CloudEvent of any protocol, one over Kafka that derives from it, a Kafka record told by its
headers alone, and an HTTP message told by its path.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

KINDS: Final = 4


def large_catalog(definitions: int = 64, *, topic: str = "load") -> dict[str, Any]:
    """Return a document of at least *definitions* definitions; all Kafka ones are expected on *topic*."""
    groups: dict[str, Any] = {}
    for number in range(-(-definitions // KINDS)):
        group = f"Load.G{number // 8}"
        messages = groups.setdefault(group, {"envelope": "CloudEvents/1.0", "messages": {}})["messages"]
        messages.update(_messages(number, group, topic))
    listed = [f"/messagegroups/{group}" for group in groups]
    kafka = {"usage": ["consumer"], "protocol": "KAFKA", "protocoloptions": {"options": {"topic": topic}}}
    http = {"usage": ["consumer"], "protocol": "HTTP", "protocoloptions": {"options": {"path": "/load/{kind}/{unit}"}}}
    return {
        "specversion": "1.0-rc2",
        "endpoints": {"kafka": {**kafka, "messagegroups": listed}, "http": {**http, "messagegroups": listed}},
        "messagegroups": groups,
    }


def _messages(number: int, group: str, topic: str) -> dict[str, Any]:
    base = f"Load.Event{number}"
    xid = f"/messagegroups/{group}/messages/{base}"
    kind = f"com.example.load.k{number}"
    attributes = {
        "type": {"value": kind},
        "source": {"value": "/units/{unit}", "type": "uritemplate"},
        "subject": {"value": "{unit}/{item}", "required": True},
    }
    native = {
        "type": {"value": f"{kind}.native"},
        "source": {"value": "/units/{unit}", "type": "uritemplate"},
    }
    return {
        base: {"envelopemetadata": attributes, "datacontenttype": "application/json"},
        f"{base}.Kafka": {
            "basemessage": xid,
            "protocol": "KAFKA",
            "envelopemetadata": {"type": {"value": f"{kind}.kafka"}},
            "protocoloptions": {"topic": {"value": topic}, "key": {"value": "{unit}"}},
        },
        f"{base}.Native": {
            "protocol": "KAFKA",
            "envelopemetadata": native,
            "protocoloptions": {
                "key": {"value": "{unit}"},
                "headers": [
                    {"name": "kind", "value": f"k{number}"},
                    {"name": "lot", "type": "integer", "required": True},
                ],
            },
        },
        f"{base}.Http": {
            "protocol": "HTTP",
            "envelopemetadata": {**native, "type": {"value": f"{kind}.http"}},
            "protocoloptions": {"path": {"value": f"/load/k{number}/{{unit}}", "type": "uritemplate"}},
        },
    }


if __name__ == "__main__":
    json.dump(large_catalog(int(sys.argv[1]) if len(sys.argv) > 1 else 64), sys.stdout, indent=1)
