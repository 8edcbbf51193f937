"""What `emit` makes must match its own definition among all candidates (MATCHING.md#sending).

Tried on every definition of the project's samples and of the corpora, where they are at hand, in every way it can be
produced: for each endpoint that expects it, or for its group when none does; in each protocol that it leaves open; as
an event in binary and structured mode; and as a native record where it describes one.

A record may end as ``ambiguous`` only where lint said that the definitions are indistinguishable. One exception: lint
judges a definition with an envelope by its events, so its native records, which have no attributes to be told by,
need only match it as well as any other.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from bindings.protocols import BINDINGS
from catalog.definitions.constraints import match_candidate_of
from catalog.load import load
from catalog.model import Catalog, Definition, Endpoint
from catalog.templates import parse_template
from router.commands.emit.producer import MessageProducer, encode_record_line
from router.matching.records import RecordMatcher
from tests.support.cases import samples
from tests.support.corpora import CORPORA

SUFFIXES: Final = (".json", ".yaml")
CORPUS_FILES: Final = sorted(each for each in CORPORA.rglob("*") if each.suffix in SUFFIXES and each.is_file())
CORPUS_FOLDERS: Final = sorted(CORPORA.rglob("split-files"))
SOURCES: Final = (*samples(), *CORPUS_FILES, *CORPUS_FOLDERS)
NOW: Final = "2026-03-04T05:06:07.008Z"
FEW: Final = 3
"""Definitions of one document that `make test` tries; ``-m full`` tries all."""
SEEDS: Final = 3
NOT_EMITTED: Final = ("was not loaded", "payloads of XSD are not generated")
"""What the notes say on payloads that `emit` leaves empty."""
ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789_-"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to produce a definition: for an endpoint, or for the group of those that no endpoint expects."""

    definition: Definition
    endpoint: Endpoint | None
    protocol: str
    mode: str
    seed: int

    @property
    def place(self) -> str:
        return self.endpoint.xid if self.endpoint else self.definition.group


def ways(catalog: Catalog, definition: Definition, seeds: int) -> Iterator[Way]:
    expecting: list[Endpoint | None] = [
        each for each in catalog.endpoints.values() if definition.xid in each.candidates
    ]
    for endpoint in expecting or [None]:
        target = match_candidate_of(definition, endpoint)
        if target is None:
            continue
        for protocol in [target.protocol] if target.protocol else BINDINGS:
            binding = BINDINGS[protocol]
            modes = ["structured"] + ["binary"] * binding.binary + ["native"] * (target.native is not None)
            for mode in modes:
                for seed in range(seeds):
                    yield Way(definition, endpoint, protocol, mode, seed)


def context_of(way: Way) -> dict[str, str]:
    """A value for each placeholder, others for another seed; where it is part of a timestamp, what makes that valid."""
    chooser = random.Random(way.seed)
    properties = [
        (prop.value, prop.type) for prop in (*way.definition.protocoloptions, *way.definition.envelopemetadata)
    ]
    options: Mapping[str, Any] = way.endpoint.options if way.endpoint else {}
    context: dict[str, str] = {}
    for text, kind in (*properties, *((value, "string") for value in options.values())):
        template = parse_template(text) if isinstance(text, str) else None
        for name in template.names if template else ():
            context.setdefault(name, "".join(chooser.choices(ALPHABET, k=6)) + "{n}")
            if template and kind == "timestamp":
                context[name] = NOW if template.is_bare else "2026-03-04"
    return context


def produced(catalog: Catalog, way: Way) -> tuple[bytes, str]:
    """Return a record as a line, and the doubt about its data."""
    producer = MessageProducer(
        catalog,
        way.definition.xid,
        endpoint=way.endpoint.xid if way.endpoint else None,
        protocol=way.protocol,
        mode=way.mode,
        context=context_of(way),
        seed=way.seed,
        clock=lambda: NOW,
    )
    record = producer.make_record()
    assert record.protocol == way.protocol
    return encode_record_line(record), producer.payload_doubt


def fault_of(catalog: Catalog, way: Way, outcome: Mapping[str, Any]) -> str:
    """Return what is wrong with an outcome; empty when nothing is."""
    xid, reason, detail = way.definition.xid, outcome.get("reason"), str(outcome.get("detail", ""))
    if outcome["outcome"] == "routed":
        if outcome["message"] == xid or reported(catalog, way.definition, "never-reached"):
            return ""
        return f"went to {outcome['message']}"
    if reason == "unmappable" and detail.startswith(f"{xid}:"):
        return ""  # it did match; what it lacks is a matter of the definition, and settings may give it
    if reason == "ambiguous" and xid in detail:
        if reported(catalog, way.definition, "indistinguishable"):
            return ""
        if way.mode == "native" and way.definition.envelope is not None:
            return ""
    return f"{reason}: {detail} {outcome.get('nearest') or ''}"


def reported(catalog: Catalog, definition: Definition, rule: str) -> bool:
    """Whether lint said so of the definition, at its place or by its name."""
    own = re.compile(rf"(^|[\s,]){re.escape(definition.xid)}($|[\s,])")
    last = definition.messageid.replace("~", "~0").replace("/", "~1")
    return any(
        finding.rule == rule and (finding.pointer.rpartition("/")[2] == last or own.search(finding.message))
        for finding in catalog.findings
    )


def check(path: Path, *, most: int | None, seeds: int) -> Counter[str]:
    catalog = load([path])
    definitions = list(catalog.definitions.values())
    step = 1 if most is None else max(1, -(-len(definitions) // most))
    by_place: dict[str, list[Way]] = {}
    for definition in definitions[::step]:
        for way in ways(catalog, definition, seeds):
            by_place.setdefault(way.place, []).append(way)
    told: Counter[str] = Counter()
    for place, tried in by_place.items():
        kind = "endpoint" if place in catalog.endpoints else "group"
        matcher = RecordMatcher(catalog, **{kind: place})  # type: ignore[arg-type]
        lines, doubts = zip(*(produced(catalog, way) for way in tried), strict=True)
        faults = [
            (way, fault)
            for way, outcome in zip(tried, matcher.outcomes(lines), strict=True)
            if (fault := fault_of(catalog, way, outcome))
        ]
        assert not faults, "\n".join(f"{way.definition.xid} {way.mode} {way.place}: {fault}" for way, fault in faults)
        told.update(doubts)
    return told


def parameters() -> Iterator[Any]:
    for path in SOURCES:
        name = "/".join(path.parts[-4:])
        yield pytest.param(path, FEW, 1, id=f"{name}-few")
        yield pytest.param(path, None, SEEDS, id=f"{name}-all", marks=pytest.mark.full)


@pytest.mark.parametrize(("path", "most", "seeds"), list(parameters()))
def test_what_is_emitted_matches_its_definition(path: Path, most: int | None, seeds: int) -> None:
    doubts = check(path, most=most, seeds=seeds)
    unexpected = {doubt for doubt in doubts if doubt and not any(each in doubt for each in NOT_EMITTED)}
    assert not unexpected, "\n".join(unexpected)
