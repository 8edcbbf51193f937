"""Pages say what the code does: their tables are those of the code, the README's example gives what it shows."""

from __future__ import annotations

from tests.support.readme import COMMANDS, SETTINGS, made


def test_the_tables_are_those_of_the_code() -> None:
    for page in (SETTINGS, COMMANDS):
        text = page.read_text(encoding="utf-8")
        assert text == made(text), f"{page.name} has drifted: run `python -m tests.support.readme`"
