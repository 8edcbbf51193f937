"""``xrouter match --expect``: outcomes held against expected ones, in the forms of the cases of ``xrouter test``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from catalog.errors import DocumentError
from catalog.escaping import one_line
from catalog.parsing.regular import open_input
from catalog.parsing.texts import parse_text
from catalog.parsing.yaml_tree import parse_yaml
from router.commands.test.cases import LINES, MAX_BYTES, outcome_faults
from router.commands.test.comparing import Difference, differences
from router.terminal import counted, shown_value

OPTION: Final = "--expect"
MAX_SHOWN: Final = 50
"""Records whose differences are shown; the others are counted."""
SHOWN: Final = 300
"""Characters of a value."""


class ExpectationUnreadable(ValueError):
    """A text or file that says nothing about outcomes, or what `match` does not decide; each line is a fault."""


class Expectation:
    """What should become of records: the same for each, or one after the other. It counts what is not so."""

    def __init__(self, forms: list[Mapping[str, Any]], *, each: bool) -> None:
        """With *each* the one form is for every record."""
        self._forms = forms
        self._each = each
        self._records = 0
        self._wrong = 0

    def compare(self, outcome: Mapping[str, Any]) -> Iterator[str]:
        """Take the outcome of the next record, and yield a line for each value that is not as expected."""
        number = self._records
        self._records += 1
        wrong = tuple(self._of(number, outcome))
        self._wrong += bool(wrong)
        if wrong and self._wrong <= MAX_SHOWN:
            yield from (f"record {number + 1}: {_text(each)}" for each in wrong)

    def summary(self) -> tuple[str, bool]:
        """Return a line that says how it ended, and whether all is as expected: each record, and their number."""
        missing = 0 if self._each else max(0, len(self._forms) - self._records)
        good = self._records - self._wrong
        text = f"{good} of {counted(self._records, 'record')} as expected"
        if missing:
            text += f"; {counted(missing, 'record')} more expected than came"
        return text, bool(self._records) and not self._wrong and not missing

    def _of(self, number: int, outcome: Mapping[str, Any]) -> Iterator[Difference]:
        if not self._each and number >= len(self._forms):
            yield Difference("/", None, {"outcome": outcome["outcome"]})
            return
        yield from differences(self._forms[0 if self._each else number], outcome, "")


def expectation_of(text: str) -> Expectation:
    """Read what ``--expect`` was given: an outcome or a list of them, in braces or brackets, or a file with such.

    Raises:
        ExpectationUnreadable: it is none; names each fault and its place.
    """
    try:
        tree = parse_yaml(OPTION, text).tree if text.lstrip()[:1] in ("{", "[") else _tree_of(Path(text))
    except DocumentError as error:
        raise ExpectationUnreadable(str(error)) from error
    forms = tree if isinstance(tree, list) else [tree]
    if not forms:
        raise ExpectationUnreadable(f"{OPTION} is an empty list, which asks nothing of any record")
    faults = [
        f"{f'/{number}' if isinstance(tree, list) else ''}{at or '/'} {fault}"
        for number, form in enumerate(forms)
        for at, fault in outcome_faults(form)
    ]
    if faults:
        raise ExpectationUnreadable("\n".join(faults[:MAX_SHOWN]))
    return Expectation(forms, each=not isinstance(tree, list))


def _tree_of(path: Path) -> Any:
    try:
        with open_input(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ExpectationUnreadable(
            f"{path} cannot be read: {reason}; give a file, or an outcome in braces such as '{{outcome: routed}}'"
        ) from error
    if len(data) > MAX_BYTES:
        raise ExpectationUnreadable(f"{path} has more than {MAX_BYTES} bytes")
    if path.suffix.lower() not in LINES:
        return parse_text(str(path), data).tree
    lines = enumerate(data.split(b"\n"), 1)
    return [parse_text(f"{path}:{number}", line.strip()).tree for number, line in lines if line.strip()]


def _text(each: Difference) -> str:
    return one_line(f"{each.pointer}: expected {_shown(each.expected)}, found {_shown(each.actual)}")


def _shown(value: Any) -> str:
    text = shown_value(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
