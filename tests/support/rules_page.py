"""The page of rules, made from their table: ``python -m tests.support.rules_page`` writes it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from catalog.linting.attributes import render_rules_page

PAGE: Final = Path(__file__).resolve().parents[2] / "catalog" / "RULES.md"

if __name__ == "__main__":
    PAGE.write_text(render_rules_page(), encoding="utf-8")
