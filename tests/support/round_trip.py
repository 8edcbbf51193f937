"""Events for every definition of a catalog, a producer endpoint to send them by, and what must come back."""

from __future__ import annotations

import base64
import json
import random
import re
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import eq
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from pydantic import Field
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from bindings.certificates import AddressForm
from bindings.envelope import AttributeRule
from bindings.gateways import EndpointSubscription, GatewayConfig, ReceivingBinding, templates_of
from bindings.parts import InboxRow, NativeForm, Part, native_of, parts_of
from bindings.protocols import BINDINGS, Binding
from bindings.sending import MessageRefusal, Outbound, Publisher, SendingBinding, Unsettled, iter_headers
from catalog.definitions.constraints import match_candidate_of
from catalog.model import Catalog, Definition, Endpoint
from catalog.protocols import properties
from catalog.record import Record
from catalog.templates import parse_template
from registry.model.attributes import model_source
from router.commands.emit.producer import EmitError, MessageProducer, encode_record_line, random_value
from router.matching.records import RecordMatcher
from router.settings.sinks.messages import MessageSink
from router.settings.values import Texts
from router.sinks.messages.sink import MESSAGE
from tests.support.cases import registered

OUT: Final = "/endpoints/out"
NOW: Final = "2026-03-04T05:06:07.008Z"
COLUMNS: Final = frozenset({"id", "source", "specversion", "type", "subject", "datacontenttype", "dataschema"})
LINEAGE: Final = "xrouter-lineage"
NOT_KEPT: Final = (
    "qos",
    "retain",
    "message_expiry_interval",
    "partition",
    "header.delivery-count",
    "header.ttl",
    "header.first-acquirer",
)
"""What brokers and protocols change on the way, by their own specifications."""


@dataclass(frozen=True, slots=True)
class Journey:
    """What is sent of one document by one protocol: rows for a sink, and the definition of each by its position."""

    catalog: Catalog
    protocol: str
    rows: pa.Table
    definitions: Mapping[str, Definition] = field(default_factory=dict)


def journey(catalog: Catalog, protocol: str, uri: str, options: Mapping[str, Any], name: str) -> Journey | None:
    """Return the journey of all definitions that the protocol can carry; None when there are none."""
    endpoint = Endpoint(OUT, ("producer",), protocol=protocol, uris=(uri,), options=dict(options))
    made: list[dict[str, Any]] = []
    carried: dict[str, Definition] = {}
    alone = replace(catalog, endpoints={}, definitions={xid: _alone(catalog, xid) for xid in catalog.definitions})
    for definition in alone.definitions.values():
        target = match_candidate_of(definition, endpoint)
        if target is None or target.protocol != protocol:
            continue
        position = f"{name}-0-{len(made)}"
        made.append(_row(alone, definition, protocol, position))
        carried[position] = definition
    if not made:
        return None
    listed = replace(endpoint, candidates=tuple(each.xid for each in carried.values()))
    sent = replace(alone, endpoints={OUT: listed})
    return Journey(sent, protocol, pa.Table.from_pylist(made, MESSAGE), carried)


def _alone(catalog: Catalog, xid: str) -> Definition:
    """Return a definition as it is without its endpoint, of which an inline one has envelope and protocol."""
    definition = catalog.definitions[xid]
    owner = catalog.endpoints.get(definition.group)
    if owner is None:
        return definition
    envelope, protocol = definition.envelope or owner.envelope, definition.protocol or owner.protocol
    return replace(definition, envelope=envelope, protocol=protocol, protocol_declared=definition.protocol is not None)


def context_of(definition: Definition, now: str = NOW) -> dict[str, str]:
    """Return a value for each placeholder, and for each option that is required without a value."""
    chooser = random.Random(definition.xid)
    context: dict[str, str] = {}
    for prop in (*definition.protocoloptions, *definition.envelopemetadata):
        template = parse_template(prop.value) if isinstance(prop.value, str) else None
        for name in template.names if template else ():
            context.setdefault(name, "".join(chooser.choices("abcdefghij0123456789", k=6)))
            if template and prop.type == "timestamp":
                context[name] = now if template.is_bare else "2026-03-04"
    for prop in definition.protocoloptions:
        if prop.value is None and prop.required:
            context.setdefault(prop.name.rpartition(".")[2], random_value(prop.type, chooser, now))
    return context


