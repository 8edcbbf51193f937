"""Letters come back from tables and folders as they were written, once each, the oldest first."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from catalog.findings import Declarations
from catalog.load import load
from router.dead_letters import retention
from router.dead_letters.dead_letter import DeadLetter, format_body, make_letter, parse_nearest
from router.dead_letters.reading import find_recent, read_dead_letters, read_latest, readable_sinks
from router.dead_letters.redaction import (
    HIDDEN,
    MAX_STEPS,
    MAX_VALUES,
    Redactor,
    SensitiveMarks,
    find_marks,
    parse_marks,
)
from router.dead_letters.retention import RetentionThread, purge
from router.dead_letters.stores import build_topic_pattern
from router.errors import ConfigError, SinkError, StateError
from router.settings import Settings, load_settings
from router.settings.checks import iter_retention_warnings
from router.settings.routes import DEAD_LETTER_VARIABLES, make_dead_letter_values, parse_name
from router.sinks import Commit, open_sink
from router.sinks.jsonlines import DEAD_LETTER
from router.sinks.tables.delta import DeltaSink
from router.state.ledger import LetterLedger, PendingReplay
from tests.support.cases import read_cases
from tests.support.commands import fits
from tests.support.ledger import replayed
from tests.support.letters import SINKS, WRITTEN, letter_id, row, settings_file, write_letters
from tests.support.waiting import wait_until

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


# Retention: what goes, what stays, and that neither batches nor the ledger are harmed by it.


NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def three_days(folder: Path, *sinks: str) -> Settings:
    """Write letters 1, 2 and 3, of three days, two days and one day ago, each a batch of its own."""
    file = settings_file(folder, sinks)
    for number in (1, 2, 3):
        written = NOW - (4 - number) * DAY
        settings = write_letters(file, [row(number, failed=written)], number)
    return settings


def left(settings: Settings, sink: str) -> list[str]:
    return [letter.id for letter in read_dead_letters(settings, sinks=[sink])]


@pytest.mark.parametrize("sink", SINKS)
def test_letters_past_the_age_go_and_a_repeated_batch_stays_out(tmp_path: Path, sink: str) -> None:
    settings = three_days(tmp_path, sink)
    limits = 2 * DAY
    [would] = purge(settings, limits, now=NOW, dry_run=True)
    assert (would.sink, would.letters) == (sink, 1) and would.size > 0
    assert len(left(settings, sink)) == 3
    assert purge(settings, limits, now=NOW) == [would]
    assert left(settings, sink) == [letter_id(2), letter_id(3)]
    assert purge(settings, limits, now=NOW) == []
    assert [each.letters for each in purge(settings, age=DAY / 2, now=NOW)] == [2]
    assert left(settings, sink) == []
    target = open_sink(sink, settings.sinks[sink], "dead-letters")
    again = Commit(f"app-{sink}-letters", 3)
    assert target.has_commit(again)
    assert target.write(pa.Table.from_pylist([row(3)], DEAD_LETTER), again).repeated
    write_letters(settings, [row(4, failed=NOW)], 4)
    assert left(settings, sink) == [letter_id(4)]


@pytest.mark.parametrize("sink", SINKS)
def test_the_oldest_go_until_the_rest_fits(tmp_path: Path, sink: str) -> None:
    settings = three_days(tmp_path, sink)
    files = [path for path in (tmp_path / sink).glob("*") if path.is_file()]
    most = int(2.5 * max(path.stat().st_size for path in files))
    assert [each.letters for each in purge(settings, size=most)] == [1]
    assert left(settings, sink) == [letter_id(2), letter_id(3)]
    assert purge(settings, size=most) == []
    assert [each.letters for each in purge(settings, size=1)] == [2]


def test_a_file_of_damaged_lines_alone_goes_too(tmp_path: Path) -> None:
    settings = three_days(tmp_path, "lines")
    *_, newest = sorted((tmp_path / "lines").glob("*.jsonl"))
    newest.write_bytes(b'{"letter": 3\n' * 3)
    os.utime(newest, (0, 0))
    [gone] = purge(settings, age=DAY * 100, now=NOW)
    assert (gone.letters, gone.size, newest.stat().st_size) == (0, 39, 0)
    assert purge(settings, age=DAY * 100, now=NOW) == []


def test_the_ledger_forgets_what_is_gone_from_every_sink(tmp_path: Path) -> None:
    settings = three_days(tmp_path, "delta", "lines")
    write_letters(settings, [row(1, failed=NOW)], 9, app="late")
    (tmp_path / "lines").joinpath("late-lines-letters-000000000009.jsonl").unlink()
    with LetterLedger.open(Path(settings.state)) as ledger:
        replayed(ledger, [letter_id(1), letter_id(2), letter_id(3)], NOW)
    purge(settings, age=1.5 * DAY, now=NOW)
    with LetterLedger.open(Path(settings.state)) as ledger:
        assert ledger.standing([letter_id(1), letter_id(2), letter_id(3)]) == {
            letter_id(1): "replayed",  # a sink has it still
            letter_id(2): "open",
            letter_id(3): "replayed",
        }


def test_nothing_goes_while_a_replay_needs_it(tmp_path: Path) -> None:
    settings = three_days(tmp_path, "delta")
    with LetterLedger.open(Path(settings.state)) as ledger:
        with ledger.exclusive(), pytest.raises(StateError, match="another replay or purge is running"):
            purge(settings, age=DAY, now=NOW)
        ledger.begin(PendingReplay(1, "plan", (letter_id(1),)))
        with pytest.raises(StateError, match="a replay is unfinished"):
            purge(settings, age=DAY, now=NOW)
    assert len(left(settings, "delta")) == 3


def test_files_of_large_letters_go_by_their_age(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    spill = Path(settings.state) / "spill"
    spill.mkdir(parents=True)
    for name, age in (("old", 3), ("new", 1)):
        (spill / f"{name}.json").write_text("{}")
        when = (NOW - age * DAY).timestamp()
        os.utime(spill / f"{name}.json", (when, when))
    assert purge(settings, size=1, now=NOW) == []
    [removed] = purge(settings, age=2 * DAY, now=NOW)
    assert (removed.sink, removed.letters, removed.size) == ("spill", 1, 2)
    assert [path.name for path in spill.iterdir()] == ["new.json"]


def test_a_batch_that_commits_meanwhile_is_not_in_the_way(tmp_path: Path) -> None:
    settings = three_days(tmp_path, "delta")
    target = open_sink("delta", settings.sinks["delta"], "dead-letters")
    commit = Commit("other", 1)
    assert not target.has_commit(commit)  # it has the table open now
    purge(settings, age=2 * DAY, now=NOW)
    target.write(pa.Table.from_pylist([row(4, failed=NOW)], DEAD_LETTER), commit)
    assert left(settings, "delta") == [letter_id(2), letter_id(3), letter_id(4)]
    assert DeltaTable(str(tmp_path / "delta")).transaction_version("other") == 1


def test_a_running_router_does_it_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "INTERVAL_SECONDS", 0.05)
    settings = load_settings(settings_file(tmp_path, ("delta",), retention={"age": "1d"}))
    write_letters(settings, [row(1, failed=NOW - 10_000 * DAY)])
    with RetentionThread(settings):
        wait_until(lambda: not left(settings, "delta"), 30, "the first letter to be removed")
        write_letters(settings, [row(2, failed=NOW - 9_000 * DAY), row(3, failed=datetime.now(UTC))], 2)
        wait_until(lambda: left(settings, "delta") == [letter_id(3)], 30, "the second one to be removed")


def test_off_by_default_and_what_kafka_needs_is_said(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    assert not settings.dead_letters.retention.on and list(iter_retention_warnings(settings)) == []
    file = settings_file(tmp_path, ("delta", "bus"), retention={"size": "1GiB"})
    [(key, caution)] = iter_retention_warnings(load_settings(file))
    assert key == "dead_letters.retention" and "sink bus" in caution and "retention.ms" in caution


# What is marked is never shown, wherever a letter quotes it; what is not, stays.


CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "redaction.yaml"


def letter(**changes: Any) -> DeadLetter:
    return make_letter(row(1, received=None, failed=None) | changes, "lake")


def shown(given: DeadLetter, *redact: str) -> DeadLetter:
    return Redactor(parse_marks(redact)).redact(given).letter


def everything(given: DeadLetter) -> str:
    body = (given.body or b"").decode("utf-8", "replace")
    return json.dumps([given.detail, list(given.nearest), given.native], ensure_ascii=False) + body


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_a_letter_is_shown_as_its_case_says(case: dict[str, Any]) -> None:
    members = {name: value for name, value in case["letter"].items() if name != "body"}
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in members.items()}
    body = case["letter"].get("body", "{}")
    form = letter(body=(body if isinstance(body, str) else json.dumps(body)).encode(), **given)
    for marks in case["marks"]:
        found = shown(form, *([marks] if isinstance(marks, str) else marks))
        text = everything(found)
        assert not [each for each in ("4111", "NDEx") if each in text], text
        due = case["shows"]
        assert found.detail == due.get("detail", found.detail)
        assert fits(due.get("native", {}), found.native) and fits(
            due.get("nearest", [*found.nearest]), [*found.nearest]
        )
        assert "body" not in due or json.loads(found.body or b"") == due["body"]
        assert (found.id, found.reason, found.position) == (form.id, form.reason, form.position)


def test_without_marks_a_letter_is_shown_as_it_is() -> None:
    given = letter(body=b"\xff")
    assert shown(given) == given


@pytest.mark.parametrize("body", [b'{"card": "4111', b"\xff4111", b"[" * 100_000])
def test_a_body_that_cannot_be_looked_into_is_hidden_whole(body: bytes) -> None:
    given = letter(body=body, reason="schema-violation", detail="4111 is wrong")
    found = shown(given, "/card")
    assert (found.body, found.detail) == (HIDDEN.encode(), HIDDEN)
    assert shown(given, "card").body == body


def test_hiding_everything_leaves_nothing_of_the_record() -> None:
    found = Redactor(SensitiveMarks(everything=True)).redact(letter(detail="sold is no sale")).letter
    assert found.detail == HIDDEN and found.body == HIDDEN.encode()
    assert "sold" not in everything(found) and "shop" not in everything(found)
    assert found.reason == "no-match"


def test_what_a_catalog_marks(tmp_path: Path) -> None:
    schema = {"properties": {"card": {"properties": {"pin": {"x-sensitive": True}}}, "iban": {"writeOnly": True}}}
    catalog = tmp_path / "catalog.json"
    message = {
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {"subject": {"required": True, "sensitive": True}, "type": {"value": "a"}},
        "protocol": "HTTP",
        "protocoloptions": {"headers": [{"name": "X-Card", "sensitive": True}], "query": {"a[1]": {"sensitive": True}}},
        "dataschemaformat": "JSONSchema/draft-07",
        "dataschema": schema,
    }
    catalog.write_text(json.dumps({"messagegroups": {"G": {"messages": {"A": message}}}}))
    declarations = Declarations()
    marks = find_marks(declarations=declarations, catalog=load([catalog], declarations=declarations))
    assert marks.members == {"pin", "iban"}
    redactor = Redactor(marks)
    assert all(redactor.hides(name) for name in ("subject", "ce-subject", "x-card", "X-Card", "a[1]"))
    assert not any(redactor.hides(name) for name in ("type", "card", "a1"))
    found = redactor.redact(
        letter(body=b'{"card": {"pin": "12345"}, "x": [{"iban": "DE1234"}]}', detail="12345")
    ).letter
    assert json.loads(found.body or b"") == {"card": {"pin": HIDDEN}, "x": [{"iban": HIDDEN}]}
    assert found.detail == HIDDEN


def test_texts_are_hidden_whole_where_too_many_values_would_be_looked_for() -> None:
    """Each value was searched for in each text of a letter: many headers took minutes."""
    native = {"headers": [{"name": "card", "value": f"number {count}"} for count in range(MAX_VALUES + 1)]}
    redaction = Redactor(parse_marks(["card"])).redact(letter(native=json.dumps(native), detail="number 7 is no"))
    assert redaction.letter.detail == HIDDEN
    assert (redaction.redact_text("it is number 9"), redaction.redact_text("")) == (HIDDEN, "")


def test_a_name_of_many_dots_is_hidden_without_trying_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    redactor = Redactor(parse_marks(["card"]))
    redaction = redactor.redact(letter(body=None))
    monkeypatch.setattr(Redactor, "hides", lambda self, name, path="": asked.append(name))
    assert redaction.redact_value("a." * MAX_STEPS + "b", "x") == HIDDEN
    assert redaction.redact_value("headers.a.b", "x") == "x"
    assert asked == ["headers.a.b", "a.b", "b"]
