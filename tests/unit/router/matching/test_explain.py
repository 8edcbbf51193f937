"""``match --explain`` tells what ``match`` decided, whatever the catalog and the record."""

from __future__ import annotations

import io
import json
from random import Random
from typing import Any

import pytest

from catalog.model import Catalog, Definition, Endpoint, Property
from router.commands.match import ExplanationWriter
from router.matching.explanation import BEST, EventExplanation, Explainer, RecordExplanation
from router.matching.records import RecordMatcher
from router.matching.schema_validation import Validation
from tests.support.cases import seeds
from tests.support.generation import ENDPOINT, GROUP, SCHEMAS, random_catalog, random_record


def explained(catalog: Catalog, line: str, *, everything: bool = False, **scope: Any) -> RecordExplanation:
    return Explainer(RecordMatcher(catalog, **scope), everything=everything).explain(1, line)


def agree(event: EventExplanation, outcome: dict[str, Any]) -> str:
    """Hold what is told against what `match` decided; returns the outcome or reason."""
    assert event.outcome == outcome
    reason = str(outcome.get("reason", outcome["outcome"]))
    matching = [each for each in event.candidates if each.matches]
    wins = [each.message for each in event.candidates if each.wins]
    assert wins == ([event.winner] if event.winner else [])
    if reason == "routed":
        assert event.winner == outcome["message"]
    elif reason == "unmappable":
        assert event.winner and outcome["detail"].startswith(event.winner)
    elif reason == "ambiguous":
        ties = {each.message for each in matching if each.verdict == "matches, but ties with others"}
        assert event.winner is None
        named = set(outcome["detail"].removeprefix("equally specific: ").split(", "))
        assert ties == named or (ties < named and len(event.candidates) == BEST)
    elif reason == "schema-violation":
        assert matching and all(each.schema not in ((), ("fits",)) for each in matching)
    elif reason == "no-match" and not any(each.verdict.endswith("rejects the data") for each in matching):
        assert not matching
        nearest = [(each.message, [c.to_json() for c in each.checks if not c.holds]) for each in event.candidates]
        assert nearest[:3] == [(each["message"], each["mismatches"]) for each in outcome["nearest"]]
    else:
        assert event.winner is None
    return reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(12, quick=4))
def test_the_winner_is_that_of_match(seed: int) -> None:
    rng = Random(seed)
    catalog = random_catalog(rng, rng.choice((4, 30)))
    validation: Validation = rng.choice(("ambiguous", "always", "never"))
    matcher = RecordMatcher(catalog, endpoint=rng.choice((None, ENDPOINT)), validation=validation)
    lines = [json.dumps(random_record(rng, catalog)) for _ in range(60)]
    for everything in (False, True):
        explainer = Explainer(matcher, everything=everything)
        for number, line in enumerate(lines):
            (outcome,) = matcher.decide([line])
            told = explainer.explain(number, line)
            events = outcome.get("events", [outcome])
            if told.error:
                assert outcome["detail"] == told.error
                continue
            assert len(told.events) == len(events)
            for event, each in zip(told.events, events, strict=True):
                agree(event, each)
                assert everything or len(event.candidates) <= BEST
                assert not everything or not event.more


def define(name: str, *options: Property, **rest: Any) -> Definition:
    return Definition(f"{GROUP}/messages/{name}", GROUP, protocol="KAFKA", protocoloptions=options, **rest)


BASE = define("base", Property("headers.kind", "string", "a"))
DERIVED = define("derived", Property("headers.kind", "string", "a"), base=(BASE.xid,))
TEMPLATE = define("template", Property("headers.kind", "string", "{x}"), Property("headers.n", "integer"))
OTHER = define("another", Property("headers.kind", "string", "b"))
FITTING = define("fitting", Property("headers.kind", "string", "s"), schemakey="object")
REJECTING = define("rejecting", Property("headers.kind", "string", "s"), schemakey="text")


def catalog_of(*definitions: Definition) -> Catalog:
    xids = tuple(each.xid for each in definitions)
    endpoint = Endpoint(ENDPOINT, candidates=xids)
    return Catalog({each.xid: each for each in definitions}, {GROUP: xids}, {ENDPOINT: endpoint}, SCHEMAS)


EVERY = catalog_of(BASE, DERIVED, TEMPLATE, OTHER, FITTING, REJECTING)


