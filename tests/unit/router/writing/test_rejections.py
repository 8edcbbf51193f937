"""Records that sinks rejected: one outcome each, whatever the number of sinks, and sums that stay what they were."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally
from router.routing import HEADER_RESERVE, Routes, SizeLimits
from router.settings import settings_from_dict
from router.sinks import RejectedRow
from router.writing.outcomes import SINK_REJECTED, Rejections

M, E = "/messagegroups/G/messages/M", "/endpoints/E"


def test_a_record_rejected_by_two_sinks_counts_once_and_names_both(tmp_path: Path) -> None:
    bus = {"type": "kafka", "bootstrap_servers": "broker:9092"}
    told = {
        "sinks": {
            "out": {**bus, "topic": "out"},
            "dead": {**bus, "topic": "d.{endpointid}.{reason}", "max_message_bytes": 70_000},
        },
        "routes": [
            {"when": {"outcome": "dead-letter", "endpoint": "/endpoints/F"}, "to": "out"},
            {"when": {"outcome": "dead-letter", "reason": SINK_REJECTED}, "to": "dead"},
            {"to": ["out"]},
        ],
        "dead_letters": {"sinks": ["out"]},
    }
    settings = settings_from_dict(told, {}, tmp_path)
    rejected = Rejections(Routes(settings), SizeLimits(settings))
    assert not rejected
    rejected.add("a", [RejectedRow("t-0-1", "too odd", E, M), RejectedRow("t-0-2", "too large", E, M)])
    rejected.add("b", [RejectedRow("t-0-1", "no", E, M)])
    rejected.add("c", [])
    assert rejected
    assert rejected.counts == Counter({(E, M): 2})
    assert rejected.to_table().to_pydict() == {
        "at": ["t-0-1", "t-0-2"],
        "detail": ["sink a: too odd; sink b: no", "sink a: too large"],
        "letters_dead": ["d.E.sink-rejected"] * 2,
        "letters_out": ["out"] * 2,
        "route": [-3] * 2,
        "limit": [70_000 - HEADER_RESERVE] * 2,
    }


def test_a_tally_keeps_its_sum() -> None:
    tally = Tally(Counter({(E, ROUTED, ""): 5, (E, DEAD_LETTER, "no-match"): 1}), Counter({(E, M): 5}))
    tally.reject(Counter({(E, M): 2}), SINK_REJECTED)
    assert (tally.total, tally.dead_letters) == (6, 3)
    assert tally.records[(E, ROUTED, "")] == 3
    assert tally.records[(E, DEAD_LETTER, "sink-rejected")] == 2
    assert tally.definitions[E, M] == 3