def _row(catalog: Catalog, definition: Definition, protocol: str, position: str) -> dict[str, Any]:
    context = context_of(definition)
    attributes, data = _event(catalog, definition, protocol, context)
    row: dict[str, Any] = {**dict.fromkeys(MESSAGE.names), **{name: attributes.get(name) for name in COLUMNS}}
    others = [(name, text) for name, text in attributes.items() if name not in COLUMNS and name != "time"]
    row |= {"time_text": attributes.get("time"), "extensions": others, "data": data, "position": position}
    return row | {
        "message": definition.xid,
        "endpoint": "/endpoints/in",
        "epoch": "e",
        "context": list(context.items()),
        "protocol": protocol,
        "native": "{}",
    }


def _event(
    catalog: Catalog, definition: Definition, protocol: str, context: Mapping[str, str]
) -> tuple[dict[str, str], bytes | None]:
    """Return an event that the definition takes: what ``emit`` makes, read as an event."""
    try:
        producer = MessageProducer(
            catalog, definition.xid, protocol=protocol, context=context, seed=1, clock=lambda: NOW
        )
        made = producer.make_record()
    except EmitError as error:
        raise AssertionError(f"{definition.xid}: {error}") from error
    binding = BINDINGS[protocol]
    envelope = binding.read_envelope(binding.split(made.native), made.body, lambda: producer.mode == "structured")
    if envelope.is_event:
        return dict(envelope.attributes), envelope.data
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": definition.messageid, "time": NOW}
    content = envelope.content_type
    return attributes | ({"datacontenttype": content} if content else {}), made.body


def mismatches(sent: Journey, received: Mapping[str, tuple[Sequence[Part], bytes | None]]) -> list[str]:
    """Return what of the messages, by their positions, does not match the definition they were made by."""
    alone = {
        f"{OUT}/{number}": replace(sent.catalog.endpoints[OUT], xid=f"{OUT}/{number}", candidates=(each.xid,))
        for number, each in enumerate(sent.definitions.values())
    }
    matcher = RecordMatcher(replace(sent.catalog, endpoints=alone))
    names = dict(zip(sent.definitions, alone, strict=True))
    native = BINDINGS[sent.protocol].build
    lines = [
        encode_record_line(Record(sent.protocol, native(list(parts)), body, names[position], NOW))
        for position, (parts, body) in received.items()
    ]
    outcomes = zip(received, matcher.outcomes(lines), strict=True)
    return [
        f"{sent.definitions[position].xid}: {json.dumps(outcome)}"
        for position, outcome in outcomes
        if outcome["outcome"] != "routed" and outcome["reason"] != "unmappable"
    ]


def position_of(parts: Sequence[Part]) -> str | None:
    """Return which message this is; None when it does not say."""
    text = next((part.text for part in parts if part.key.endswith(f".{LINEAGE}")), None)
    return None if text is None else str(json.loads(unquote(text))["position"])


def lost(made: Sequence[Part], came: Sequence[Part]) -> Iterator[Part]:
    """Give the parts that were sent and did not arrive as they were: bytes, kinds, AMQP types."""
    there = {(part.key, part.value) for part in came}
    for part in made:
        if part.key not in NOT_KEPT and part.key != "types" and (part.key, part.value) not in there:
            yield part


# Requests that schemathesis makes of a registry's own OpenAPI document: valid ones, and ones with something wrong.
#
# Left to itself it would never write to the same entity twice, and most requests would fail at a flag. So most ids are
# taken from a few, and most flags and conditions are left out again. Ids of subscriptions are those that were given
# out, and their sinks are at closed ports of this machine: nothing is sent to strangers.

IDS: Final = ("a", "B", "c1", "_d")
SINKS: Final = ("http://127.0.0.1:1/hook", "https://127.0.0.1:1/hook", "https://127.0.0.2:1", "http://192.0.2.1/")
"""Sinks of subscriptions, most of which a registry takes that allows 127.0.0.1."""
_MODELS: Final = ("/", "/modelsource")
_SUBSCRIPTIONS: Final = "/subscriptions"
_HELD: Final = ("not_a_server_error", "status_code_conformance")
_OF_JSON: Final = ("content_type_conformance", "response_schema_conformance")
AnyCase = Case[Any]
AnyOperation = APIOperation[Any, Any, Any, Any]


