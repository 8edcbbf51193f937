"""Reports of results: as text, as JSON, as JUnit's XML, and as annotations of GitHub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from catalog.escaping import one_line
from router.commands.test.coverage import Coverage
from router.commands.test.running import Result
from router.terminal import Terminal, counted, shown_value, styled

SHOWN: Final = 300
"""Characters of a value in a text; JSON has all."""
_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Placed:
    """A result with the lines of what differs, in the order of its differences, and that of its case."""

    result: Result
    line: int | None
    lines: tuple[int | None, ...]

    @property
    def file(self) -> str:
        """The path of its file."""
        return str(self.result.file.path)

    @property
    def place(self) -> str:
        """The file, and the line of the case."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def texts(self) -> Iterator[str]:
        """Yield a line for each difference, with its place, and why.

        Where a record became a dead letter instead of an event, or an event instead of one, all else follows from that.
        """
        pairs = [*zip(self.result.differences, self.lines, strict=True)]
        other = [pair for pair in pairs if pair[0].pointer.endswith("/expect/outcome")]
        for each, line in other or pairs:
            at = "" if line is None or line == self.line else f"line {line}: "
            yield f"{at}{each.pointer}: expected {_value(each.expected)}, found {_value(each.actual)}"
        if other and len(pairs) > 1:
            yield f"and {counted(len(pairs) - 1, 'difference')} because of it"
        if self.result.why:
            yield f"why: {self.result.why}"

    def to_json(self) -> dict[str, Any]:
        """Return the form of reports."""
        wrong = [
            {"pointer": each.pointer, "line": line, "expected": each.expected, "found": each.actual}
            for each, line in zip(self.result.differences, self.lines, strict=True)
        ]
        case, head = self.result.case, {"file": self.file, "line": self.line}
        rest = {"differences": wrong, "why": self.result.why, "outcome": self.result.outcome}
        return {**head, "pointer": case.pointer, "name": case.name, **rest}


def placed(results: Iterable[Result]) -> list[Placed]:
    """Return the results with their lines, in their order; each file is looked through once."""
    located: list[Placed] = []
    for _, members in groupby(results, key=lambda result: result.file.path):
        group = list(members)
        places = [(each.case, pointer) for each in group for pointer in _pointers(each)]
        lines = group[0].file.lines(places)
        for each in group:
            own = tuple(lines.get((each.case, wrong.pointer)) for wrong in each.differences)
            located.append(Placed(each, lines.get((each.case, each.case.pointer)), own))
    return located


def write_text(console: Terminal, failed: Sequence[Placed], total: int, seconds: float) -> None:
    """Write the failed cases, each with what differs, and the counts."""
    for each in failed:
        console.print(styled(("FAILED ", "bold red"), one_line(f"{each.place} {each.result.case.name}")))
        for text in each.texts():
            console.print(styled(one_line(f"  {text}")))
    passed = f"{total - len(failed)} of {counted(total, 'case')} passed, matched in {seconds:.2f} s"
    console.print(styled((passed, "bold red" if failed else "bold green")))


def json_report(failed: Sequence[Placed], total: int, seconds: float, coverage: Coverage) -> dict[str, Any]:
    """Return the report as one object."""
    counts = {"cases": total, "passed": total - len(failed), "failed": len(failed), "seconds": round(seconds, 6)}
    return {**counts, "failures": [each.to_json() for each in failed], "coverage": coverage.to_json()}


def junit(results: Sequence[Placed]) -> str:
    """Return all results as a document of JUnit: a suite for each file."""
    top = ElementTree.Element("testsuites", _counts(results))
    for file, members in groupby(results, key=lambda each: each.file):
        group = list(members)
        suite = ElementTree.SubElement(top, "testsuite", {"name": _xml(file), **_counts(group)})
        for each in group:
            line = {} if each.line is None else {"line": str(each.line)}
            about = {
                "classname": _xml(Path(file).name),
                "name": _xml(each.result.case.name),
                "file": _xml(file),
                **line,
            }
            case = ElementTree.SubElement(suite, "testcase", about)
            if not each.result.passed:
                texts = [*each.texts()]
                failure = ElementTree.SubElement(case, "failure", {"message": _xml(texts[0])})
                failure.text = _xml("\n".join(texts))
    ElementTree.indent(top)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(top, encoding="unicode")}\n'


def github_annotations(failed: Iterable[Placed], shortages: Iterable[str]) -> Iterator[str]:
    """Yield the commands by which a workflow of GitHub shows failures at their lines."""
    for each in failed:
        line = next((line for line in each.lines if line is not None), each.line)
        about = {"file": each.file, **({} if line is None else {"line": str(line)}), "title": each.result.case.name}
        properties = ",".join(f"{name}={_property(value)}" for name, value in about.items())
        yield f"::error {properties}::{_data('; '.join(each.texts()))}"
    for text in shortages:
        yield f"::error title=coverage::{_data(text)}"


def _pointers(result: Result) -> tuple[str, ...]:
    return (result.case.pointer, *(each.pointer for each in result.differences))


def _counts(results: Sequence[Placed]) -> dict[str, str]:
    failed = sum(not each.result.passed for each in results)
    return {"tests": str(len(results)), "failures": str(failed), "errors": "0", "skipped": "0"}


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value) if isinstance(value, str) else shown_value(_plain(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _plain(value: Any) -> Any:
    """Return the value of an outcome without what would fill a screen."""
    if isinstance(value, Mapping):
        return {name: inner for name, inner in value.items() if name != "nearest"}
    return value


def _xml(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
