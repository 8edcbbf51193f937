"""Frames of whose ids nothing is known are told of by ``check`` and ``doctor``; a clean configuration stays clean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.commands.check.command import collect_findings

AVRO: dict[str, Any] = {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]}


def found(
    folder: Path, source: str = "", more: str = "", schema: Any = AVRO, labels: str = ""
) -> list[tuple[str, str]]:
    """Return severity and text of what check says of ids."""
    version = {"format": "Avro" if schema is AVRO else "JsonSchema/draft-07", "schema": schema}
    version |= {"labels": {"schemaid": labels}} if labels else {}
    message = {"protocol": "KAFKA", "dataschemauri": "/schemagroups/s/schemas/r"}
    options = {"endpoints": [{"uri": "kafka://localhost:1"}], "options": {"topic": "t"}}
    endpoint = {"usage": ["consumer"], "protocol": "KAFKA", "protocoloptions": options}
    form = {
        "specversion": "1.0-rc2",
        "endpoints": {"e": {**endpoint, "messagegroups": ["/messagegroups/g"]}},
        "messagegroups": {"g": {"messages": {"m": message}}},
        "schemagroups": {"s": {"schemas": {"r": {"versions": {"1": version}}}}},
    }
    catalog, config = folder / "catalog.json", folder / "router.yaml"
    catalog.write_text(json.dumps(form))
    config.write_text(f"catalog: {{source: catalog.json}}\nsources: [{{endpoint: /endpoints/e{source}}}]\n{more}\n")
    findings, status = collect_findings([str(catalog)], config)
    assert status == 0, findings
    return [(each.severity, each.message) for each in findings if each.rule == "schema-ids"]


def test_frames_are_read_whatever_their_id(tmp_path: Path) -> None:
    ((severity, text),) = found(tmp_path)
    assert severity == "info"
    assert "read with the schema of /messagegroups/g/messages/m, whatever the id" in text
    ((severity, _),) = found(tmp_path, ", framing: confluent")
    assert severity == "warning"
    ((severity, _),) = found(tmp_path, ", framing: confluent", schema={"type": "object"})
    assert severity == "warning"


@pytest.mark.parametrize(
    "known",
    [
        {"source": ", framing: none"},
        {"source": ", framing: confluent, framing_ids: require"},
        {"more": "schema_registries: {lake: {url: 'https://r'}}"},
        {"labels": "12"},
        {"schema": {"type": "object"}},
    ],
)
def test_nothing_is_told_where_ids_decide_or_there_are_none(tmp_path: Path, known: dict[str, Any]) -> None:
    assert not found(tmp_path, **known)
