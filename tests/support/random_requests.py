"""Requests that schemathesis makes of a registry's own OpenAPI document: valid ones, and ones with something wrong.

Left to itself it would never write to the same entity twice, and most requests would fail at a flag. So most ids are
taken from a few, and most flags and conditions are left out again. Ids of subscriptions are those that were given out,
and their sinks are at closed ports of this machine: nothing is sent to strangers.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from registry.model.attributes import model_source

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
