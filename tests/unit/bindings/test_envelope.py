"""Is a record a CloudEvent, in which mode, with which faults? Cases in envelope_cases.json, by protocol and mode."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.envelope import ATTRIBUTE_NAME
from bindings.parts import Part
from bindings.protocols import BINDINGS

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("envelope_cases.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['protocol']}: {case['why']}")
def test_envelope(case: dict[str, Any]) -> None:
    binding = BINDINGS[case["protocol"]]
    body = case["body"].encode() if case.get("body") is not None else None
    envelope = binding.read_envelope(binding.split(case["native"]), body, lambda: bool(case.get("sniff")))
    assert envelope.mode == case["mode"], envelope
    assert envelope.is_event is (case["mode"] in ("binary", "structured"))
    wanted = case.get("faults", [])
    assert len(envelope.faults) == len(wanted), envelope.faults
    for found, start in zip(envelope.faults, wanted, strict=True):
        assert found.startswith(start)
    if "attributes" in case:
        assert envelope.attributes == case["attributes"]
    if "data" in case:
        assert envelope.data == (None if case["data"] is None else case["data"].encode())
    assert re.search(case.get("detail", ""), envelope.detail)
    assert bool(envelope.detail) is (case["mode"] == "undecodable")


def test_every_protocol_has_cases() -> None:
    assert {case["protocol"] for case in CASES} == set(BINDINGS)


KEYS = (
    [f"headers.ce{mark}{name}" for mark in "_-" for name in ("specversion", "id", "source", "type", "x", "X")]
    + [
        f"{place}{name}"
        for place in ("user_properties.", "application-properties.cloudEvents:")
        for name in ("id", "x")
    ]
    + ["headers.content-type", "headers.Content-Type", "user_properties.specversion", "properties.content-type"]
)
keys = st.sampled_from(KEYS)
contents = st.none() | st.binary(max_size=6) | st.sampled_from([b"1.0", b"1", b"%41", b"application/cloudevents+json"])


@given(st.sampled_from(list(BINDINGS)), st.lists(st.builds(Part, keys, contents), max_size=8), st.none() | st.binary())
def test_no_record_raises_and_sound_events_are_whole(protocol: str, parts: list[Part], body: bytes | None) -> None:
    envelope = BINDINGS[protocol].read_envelope(parts, body, lambda: True)
    if envelope.is_event and not envelope.faults:
        assert envelope.attributes["specversion"] == "1.0"
        assert all(envelope.attributes[name] for name in ("id", "source", "type"))
        assert all(ATTRIBUTE_NAME.fullmatch(name) for name in envelope.attributes)
