"""Every rule that a finding can name: what it says, why that matters, and where it comes from.

The table is ``rules.yaml``, the one place for it: ``check --explain``, SARIF and ``catalog/RULES.md`` are made from it,
and a test holds that nothing reports a rule, or a severity, that is not in there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Final

from catalog.model import Finding, Severity
from catalog.parsing.texts import parse_text

TABLE: Final = Path(__file__).with_name("rules.yaml")
_PAGE: Final = re.compile(r"\w+/([A-Z]+\.md(?:#[a-z-]+)?)")
"""A page of this project, as ``basis`` names it: by its path in the repository."""
_HEAD: Final = """\
# Rules of lint

What `xrouter check` can say, made from `catalog/linting/rules.yaml` (`python -m tests.support.rules_page` writes this
page anew). `xrouter check --explain RULE` explains one of them. An *error* is something that cannot be used; a
*warning* something that is used, and is unusual or will not do what it seems to; an *info* something that is right and
worth knowing. Where a rule has two severities, the usual one comes first.

An error marked *idle* says that something never receives, never matches or never validates, or that a reference leads
nowhere. `check` ends with 1. All else works and what is named may come later, so `run`, a reload, a registry and
`catalog push` accept the catalog all the same. A reload after which a source has no candidate left is refused all the
same (deploy/OPERATIONS.md#reload).
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``severities`` are those it reports with, the usual one first.

    ``doc`` says in one sentence what was found, ``why`` what comes of it, ``basis`` which text asks for it: a section
    of this project's pages, mostly of ``router/JUDGING.md``, or of a specification. The errors of an ``idle`` rule
    leave something without effect, which is a reason for ``check`` to fail and none to refuse a changed catalog.
    """

    id: str
    family: str
    severities: tuple[Severity, ...]
    doc: str
    why: str
    basis: str
    idle: bool = False

    @property
    def severity(self) -> Severity:
        """The usual severity."""
        return self.severities[0]


@cache
def rules() -> Mapping[str, Rule]:
    """Return all rules by id, family by family."""
    tree = parse_text(TABLE.name, TABLE.read_bytes()).tree
    return MappingProxyType(
        {
            name: Rule(
                name,
                family,
                tuple(body["severities"]),
                body["doc"],
                body["why"],
                body["basis"],
                body.get("idle", False),
            )
            for family, members in tree.items()
            for name, body in members.items()
        }
    )


def refusing(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the errors for which a changed catalog is refused: those of rules that are not idle."""
    return tuple(
        each for each in findings if each.severity == "error" and not (each.rule in rules() and rules()[each.rule].idle)
    )


def explanation(rule: Rule) -> str:
    """Return what ``check --explain`` says of a rule, as plain text of four lines."""
    return "\n".join((f"{rule.id} ({' or '.join(_severities(rule))})", rule.doc, rule.why, f"Basis: {rule.basis}"))


def page() -> str:
    """Return ``catalog/RULES.md``."""
    lines = [_HEAD]
    for family, members in groupby(rules().values(), key=lambda rule: rule.family):
        lines += [
            f"## {family}",
            "",
            "| Rule | Severity | What was found | What comes of it | Basis |",
            "|---|---|---|---|---|",
        ]
        for rule in members:
            basis = _PAGE.sub(r"[\1](../\g<0>)", rule.basis)
            cells = (f"`{rule.id}`", ", ".join(_severities(rule)), rule.doc, rule.why, basis)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _severities(rule: Rule) -> tuple[str, ...]:
    return tuple(f"{each} (idle)" if rule.idle and each == "error" else each for each in rule.severities)
