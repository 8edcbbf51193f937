"""The page of rules, made from their table: ``python -m tests.support.rules_page`` writes it anew."""

from __future__ import annotations

from typing import Final

from catalog.linting.attributes import TABLE, render_rules_page

PAGE: Final = TABLE.parents[1] / "RULES.md"

if __name__ == "__main__":
    PAGE.write_text(render_rules_page(), encoding="utf-8")