def send_random(base: str, count: int, number: int, *, every: int = 1) -> Counter[int]:
    """Send at least *count* requests to the registry at *base*; return how many had each status.

    They are of one operation of so many: to know what its requests may be takes longer than to make some.

    The same *number* makes the same requests. Whatever they change, the model is that of a new registry again
    afterwards.

    Raises:
        ExceptionGroup: answers that are a server's error, or none that the document knows, in status or body.
    """
    load_all_checks()
    document = schemathesis.openapi.from_url(f"{base}/openapi.json")
    operations: list[AnyOperation] = [each.ok() for each in document.get_all_operations()][::every]  # type: ignore[union-attr]
    statuses: Counter[int] = Counter()
    faults: dict[str, Exception] = {}
    subscribed: list[str] = []
    with requests.Session() as session:

        def send(case: AnyCase) -> None:
            _narrow(case, subscribed)
            answer = case.call(session=session)
            statuses[answer.status_code] += 1
            if case.path == _SUBSCRIPTIONS and answer.status_code == 201:
                subscribed.append(answer.json()["id"])
            try:
                case.validate_response(answer, checks=_checks(case))
            except Exception as error:
                faults.setdefault(f"{case.operation.label}: {answer.status_code}", error)
            if case.path in _MODELS and case.method != "GET" and answer.status_code < 300:
                _restore(session, base)

        rounds = 0
        while statuses.total() < count:
            left = count - statuses.total()
            for operation in operations:
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    each = max(1, left // len(operations) // 2)
                    _send_some(operation, mode, each, number + rounds, send)
            rounds += 1
    if faults:
        raise ExceptionGroup("; ".join(faults), list(faults.values()))
    return statuses


def _checks(case: AnyCase) -> Any:
    """Return what is held of an answer; of a document only its writer knows what it is."""
    answers = case.operation.definition.raw["responses"]
    is_document = "*/*" in answers.get("200", {}).get("content", {})
    return [CHECKS.get_one(name) for name in (_HELD if is_document else (*_HELD, *_OF_JSON))]


def _send_some(operation: AnyOperation, mode: GenerationMode, count: int, number: int, send: Any) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: AnyCase) -> None:
        send(case)

    try:
        run()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, operation.label  # nothing can be wrong where nothing is given


def _narrow(case: AnyCase, subscribed: list[str]) -> None:
    of_subscriptions = case.path.startswith(_SUBSCRIPTIONS)
    chance = random.Random(repr((case.path_parameters, case.query, of_subscriptions and case.body)))
    if of_subscriptions and isinstance(case.body, dict) and isinstance(case.body.get("sink"), str):
        case.body = {**case.body, "sink": chance.choice(SINKS)}
    for name in list(case.path_parameters):
        if chance.random() < 0.8:
            case.path_parameters[name] = chance.choice(subscribed[-3:] or IDS if of_subscriptions else IDS)
    for name in list(case.query):
        if chance.random() < 0.7:
            del case.query[name]
    for name in list(case.headers):
        if name.startswith("If-") and chance.random() < 0.7:
            del case.headers[name]


def _restore(session: requests.Session, base: str) -> None:
    """Give the registry its first model again; what does not fit it goes."""
    if session.put(f"{base}/modelsource", json=model_source()).ok:
        return
    for plural in session.get(f"{base}/model").json()["groups"]:
        session.delete(f"{base}/{plural}").raise_for_status()
    session.put(f"{base}/modelsource", json=model_source()).raise_for_status()


# A sixth protocol, as a folder of ``bindings/`` would hold it: PIPE, which is lines of JSON over TCP, with answers.
#
# A message goes to a *pipe*; its headers carry CloudEvents attributes under ``ce_``. The answer is ``ok``, or why the
# message will never be taken; a connection that ends says that the message is to be sent again.

PROTOCOL = "PIPE"
FORM = NativeForm(lists=("headers",))
RULE = AttributeRule(prefixes=("headers.ce_",), content_type="headers.content-type")


class PipeSending(SendingBinding):
    """An address is the name of a pipe: words between slashes."""

    family = "pipe"
    literal_rule = (re.compile(r"[a-z/-]*"), "letters, '-' and '/'")
    address_rule = (re.compile(r"[A-Za-z0-9._%-]+(?:/[A-Za-z0-9._%-]+)*"), "a pipe has words between slashes")
    max_address_bytes = 100
    address_key = "pipe"
    channel_options = frozenset({"pipe"})
    address_form = AddressForm("PIPE", {"pipe": 1}, {})


class PipePublisher:
    """Keeps :data:`~bindings.sending.Publisher`, over a connection for each call."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._place = (host, port)
        self._timeout = timeout

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages and read an answer for each."""
        settled: dict[int, MessageRefusal | None] = {}
        try:
            with (
                socket.create_connection(self._place, self._timeout) as connection,
                connection.makefile("rwb") as lines,
            ):
                for place, message in enumerate(messages):
                    lines.write(json.dumps(_form(message)).encode() + b"\n")
                    lines.flush()
                    answer = lines.readline().decode().strip()
                    if not answer:
                        raise Unsettled("the other end of the pipe is gone", settled)
                    settled[place] = None if answer == "ok" else MessageRefusal(answer)
        except OSError as error:
            raise Unsettled(f"nobody is at the other end of the pipe: {error}", settled) from error
        return [settled[place] for place in range(len(messages))]

    def close(self) -> None:
        """Nothing is kept open between two calls."""


