"""The examples of ``deploy/examples``: where they are, and their senders."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "deploy" / "examples"
NAMES: Final = ("amqp", "http", "kafka", "mqtt", "nats")
EXPECTED: Final[dict[str, list[str]]] = {
    "amqp": ["com.example.workshop.ordered", "com.example.workshop.urgent", "no-match"],
    "http": ["com.example.shop.order.placed"] * 3 + ["no-match", "schema-violation"],
    "kafka": ["com.example.order.paid", "com.example.order.placed", "com.example.till.sale", "no-match"],
    "mqtt": ["com.example.plant.pressure", "com.example.plant.reading", "com.example.plant.temperature", "no-match"],
    "nats": ["com.example.fleet.moved", "com.example.fleet.parked", "no-match"],
}
"""What the messages of each become, by type or reason, sorted."""


def sender(name: str) -> Any:
    """Load ``send.py`` of an example; it takes its broker from the environment as that is now."""
    spec = importlib.util.spec_from_file_location(f"send_{name}", EXAMPLES / name / "send.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
