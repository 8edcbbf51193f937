"""``dead-letters list``, ``show`` and ``purge`` through the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from router.cli import run_command_line
from router.state.ledger import LetterLedger
from tests.support.ledger import attempted, replayed
from tests.support.letters import CATALOG, letter_id, row, settings_file, write_letters

Run = Callable[..., tuple[int, str, str]]
NOW = datetime.now(UTC)
SALE = "/messagegroups/G/messages/Sale"


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str]) -> Run:
    """``xrouter(*arguments)`` gives exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = run_command_line([str(each) for each in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Six letters of three reasons; 1 was replayed, 2 failed in a replay, 3 is parked."""
    file = settings_file(tmp_path)
    rows = [
        row(1, failed=NOW - timedelta(days=3)),
        row(2, failed=NOW - timedelta(hours=30)),
        row(3, failed=NOW - timedelta(hours=20), reason="undecodable", detail="no JSON\tat all", nearest="[]"),
        row(4, failed=NOW - timedelta(hours=10), reason="undecodable", endpoint=None, nearest=None),
        row(5, failed=NOW - timedelta(hours=5), reason="ambiguous", endpoint="/endpoints/other"),
        row(0x1000, failed=NOW - timedelta(hours=1)),
    ]
    for version, each in enumerate(rows, 1):
        settings = write_letters(file, [each], version)
    with LetterLedger.open(Path(settings.state)) as ledger:
        attempted(ledger, [(letter_id(2), "ambiguous", "two definitions match")], NOW)
        replayed(ledger, [letter_id(1)], NOW)
        ledger.park([letter_id(3)])
    return file


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def ids(text: str) -> list[str]:
    return [each["letter"] for each in lines(text) if "letter" in each]


def test_the_list_counts_and_shows_the_newest(xrouter: Run, config: Path) -> None:
    status, out, err = xrouter("dead-letters", "list", config, "--limit", 2)
    assert (status, err) == (0, "")
    rows = [line.split("\t") for line in out.splitlines()]
    assert ["reason", "letters"] in rows and ["no-match", "2"] in rows and ["undecodable", "1"] in rows
    assert ["/endpoints/till", "2"] in rows and ["(none)", "1"] in rows and [SALE, "3"] in rows
    assert [each[0] for each in rows[-2:]] == [letter_id(0x1000), letter_id(5)]
    assert rows[-2][2:] == ["no-match", "/endpoints/till", "1", "open", "type: expected 'sale', found 'sold'"]


def test_a_list_of_nothing_says_so(xrouter: Run, config: Path, tmp_path: Path) -> None:
    status, out, err = xrouter("dead-letters", "list", config, "--reason", "oversized")
    assert (status, out) == (0, "")
    assert err == "nothing listed: there are 6 dead letters, none match (`--standing all` includes all)\n"
    (tmp_path / "new").mkdir()
    status, out, err = xrouter("dead-letters", "list", settings_file(tmp_path / "new"))
    assert (status, out) == (0, "")
    assert "there are no dead letters" in err and "xrouter top" in err
    assert xrouter("dead-letters", "list", config, "--reason", "oversized", "--format", "json") == (0, "", "")


def test_lines_for_machines_and_all_standings(xrouter: Run, config: Path) -> None:
    _, out, _ = xrouter("dead-letters", "list", config, "--standing", "all", "--format", "json")
    found = lines(out)
    assert {"by": "reason", "value": "no-match", "letters": 3} in found
    letters = {each["letter"]: each for each in found if "letter" in each}
    assert {key: (each["standing"], each["attempts"]) for key, each in letters.items()} == {
        letter_id(1): ("replayed", 2),
        letter_id(2): ("open", 2),
        letter_id(3): ("parked", 1),
        letter_id(4): ("open", 1),
        letter_id(5): ("open", 1),
        letter_id(0x1000): ("open", 1),
    }
    assert letters[letter_id(2)]["nearest"] == [SALE] and letters[letter_id(2)]["sink"] == "delta"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ([], [0x1000, 5, 4, 2]),
        (["--reason", "no-match", "--reason", "ambiguous"], [0x1000, 5, 2]),
        (["--endpoint", "/endpoints/other"], [5]),
        (["--message", SALE, "--reason", "ambiguous"], [5]),
        (["--since", "24h"], [0x1000, 5, 4]),
        (["--until", "24h"], [2]),
        (["--since", "2000-01-01", "--until", "2001-01-01T00:00:00Z"], []),
        (["--standing", "parked"], [3]),
        (["--standing", "replayed"], [1]),
        (["--limit", "0"], []),
    ],
)
def test_filters(xrouter: Run, config: Path, options: list[str], numbers: list[int]) -> None:
    status, out, _ = xrouter("dead-letters", "list", config, *options, "--format", "json")
    assert (status, ids(out)) == (0, [letter_id(number) for number in numbers])


def test_on_a_terminal_there_are_tables(xrouter: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "220")
    _, out, _ = xrouter("dead-letters", "list", config)
    assert "4 dead letters by reason" in out and "the newest 4 of 4" in out and letter_id(5)[:12] in out
    _, out, _ = xrouter("dead-letters", "show", config, "1000")
    assert "native record" in out and "headers.ce-type" in out


def test_eighty_columns_are_enough(xrouter: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    _, out, _ = xrouter("dead-letters", "list", config)
    at = next(place for place, line in enumerate(out.splitlines()) if line.startswith(letter_id(0x1000)[:12]))
    first, second = out.splitlines()[at : at + 2]
    assert "no-match" in first and first.endswith("/endpoints/till")
    assert second.strip() == "open, 1 attempt: type: expected 'sale', found 'sold'"
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize(("reason", "told"), [("no-mach", "did you mean no-match?"), ("zzz", "schema-violation")])
@pytest.mark.parametrize("command", [["list"], ["replay", "--dry-run"], ["suggest"]])
def test_a_reason_that_is_none_is_an_error(
    xrouter: Run, config: Path, command: list[str], reason: str, told: str
) -> None:
    status, out, err = xrouter("dead-letters", *command, config, "--reason", reason)
    assert (status, out) == (1, "")
    assert err.startswith(f"xrouter: error: --reason {reason!r} is not a dead-letter reason") and told in err


def test_show_tells_everything(xrouter: Run, config: Path) -> None:
    status, out, err = xrouter("dead-letters", "show", config, "0002")
    assert (status, err) == (0, "")
    rows = [line.split("\t") for line in out.splitlines()]
    for told in (
        ["", "reason", "no-match"],
        ["", "attempts", "2"],
        ["", "standing", "open"],
        ["", "position", "inbox-0-2"],
        ["", "type", "sale", "sold"],
        ["", "headers.ce-subject", "shop/7"],
        ["", '{"amount": 1.50}'],
    ):
        assert told in rows, told
    assert f"nearest: {SALE}" in out and "ambiguous: two definitions match" in out
    assert "with the current catalog:" in out and "dead letter, no-match" in out


def test_show_says_what_a_mended_catalog_would_do(xrouter: Run, config: Path) -> None:
    mended = json.loads(json.dumps(CATALOG).replace('"value": "sale"', '"value": "sold"'))
    (config.parent / "catalog.json").write_text(json.dumps(mended))
    _, out, _ = xrouter("dead-letters", "show", config, "0002", "--format", "json")
    form = json.loads(out)
    [now] = form["now"]
    assert (now["outcome"], now["message"], now["context"]) == ("routed", SALE, {"shop": "7"})
    assert form["reason"] == "no-match" and form["body"] == '{"amount": 1.50}'
    assert [each["what"] for each in form["history"]] == ["failed"]


def test_bodies_that_are_no_text_are_shown_as_bytes(xrouter: Run, tmp_path: Path) -> None:
    file = settings_file(tmp_path)
    write_letters(file, [row(1, body=b"\x00\xffAB" * 2000, detail="\x1b[2J"), row(2, body=None)])
    _, out, _ = xrouter("dead-letters", "show", file, "0001")
    assert "00000000  00 ff 41 42" in out and "3904 bytes more" in out and "\x1b" not in out
    _, out, _ = xrouter("dead-letters", "show", file, "0002")
    assert "(none)" in out


@pytest.mark.parametrize(
    ("wanted", "told"),
    [("0", "several dead letter ids start with"), ("ffff", "no dead letter"), ("", "no dead letter")],
)
def test_an_id_that_names_none_or_several(xrouter: Run, config: Path, wanted: str, told: str) -> None:
    status, _, err = xrouter("dead-letters", "show", config, wanted)
    assert status == 1 and told in err and "hint:" in err


def test_marked_values_are_shown_only_when_asked_for(xrouter: Run, tmp_path: Path) -> None:
    catalog = json.loads(json.dumps(CATALOG))
    catalog["messagegroups"]["G"]["messages"]["Sale"]["envelopemetadata"]["subject"]["sensitive"] = True
    (tmp_path / "catalog.json").write_text(json.dumps(catalog))
    file = settings_file(tmp_path, redact=["/card"])
    write_letters(
        file, [row(1, body=b'{"card": "4111222233334444"}', detail="subject 'shop/7', card 4111222233334444")]
    )
    for arguments in (
        ("list", file),
        ("list", file, "--format", "json"),
        ("show", file, "0001"),
        ("show", file, "0001", "--format", "json"),
    ):
        status, out, _ = xrouter("dead-letters", *arguments)
        assert status == 0 and "•••" in out
        assert "4111" not in out and "shop/7" not in out
        _, out, _ = xrouter("dead-letters", *arguments, "--reveal")
        assert "4111222233334444" in out and "shop/7" in out and "•••" not in out


def test_when_the_catalog_cannot_be_read_nothing_is_shown_that_it_might_mark(xrouter: Run, config: Path) -> None:
    (config.parent / "catalog.json").unlink()
    status, out, err = xrouter("dead-letters", "list", config)
    assert status == 0 and "its sensitive marks are unknown" in err and "sold" not in out
    status, out, err = xrouter("dead-letters", "show", config, "0002", "--reveal")
    assert status == 0 and "sold" in out and "now: unknown" in out


def test_purge_by_hand(xrouter: Run, config: Path) -> None:
    status, _, err = xrouter("dead-letters", "purge", config)
    assert status == 1 and "--older AGE" in err
    status, out, _ = xrouter("dead-letters", "purge", config, "--older", "1d", "--dry-run")
    assert status == 0 and "delta: 2 letters would be removed" in out
    status, out, _ = xrouter("dead-letters", "purge", config, "--older", "1d")
    assert "delta: 2 letters removed" in out
    _, out, _ = xrouter("dead-letters", "list", config, "--standing", "all", "--format", "json")
    assert ids(out) == [letter_id(number) for number in (0x1000, 5, 4, 3)]
    assert xrouter("dead-letters", "purge", config, "--older", "1d")[1] == "nothing to remove\n"
    for age in ("soon", "0"):
        assert xrouter("dead-letters", "purge", config, "--older", age)[0] == 1


@pytest.mark.parametrize("redact", [["/"], [""], [" "]])
def test_marks_that_name_nothing_are_refused(xrouter: Run, tmp_path: Path, redact: list[str]) -> None:
    status, _, err = xrouter("dead-letters", "list", settings_file(tmp_path, redact=redact))
    assert status == 3 and "dead_letters.redact" in err and "is empty" in err
