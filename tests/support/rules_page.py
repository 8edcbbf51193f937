"""The page of rules, made from their table: ``python -m tests.support.rules_page`` writes it anew."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Final

from catalog.linting.attributes import list_severities, load_rules

PAGE: Final = Path(__file__).resolve().parents[2] / "catalog" / "RULES.md"
_PAGE: Final = re.compile(r"\w+/([A-Z]+\.md(?:#[a-z-]+)?)")
"""A page of this project, as written in ``basis``: its path in the repository."""
_PAGE_HEAD: Final = """\
# Rules of lint

What `xrouter check` reports, generated from `catalog/linting/rules.yaml` by `python -m tests.support.rules_page`.
`xrouter check --explain RULE` explains one rule. An *error* is something that cannot be used; a *warning* something
that is used, but is unusual or probably does not do what was intended; an *info* something that is valid and worth
knowing. If a rule has two severities, the usual one comes first.

An error marked *idle* means that something never receives, never matches or never validates, or that a reference
cannot be resolved. `check` exits with 1. Everything else works and the missing part may be added later, so `run`, a
reload, a registry and `catalog push` still accept the catalog. A reload that leaves a source without candidates is
rejected all the same (deploy/OPERATIONS.md#reload).
"""


def render_rules_page() -> str:
    """Return the text of ``catalog/RULES.md``."""
    lines = [_PAGE_HEAD]
    for family, members in groupby(load_rules().values(), key=lambda rule: rule.family):
        lines += [
            f"## {family}",
            "",
            "| Rule | Severity | What was found | Consequence | Basis |",
            "|---|---|---|---|---|",
        ]
        for rule in members:
            basis = _PAGE.sub(r"[\1](../\g<0>)", rule.basis)
            cells = (f"`{rule.id}`", ", ".join(list_severities(rule)), rule.doc, rule.why, basis)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(render_rules_page(), encoding="utf-8")
