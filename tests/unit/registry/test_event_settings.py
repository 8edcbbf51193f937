"""Subscribers in the settings of a registry: what they get, where it goes, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from registry.delivery.subscriptions import SubscriberDelivery, sources_of
from registry.store.history import OutboxRow
from router.commands.registry.settings import load_registry
from tests.support.cases import read_cases
from tests.support.registry import client_of
from tests.support.subscriptions import agreeable, until_taken
from tests.support.web import Webhook

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[2] / "cases" / "subscriptions.yaml")

SOURCES = sources_of("https://reg.example", "")
KAFKA = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "changes.{type}"}
ROW = OutboxRow(7, "i", "2026-01-01T00:00:00Z", "io.xregistry.resource.created", "/messagegroups/g/messages/m", None)


def settings(folder: Path, **subscriber: Any) -> Path:
    path = folder / "registry.yaml"
    path.write_text(yaml.safe_dump({"open": True, "events": {"subscribers": {"audit": subscriber}}}))
    return path


def delivery(folder: Path, **subscriber: Any) -> SubscriberDelivery:
    _, found = load_registry(settings(folder, **subscriber), {"SECRET": "hush"})
    assert found.delivery is not None
    return found.delivery.subscribers["audit"]


def test_a_message_for_kafka_has_its_topic_and_the_entity_as_key(tmp_path: Path) -> None:
    made = delivery(tmp_path, to=KAFKA)
    (event,) = made.event_filter.matching_events(ROW, SOURCES)
    message = made.composer.build_message(event)
    assert message.address == "changes.io.xregistry.resource.created"
    assert {"key": ROW.subject.encode(), "headers.ce_type": ROW.type.encode()}.items() <= {
        part.key: part.value for part in message.parts
    }.items()
    assert (message.lane, message.id) == (ROW.subject, "i-7")


@pytest.mark.parametrize(("wanted", "count"), CASES["wanted"])
def test_what_a_subscriber_wants(tmp_path: Path, wanted: dict[str, Any], count: int) -> None:
    assert len(delivery(tmp_path, to=KAFKA, **wanted).event_filter.matching_events(ROW, SOURCES)) == count


def test_a_webhook_of_the_settings_is_told(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook:
        to = {"type": "http", "url": f"{hook.url}/hook", "webhook_origin": "reg.example", "headers": {"X-Own": "yes"}}
        path = settings(tmp_path, to=to, types="io.xregistry.group.created")
        path.write_text(f"{path.read_text()}http: {{port: 0}}\n")
        with client_of(load_registry(path)[1], timeout=60) as client:
            assert client.put("/messagegroups/g", json={}).is_success
            until_taken(hook, 1)
    assert hook.seen[0].method == "OPTIONS"
    assert hook.taken[0].header("X-Own") == "yes"
