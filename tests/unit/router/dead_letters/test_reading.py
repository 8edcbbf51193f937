"""Letters come back from tables and folders as they were written, once each, the oldest first."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from router.dead_letters.dead_letter import format_body, parse_nearest
from router.dead_letters.reading import find_recent, read_dead_letters, read_latest, readable_sinks
from router.dead_letters.stores import build_topic_pattern
from router.errors import ConfigError, SinkError
from router.settings import load_settings
from router.settings.routes import DEAD_LETTER_VARIABLES, make_dead_letter_values, parse_name
from router.sinks import Commit
from router.sinks.jsonlines import DEAD_LETTER
from router.sinks.tables.delta import DeltaSink
from tests.support.letters import SINKS, WRITTEN, letter_id, row, settings_file, write_letters

ODD = (
    row(1),
    row(2, body=None, endpoint=None, detail=None, nearest=None, native="{}", reason="undecodable"),
    row(3, body=b"\xff\x00\n", detail="two\nlines", received=None),
    row(4, body=b"", native=json.dumps({"key_base64": base64.b64encode(b"\xff").decode()}), protocol="KAFKA"),
    row(5, attempts=3, received=WRITTEN.replace(microsecond=0)),
)


def test_a_long_body_is_cut_and_says_by_how_much() -> None:
    assert format_body(b"\x00\xffAB" * 2000)[-1].endswith(" 3904 bytes more")


def test_all_sinks_give_the_same_letters(tmp_path: Path) -> None:
    settings = write_letters(settings_file(tmp_path, tuple(SINKS)), ODD)
    found = {name: list(read_dead_letters(settings, sinks=[name])) for name in SINKS}
    letters = [replace(letter, sink="") for letter in found["delta"]]
    assert [letter.id for letter in letters] == [each["letter"] for each in ODD]
    for name in SINKS:
        assert {letter.sink for letter in found[name]} == {name}
        assert [replace(letter, sink="") for letter in found[name]] == letters
    first, second, third = letters[:3]
    assert (first.failed, first.attempts, first.nearest[0]["message"]) == (WRITTEN, 1, "/messagegroups/G/messages/Sale")
    assert (second.body, second.endpoint, second.detail, second.nearest) == (None, None, "", ())
    assert (third.body, third.received, third.detail) == (b"\xff\x00\n", None, "two\nlines")
    assert first.to_record().to_json() == {
        "endpoint": "/endpoints/till",
        "protocol": "HTTP",
        "native": json.loads(ODD[0]["native"]),
        "body": '{"amount": 1.50}',
        "time": "2026-01-02T03:04:05.678901Z",
    }
    assert first.to_record().position == "inbox-0-1"


def test_each_letter_once_and_the_oldest_batch_first(tmp_path: Path) -> None:
    file = settings_file(tmp_path, tuple(SINKS))
    times = {1: WRITTEN, 2: WRITTEN - timedelta(days=1), 3: WRITTEN + timedelta(days=1)}
    for number, time in times.items():
        settings = write_letters(file, [row(number, failed=time), row(9, failed=time)], app=f"app{number}")
    for name in SINKS:
        found = [letter.id for letter in read_dead_letters(settings, sinks=[name])]
        assert found == [letter_id(number) for number in (2, 9, 1, 3)]
    assert [letter.sink for letter in read_dead_letters(settings)] == ["delta"] * 4


@pytest.mark.parametrize("sink", SINKS)
def test_the_newest_come_first_and_whole(tmp_path: Path, sink: str) -> None:
    file = settings_file(tmp_path, (sink,))
    assert read_latest(load_settings(file), 2) == []
    for number in (2, 1, 3):
        time = WRITTEN + timedelta(days=number)
        settings = write_letters(file, [row(number, failed=time), row(number + 3, failed=time)], app=f"app{number}")
    newest = read_latest(settings, 3)
    assert [letter.id for letter in newest] == [letter_id(number) for number in (6, 3, 5)]
    whole = {letter.id: letter for letter in read_dead_letters(settings)}
    assert newest == [whole[letter.id] for letter in newest] and newest[0].body == b'{"amount": 1.50}'
    assert find_recent(settings, letter_id(1)) == whole[letter_id(1)]
    with pytest.raises(LookupError, match="not among the newest"):
        find_recent(settings, letter_id(9))


def test_instants_beyond_the_calendar_are_left_out(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    [row_] = pa.Table.from_pylist([row(1)], DEAD_LETTER).to_batches()
    far = pa.array([2**61], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    columns = [far if name == "received" else row_.column(name) for name in DEAD_LETTER.names]
    table = pa.Table.from_arrays(columns, schema=DEAD_LETTER)
    DeltaSink("delta", str(tmp_path / "delta"), DEAD_LETTER).write(table, Commit("a", 1))
    [letter] = read_dead_letters(settings)
    assert letter.received is None and letter.to_record().time is None


def test_a_partitioned_table_is_read_whole_and_without_bodies_when_none_are_wanted(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    sink = DeltaSink("delta", str(tmp_path / "delta"), DEAD_LETTER, partition_by=["day", "reason"])
    sink.write(pa.Table.from_pylist([row(1), row(2, reason="a b/c")], DEAD_LETTER), Commit("a", 1))
    assert {letter.reason for letter in read_dead_letters(settings)} == {"no-match", "a b/c"}
    assert [letter.body for letter in read_dead_letters(settings, bodies=False)] == [None, None]


def test_reading_is_of_one_version_of_the_table(tmp_path: Path) -> None:
    settings = write_letters(settings_file(tmp_path), [row(number) for number in range(600)])
    letters = read_dead_letters(settings)
    first = next(letters)
    write_letters(settings, [row(1000)], version=2)
    table = DeltaTable(str(tmp_path / "delta"))
    table.optimize.compact()
    table.delete("reason = 'no-match'")
    assert [first.id, *(letter.id for letter in letters)] == [letter_id(number) for number in range(600)]
    assert list(read_dead_letters(settings)) == []


def test_a_damaged_line_is_left_out_and_the_others_are_read(tmp_path: Path) -> None:
    settings = write_letters(settings_file(tmp_path, ("lines",)), [row(1), row(2)])
    [file] = (tmp_path / "lines").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b'{"torn": \n[]\n{"letter": 5}\n' + lines[1])
    assert [letter.id for letter in read_dead_letters(settings)] == [letter_id(1), letter_id(2)]
    for damage in (b'{"letter": "\xff"}', b'{"letter": "a", "failed": 5}', b"[" * 100_000):
        file.write_bytes(damage + b"\n" + lines[1])
        assert [letter.id for letter in read_dead_letters(settings)] == [letter_id(2)], damage[:40]


def test_nothing_written_yet_is_no_error(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path, tuple(SINKS)))
    assert list(read_dead_letters(settings)) == []


def test_a_table_of_events_is_refused(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    schema = pa.schema([("id", pa.string())])
    DeltaSink("x", str(tmp_path / "delta"), schema).write(pa.table({"id": ["1"]}, schema), Commit("a", 1))
    with pytest.raises(SinkError, match="not a dead-letter table: missing letter"):
        list(read_dead_letters(settings))


def test_sinks_that_cannot_be_read_back_are_refused_by_name(tmp_path: Path) -> None:
    file = settings_file(tmp_path)
    text = file.read_text().replace("- delta", "- delta\n  - out") + "\n"
    file.write_text(text.replace("sinks:\n  delta", "sinks:\n  out: {type: jsonl}\n  delta", 1))
    settings = load_settings(file)
    assert readable_sinks(settings) == ("delta",)
    with pytest.raises(ConfigError, match=r"sink out cannot be read back.*read delta instead"):
        read_dead_letters(settings, sinks=["out"])
    with pytest.raises(ConfigError, match="sink events has no dead letters"):
        read_dead_letters(settings, sinks=["events"])
    file.write_text(file.read_text().replace("- delta\n", ""))
    with pytest.raises(ConfigError, match="letters in out cannot be read back"):
        read_dead_letters(load_settings(file))


@pytest.mark.parametrize("template", ["dead", "dead.{endpointid}", "{reason}-x-{endpoint}", "{endpointid}"])
def test_topics_of_a_template_are_found_again(template: str) -> None:
    pattern = build_topic_pattern(template)
    for endpoint in ("/endpoints/a b", "", "/endpoints/" + "long" * 80):
        name = parse_name(template, DEAD_LETTER_VARIABLES).expand(make_dead_letter_values(endpoint, "no-match"))
        assert pattern.fullmatch(name), name
    if template != "{endpointid}":
        assert not pattern.fullmatch("other")


def test_a_list_that_a_header_cut_off_gives_what_is_whole() -> None:
    whole = [{"message": f"/m/{number}", "mismatches": []} for number in range(3)]
    text = json.dumps(whole)
    assert parse_nearest(text) == tuple(whole)
    assert parse_nearest(text[:-20]) == tuple(whole[:2])
    assert parse_nearest(None) == parse_nearest("") == parse_nearest("[]") == parse_nearest("{") == ()