class PipeGateway:
    """Keeps :class:`~bindings.gateways.Gateway`: names its pipes, and answers each message once it is stored."""

    def __init__(self, terms: GatewayConfig) -> None:
        self._uri = urlsplit(terms.connection.uris[0])
        self._pipes = {each.address: each.endpoint for each in terms.subscriptions}
        self._store = terms.store
        self._counters = terms.counters
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.trouble = ""

    @property
    def alive(self) -> bool:
        """Whether the far end is still there."""
        return self._thread.is_alive()

    connected = alive

    def start(self) -> None:
        """Connect."""
        self._thread.start()

    def replace_subscriptions(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Take other pipes."""
        self._pipes = {each.address: each.endpoint for each in subscriptions}

    def stop(self, grace: float) -> None:
        """Wait for the far end to have said all."""
        self._thread.join(grace)

    def _serve(self) -> None:
        place = (self._uri.hostname or "", self._uri.port or 0)
        with socket.create_connection(place) as peer, peer.makefile("rwb") as lines:
            lines.write(json.dumps({"pipe": ",".join(self._pipes)}).encode() + b"\n")
            lines.flush()
            for line in lines:
                message = json.loads(line)
                endpoint = self._pipes[message["pipe"]]
                self._counters.received(endpoint)
                parts = parts_of({"pipe": message["pipe"], "headers": message["headers"]}, FORM)
                row = InboxRow(endpoint, PROTOCOL, 0, parts, base64.b64decode(message["body"]))
                self._store.append_many([row]).result()
                lines.write(b"ok\n")
                lines.flush()
                self._counters.acknowledged(endpoint)


def _accept_all(_: Sequence[EndpointSubscription]) -> None:
    """Accept all subscriptions."""


def _pipes(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    return tuple(text for text in templates_of(endpoint, catalog, "pipe") if "{" not in text)


class PipeSink(MessageSink):
    """Pipes at one address."""

    family = "pipe"
    template_field = "pipe"
    schemes = ("pipe",)

    type: Literal["pipe"] = Field(description="`pipe`.")
    uri: Texts = Field((), description="Address such as pipe://host:1.")
    pipe: str | None = Field(None, description="Pipe, or a template.")

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client."""
        place = urlsplit(self.connection(name, endpoint).uris[0])
        return PipePublisher(place.hostname or "", place.port or 0, self.seconds)


def _form(message: Outbound) -> Mapping[str, Any]:
    headers = [{"name": name, "value": part.text} for name, part in iter_headers(message.parts)]
    body = base64.b64encode(message.body or b"").decode()
    return {"pipe": message.address, "headers": headers, "body": body}


@contextmanager
def spoken() -> Iterator[None]:
    """Add the protocol for the time of the block: a line in each of three lists."""
    binding = Binding(
        PROTOCOL,
        partial(parts_of, form=FORM),
        partial(native_of, form=FORM),
        RULE,
        PipeSending(),
        ReceivingBinding(_pipes, eq, PipeGateway, _accept_all),
        versioned=True,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(BINDINGS, PROTOCOL, binding)
        table = properties.PROTOCOL_OPTIONS
        assert isinstance(table, dict)
        patched.setitem(table, PROTOCOL, properties.ProtocolOptions({"pipe": "uritemplate"}, ("headers",)))
        with registered(PipeSink):
            yield


@contextmanager
def far_end(
    answers: Mapping[str, str], gives: Sequence[Mapping[str, Any]] = ()
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Serve a far end; yields its address and what it got.

    *answers* are those of single pipes, ``ok`` of others. With *gives* it sends these to whoever takes pipes.
    """
    got: list[Mapping[str, Any]] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                got.append(json.loads(line))
                for message in gives:
                    self.wfile.write(json.dumps(message).encode() + b"\n")
                    got.append({"answer": self.rfile.readline().decode().strip()})
                if gives:
                    return
                self.wfile.write(answers.get(got[-1]["pipe"], "ok").encode() + b"\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"pipe://127.0.0.1:{server.server_address[1]}", got
        finally:
            server.shutdown()


def record_of(message: Mapping[str, Any]) -> bytes:
    """Return what a far end got as a line for ``match``."""
    native = {"pipe": message["pipe"], "headers": message["headers"]}
    return json.dumps({"protocol": PROTOCOL, "native": native, "body_base64": message["body"]}).encode()
