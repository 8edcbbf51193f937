"""Each case of ``tests/cases/sinks/definitions.yaml``: messages for a producer endpoint, shaped by its definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from bindings.amqp.publisher import EncodingError, encode_message
from bindings.amqp.values import decode_message
from bindings.protocols import BINDINGS
from bindings.sending import Outbound
from catalog.load import load
from catalog.model import Catalog
from router.errors import SinkError
from router.settings import load_settings
from router.settings.sinks.messages import NatsSink
from router.sinks.contract import check_endpoints
from router.sinks.messages.definitions import EndpointComposer, make_composer
from router.sinks.messages.sink import HeaderForwarder, RoutedEvent, UnsendableMessage
from tests.support.cases import read_cases
from tests.support.commands import fits

CASES: Final = Path(__file__).resolve().parents[4] / "cases" / "sinks" / "definitions.yaml"
NAMED: Final = {"specversion": "1.0", "id": "1", "source": "/plants/p1", "type": "T"}


def load_catalog(folder: Path, endpoint: dict[str, Any], messages: dict[str, Any]) -> Catalog:
    document = {
        "messagegroups": {
            "G": {"messages": {name: {"envelope": "CloudEvents/1.0", **each} for name, each in messages.items()}}
        },
        "endpoints": {"out": {"usage": "producer", "messagegroups": ["/messagegroups/G"], **endpoint}},
    }
    (folder / "c.json").write_text(json.dumps(document))
    return load([folder / "c.json"])


def event_of(send: dict[str, Any]) -> RoutedEvent:
    protocol, native = send.get("native", ("", None))
    given = (send.get("message", "/m"), "/endpoints/in", "e", "t-0-1", send.get("context", {}))
    source = (protocol, json.dumps(native)) if protocol else ()
    return RoutedEvent({**NAMED, **send.get("attributes", {})}, send.get("data", "{}").encode(), *given, *source)


def check_message(send: dict[str, Any], made: Outbound | UnsendableMessage) -> None:
    if "refused" in send:
        assert isinstance(made, UnsendableMessage) and send["refused"] in str(made), made
        return
    assert isinstance(made, Outbound), made
    assert made.address == send.get("address", made.address)
    parts = {part.key: part for part in made.parts}
    for key, value in send.get("parts", {}).items():
        part = parts.get(key)
        assert (part and (part.value if isinstance(value, bytes) else part.text)) == value, (key, part)
    assert fits(send.get("body", {}), json.loads(made.body or b"{}"))
    if "unencodable" in send:
        with pytest.raises(EncodingError) as caught:
            encode_message(made)
        assert send["unencodable"] in str(caught.value)
    elif "amqp" in send:
        assert fits(send["amqp"], BINDINGS["AMQP/1.0"].build(decode_message(encode_message(made)).parts))


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_messages_are_as_their_case_says(case: dict[str, Any], tmp_path: Path) -> None:
    catalog = load_catalog(tmp_path, case["endpoint"], case["messages"])
    endpoint = catalog.endpoints["/endpoints/out"]
    binding = BINDINGS[endpoint.protocol or ""]
    options = case.get("compose", {})
    if options.get("passing"):
        options = {**options, "passing": HeaderForwarder(binding)}
    composer = EndpointComposer(catalog, endpoint, binding, **options)
    for _ in range(2):  # What was found out before is found again.
        for send, made in zip(case["sends"], composer.compose([event_of(each) for each in case["sends"]]), strict=True):
            check_message(send, made)


def test_a_stream_carries_no_subject_to_reply_to(tmp_path: Path) -> None:
    asks = {"protocol": "NATS", "protocoloptions": {"reply-to": {"value": "answers"}}}
    found = load_catalog(tmp_path, {"protocol": "NATS"}, {"T": asks})
    endpoint = found.endpoints["/endpoints/out"]
    made = make_composer(NatsSink(type="nats", endpoint=endpoint.xid, jetstream=False), endpoint, found)
    assert not isinstance(made.compose([event_of({})])[0], UnsendableMessage)
    stored = make_composer(NatsSink(type="nats", endpoint=endpoint.xid), endpoint, found)
    (refused,) = stored.compose([event_of({})])
    assert "reply-to should be 'answers' and is None" in str(refused)


@pytest.mark.parametrize(
    ("sink", "fault"),
    [
        ("{type: http, endpoint: /endpoints/none}", "the catalog has no endpoint /endpoints/none"),
        ("{type: nats, endpoint: /endpoints/out}", "/endpoints/out has HTTP, but the sink is nats"),
        ("{type: http, endpoint: /endpoints/in}", "/endpoints/in is for consumer"),
    ],
)
def test_endpoints_that_cannot_be_sent_to(tmp_path: Path, sink: str, fault: str) -> None:
    endpoints = {"out": {"usage": "producer", "protocol": "HTTP"}, "in": {"usage": "consumer", "protocol": "HTTP"}}
    (tmp_path / "c.json").write_text(json.dumps({"endpoints": endpoints}))
    (tmp_path / "r.yaml").write_text(f"sinks: {{s: {sink}}}\nroutes: [{{to: s}}]")
    with pytest.raises(SinkError, match=fault):
        check_endpoints(load_settings(tmp_path / "r.yaml", {}), load([tmp_path / "c.json"]))
