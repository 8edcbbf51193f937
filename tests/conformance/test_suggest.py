"""What ``suggest`` drafts, added to the catalog, matches the letters it was drafted from, and lints clean (issue 7).

Three samples of different shape, made by code, and all of them together with noise. The drafts are loaded the way a
user adds them: as one more file beside the catalog.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.convert import to_json_text, to_yaml_text
from catalog.documents.fetching import Fetcher
from catalog.load import load
from catalog.record import Record
from router.commands.dead_letters.suggest import BaseCatalog, Suggestion, suggest
from router.commands.emit.producer import encode_record_line
from router.matching.records import RecordMatcher
from tests.support import shop as unmatched

COUNT: Final = 400
GOAL: Final = 0.95
Sample = Callable[[int], Iterator[Record]]


def everything(count: int) -> Iterator[Record]:
    """All samples together, with noise."""
    samples = (unmatched.telemetry(count), unmatched.orders(count), unmatched.webhooks(count), unmatched.noise(60))
    return itertools.chain(*samples)


@pytest.fixture
def basis(tmp_path: Path) -> BaseCatalog:
    (tmp_path / "catalog.json").write_text(json.dumps(unmatched.CATALOG))
    return BaseCatalog([tmp_path / "catalog.json"], Fetcher(network=False))


def outcomes(sources: list[Path], records: list[Record]) -> list[dict[str, Any]]:
    return list(RecordMatcher(load(sources)).outcomes(encode_record_line(record) for record in records))


def written(tmp_path: Path, suggestion: Suggestion, text: Callable[[Any], str] = to_yaml_text) -> list[Path]:
    draft = tmp_path / ("drafts.yaml" if text is to_yaml_text else "drafts.json")
    draft.write_text(text(suggestion.fragment), encoding="utf-8")
    return [tmp_path / "catalog.json", draft]


@pytest.mark.parametrize("text", [to_yaml_text, to_json_text], ids=["yaml", "json"])
@pytest.mark.parametrize("sample", [unmatched.telemetry, unmatched.orders, unmatched.webhooks])
def test_drafts_match_what_they_were_drafted_from_and_lint_clean(
    sample: Sample, text: Callable[[Any], str], basis: BaseCatalog, tmp_path: Path
) -> None:
    records = list(sample(COUNT))
    before = outcomes([tmp_path / "catalog.json"], records)
    assert all(each["reason"] in ("no-match", "no-candidates") for each in before)

    suggestion = suggest(records, basis)
    sources = written(tmp_path, suggestion, text)

    assert [each for each in load(sources).findings if each.severity != "info"] == []
    matched = sum(each["outcome"] == "routed" for each in outcomes(sources, records))
    assert matched >= GOAL * len(records)
    assert all(each.matched >= GOAL for each in suggestion.drafts)
    assert not suggestion.attached
    assert not suggestion.findings


def test_the_same_letters_give_the_same_drafts(basis: BaseCatalog, tmp_path: Path) -> None:
    again = BaseCatalog([tmp_path / "catalog.json"], Fetcher(network=False))
    assert suggest(everything(100), basis) == suggest(everything(100), again)


def test_noise_is_left_out_and_told(basis: BaseCatalog) -> None:
    alone = suggest(itertools.chain(unmatched.telemetry(COUNT)), basis)
    found = suggest(itertools.chain(unmatched.telemetry(COUNT), unmatched.noise(60)), basis)
    assert found.fragment == alone.fragment
    assert found.left_out == {
        "dead letters as invalid-cloudevent": 15,
        "matched by the catalog as it is now": 30,
        "of a shape with fewer than 3 letters": 15,
    }


def test_drafts_leave_records_of_other_definitions_alone(basis: BaseCatalog, tmp_path: Path) -> None:
    known = [each for each in unmatched.noise(60) if each.native.get("path") or "boot" in str(each.native)]
    before = outcomes([tmp_path / "catalog.json"], known)
    suggestion = suggest(everything(COUNT), basis)
    assert outcomes(written(tmp_path, suggestion), known) == before


def test_kinds_become_definitions_and_instances_placeholders(basis: BaseCatalog) -> None:
    drafts = suggest(everything(COUNT), basis).drafts
    assert Counter(each.address for each in drafts) == {
        "/erp/{erp}/invoices": 1,
        "/hooks/forge": 1,
        "/notes": 1,
        **{
            f"/v1/accounts/{account}/payments/{{payment}}": 1
            for account in ("acme", "initech", "hooli", "umbrella", "wonka", "stark")
        },
        "com.example.order.cancelled": 1,
        "com.example.order.created": 1,
        "com.example.order.paid": 1,
        "plants/{plant}/devices/{device}/alarm": 1,
        "plants/{plant}/devices/{device}/log": 1,
        "plants/{plant}/devices/{device}/reading": 1,
        "plants/{plant}/devices/{device}/state": 1,
    }


def test_a_group_that_no_endpoint_lists_takes_no_effect(basis: BaseCatalog, tmp_path: Path) -> None:
    records = list(unmatched.telemetry(COUNT))
    suggestion = suggest(records, basis, group="Fleet")
    assert suggestion.attached == {unmatched.PLANT: ["/messagegroups/Fleet"]}
    beside = outcomes(written(tmp_path, suggestion), records)
    assert {each["outcome"] for each in beside} == {"dead-letter"}, "no endpoint lists the group, as the note says"


def test_what_becomes_of_a_routed_letter_is_an_event_with_its_context(basis: BaseCatalog, tmp_path: Path) -> None:
    records = list(unmatched.telemetry(COUNT))
    suggestion = suggest(records, basis)
    routed = outcomes(written(tmp_path, suggestion), records)[0]
    assert set(routed["context"]) == {"plant", "device"}
    assert routed["cloudevent"]["type"] == routed["message"].rpartition("/")[2]
