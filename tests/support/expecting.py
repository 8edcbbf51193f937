"""Plans of a few endpoints that expect a few definitions."""

from __future__ import annotations

from pathlib import Path

from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.load import build
from router.evaluation.plan import Plan
from router.settings import settings_from_dict


def plan(*names: str, endpoints: str = "ab") -> Plan:
    """Return a plan whose endpoints all expect definitions of these names."""
    messages = {name: {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": name}}} for name in names}
    told = {"endpoints": [{"uri": "kafka://broker:9092"}]}
    document = {
        "messagegroups": {"g": {"messages": messages}},
        "endpoints": {
            name: {
                "usage": "consumer",
                "protocol": "KAFKA",
                "protocoloptions": {**told, "options": {"topic": name}},
                "messagegroups": ["/messagegroups/g"],
            }
            for name in endpoints
        },
    }
    sinks = {"lake": {"type": "table", "path": "lake"}}
    settings = {"sinks": sinks, "routes": [{"to": ["lake"]}]}
    return Plan(build([Document("c.json", document)], Findings()), settings_from_dict(settings, {}, Path()))
