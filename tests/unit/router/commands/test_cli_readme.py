"""Pages say what the code does: their tables are those of the code, the README's example gives what it shows."""

from __future__ import annotations

import re

from router.settings.routes import REASONS
from tests.support.readme import COMMANDS, README, SETTINGS, made


def test_the_tables_are_those_of_the_code() -> None:
    for page in (SETTINGS, COMMANDS):
        text = page.read_text(encoding="utf-8")
        assert text == made(text), f"{page.name} has drifted: run `python -m tests.support.readme`"


def test_every_reason_and_the_way_to_the_command_are_told() -> None:
    text = README.read_text(encoding="utf-8")
    assert sorted(re.findall(r"\[`([a-z-]+)`\]\(router/MATCHING\.md#\1\)", text)) == sorted(REASONS)
    assert ".venv/bin/xrouter" in text
