"""Dead letters as sinks write them, and settings of a router that has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import yaml

from router.settings import Settings, load_settings
from router.sinks import Commit, open_sink
from router.sinks.jsonlines import DEAD_LETTER

WRITTEN: Final = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
SINKS: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {"type": "table", "path": "./delta"},
    "parquet": {"type": "table", "format": "parquet", "path": "./parquet"},
    "lines": {"type": "jsonl", "path": "./lines"},
}
"""A sink of each kind on disk."""
BUS: Final = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "dead"}
"""A sink that nobody answers at."""
CATALOG: Final = {
    "endpoints": {
        "till": {
            "usage": ["consumer"],
            "protocol": "HTTP",
            "protocoloptions": {"endpoints": [{"uri": "http://127.0.0.1/till"}]},
            "messagegroups": ["/messagegroups/G"],
        }
    },
    "messagegroups": {
        "G": {
            "messages": {
                "Sale": {
                    "envelope": "CloudEvents/1.0",
                    "envelopemetadata": {"type": {"value": "sale"}, "subject": {"value": "shop/{shop}"}},
                }
            }
        }
    },
}


def letter_id(number: int) -> str:
    """Return the id of letter *number*: all differ in their first characters."""
    return f"{number:04x}{'0' * 28}"


def row(number: int, **changes: Any) -> dict[str, Any]:
    """Return one dead letter as a row of :data:`DEAD_LETTER`."""
    nearest = [
        {
            "message": "/messagegroups/G/messages/Sale",
            "mismatches": [{"property": "type", "expected": "sale", "found": "sold"}],
        }
    ]
    native = {
        "method": "POST",
        "path": "/till",
        "headers": [
            {"name": "ce-specversion", "value": "1.0"},
            {"name": "ce-type", "value": "sold"},
            {"name": "ce-source", "value": "/tills/1"},
            {"name": "ce-id", "value": str(number)},
            {"name": "ce-subject", "value": "shop/7"},
            {"name": "content-type", "value": "application/json"},
        ],
    }
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
        catalog.write_text(json.dumps(CATALOG))
    told = {
        "catalog": {"source": "catalog.json"},
        "sinks": {
            "events": {"type": "jsonl", "path": "./events"},
            **{name: dict(SINKS.get(name, BUS)) for name in sinks},
        },
        "routes": [{"to": "events"}],
        "dead_letters": {"sinks": list(sinks), **dead_letters},
    }
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
