"""The parts of pages, and the schema of settings, that are made from the code: ``python -m tests.support.readme``
writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from router.errors import EXIT_CODES
from router.settings.load import SCHEMA_NAME
from tests.support.cases import read_cases
from tests.support.settings_pages import encode_json_schema, make_settings_reference

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = ROOT / "README.md"
CATALOGS: Final = ROOT / "catalog" / "README.md"
SETTINGS: Final = ROOT / "deploy" / "SETTINGS.md"
COMMANDS: Final = ROOT / "deploy" / "COMMANDS.md"
BAR: Final = r"\|"
MEANINGS: Final[dict[int, str]] = read_cases(ROOT / "tests" / "cases" / "exit_codes.yaml")


def made(text: str) -> str:
    """Return a page with its generated parts as they should be."""
    for name, table in (("settings", settings_table), ("exit codes", exit_codes_table)):
        if f"<!-- {name}: begin -->" in text:
            text = _between(text, name, table())
    return text


def settings_table() -> str:
    """Return all settings as a Markdown table."""
    rows = ["| Key | Type | Default | |", "|---|---|---|---|"]
    for key, kind, default, doc in make_settings_reference():
        shown = f"`{default}`" if default and default != "required" else default
        rows.append(f"| `{key}` | {kind.replace('|', BAR)} | {shown} | {doc} |")
    return "\n".join(rows)


def exit_codes_table() -> str:
    """Return all exit codes as a Markdown table; a code without a meaning here is a KeyError."""
    codes = sorted({0, 2, 130, *EXIT_CODES.values()})
    return "\n".join(["| Exit code | |", "|---|---|", *(f"| {code} | {MEANINGS[code]} |" for code in codes)])


def block(text: str, name: str) -> str:
    """Return the code block that follows the marker ``<!-- example: NAME -->``."""
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    if found is None:
        raise ValueError(f"README.md has no example {name}")
    return found.group(1)


def consoles(text: str) -> list[tuple[list[str], list[str]]]:
    """Return the blocks of commands: the commands, which may go over several lines, and the other lines shown."""
    found = []
    for body in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        commands: list[str] = []
        shown: list[str] = []
        for line in body.splitlines():
            if line.startswith("$ "):
                commands.append(line.removeprefix("$ "))
            elif not shown and commands and commands[-1].endswith("\\"):
                commands[-1] += f"\n{line}"
            else:
                shown.append(line)
        found.append((commands, shown))
    return found


def _between(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{content}{end}{after}"


if __name__ == "__main__":
    for page in (SETTINGS, COMMANDS):
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "router" / "settings" / SCHEMA_NAME).write_bytes(encode_json_schema())