def kafka(kind: str, body: str = "{}") -> str:
    native = {"topic": "t", "headers": [{"name": "kind", "value": kind}]}
    return json.dumps({"protocol": "KAFKA", "endpoint": ENDPOINT, "native": native, "body": body})


def verdicts(line: str, validation: Validation = "ambiguous") -> dict[str, str]:
    (event,) = explained(EVERY, line, everything=True, validation=validation).events
    return {each.message.rsplit("/", 1)[-1]: each.verdict for each in event.candidates}


@pytest.mark.parametrize(("ambiguous", "winner"), [("dead-letter", None), ("first", "fitting"), ("base", None)])
def test_a_tie_says_how_it_was_decided(ambiguous: Any, winner: str | None) -> None:
    (event,) = explained(EVERY, kafka("s"), validation="never", ambiguous=ambiguous).events
    told = {each.message.rpartition("/")[2]: (each.verdict, each.wins) for each in event.candidates}
    assert told["rejecting"] == ("matches, but ties with others", False)
    assert told["fitting"] == (("wins", True) if winner else ("matches, but ties with others", False))
    why = "2 candidates are equally specific"
    assert event.why == (f"{why}; match.ambiguous chooses {FITTING.xid}" if winner else why)
    assert event.winner == (FITTING.xid if winner else None)
    assert event.outcome["outcome"] == ("routed" if winner else "dead-letter")


def test_schemas_are_told_where_they_were_looked_at() -> None:
    (event,) = explained(EVERY, kafka("s")).events
    schemas = {each.message.rsplit("/", 1)[-1]: each.schema for each in event.candidates if each.matches}
    assert schemas["fitting"] == ("fits",) and schemas["rejecting"] not in ((), ("fits",)) and not schemas["template"]
    assert event.why == "the most specific of 2 that match"
    assert verdicts(kafka("s"), "never")["fitting"] == "matches, but ties with others"


def written(line: str, encoding: str = "utf-8", **scope: Any) -> str:
    buffer = io.BytesIO()
    output = io.TextIOWrapper(buffer, encoding=encoding, errors="strict", write_through=True)
    ExplanationWriter(output).write(explained(EVERY, line, **scope))
    return buffer.getvalue().decode(encoding)


def test_the_text_has_every_part() -> None:
    text = written(kafka("a"))
    for part in (
        f"record 1: KAFKA at {ENDPOINT}",
        "  topic 't', 2 bytes of body",
        "  envelope: no CloudEvent",
        f"  ✓ {DERIVED.xid}: wins (1 literal, 0 characters)",
        "      ✓ protocol: 'KAFKA'",
        "      ✓ protocoloptions.headers.kind: 'a', as '{x}'",
        "      ✓ protocoloptions.headers.n: absent (optional)",
        "      ✗ protocoloptions.headers.kind: expected 'b', found 'a'",
        "  and 1 more candidate (--all shows all)",
        "  why: the most specific of 3 that match",
        f"  routed to {DERIVED.xid}",
        "    context: none",
        f"    cloudevent: specversion='1.0', id='t-0-0', source='{ENDPOINT}', type='derived'",
    ):
        assert part in text.splitlines(), f"{part}\n{text}"


def test_values_cannot_move_the_cursor() -> None:
    text = written(kafka("\x1b[2J\u202e\n[bold]x"))
    assert "\x1b" not in text and "\u202e" not in text
    assert "found '\\x1b[2J\\u202e\\n[bold]x'" in text


def test_faults_of_an_event_are_told_one_by_one() -> None:
    native = {"headers": [{"name": "ce_specversion", "value": "1.0"}, {"name": "ce_id", "value": "1"}]}
    text = written(json.dumps({"protocol": "KAFKA", "endpoint": ENDPOINT, "native": native}))
    assert "    ✗ source: missing" in text and "    ✗ type: missing" in text
    assert "dead letter, invalid-cloudevent" in text


def test_ascii_where_the_encoding_shows_no_more() -> None:
    text = written(kafka("ä"), "ascii")
    assert "      - protocoloptions.headers.kind: expected 'a', found '\\xe4'" in text.splitlines()
    assert "      + protocoloptions.headers.kind: '\\xe4', as '{x}'" in text.splitlines()
