"""Cases made of records: what becomes of them now is what is expected from then on.

What is marked as sensitive is hidden in cases, which lie beside a catalog and are read by many. A record that then goes
elsewhere makes no case. Attributes that depend on the place of a record, such as the id of a mapped one, are left out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from catalog.convert import json_text, yaml_text
from catalog.errors import RecordError
from catalog.record import Record, parse_record
from router.commands.test.cases import LINES, SCHEMA
from router.commands.test.judging import Judging, lines_of_records
from router.errors import RouterError
from router.letters.letter import Letter
from router.letters.redaction import Redactor
from router.matching.records import EVERYTHING

COUNT: Final = 100
"""Records that make cases, unless more are asked for."""
MAX_LINE: Final = 64 * 1024 * 1024
SCHEMA_COPY: Final = ".cases.schema.json"
"""The schema beside a file of cases. Nobody looks for a catalog, or for cases, in what begins with a dot."""
_KEPT: Final = ("outcome", "reason", "message", "context", "cloudevent", "endpoint", "sinks", "topics")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Cases in their JSON form, and how many records made none since what decides about them is sensitive."""

    cases: tuple[dict[str, Any], ...]
    hidden: int


def record(records: Iterable[Record], judging: Judging, redactor: Redactor, count: int = COUNT) -> Recorded:
    """Return cases for the first *count* records."""
    given = list(itertools.islice(records, count))
    shown = [_shown(each, redactor) for each in given]
    lines = lines_of_records(shown)
    judged = judging.judge(lines)
    # Another place for each record: what then differs is no property of the record.
    moved = judging.judge([*lines, *lines]).outcomes[len(lines) :]
    before = judging.judge(lines_of_records(given)).outcomes if shown != given else judged.outcomes
    names: Counter[str] = Counter()
    cases: list[dict[str, Any]] = []
    for each, was, now, elsewhere in zip(shown, before, judged.outcomes, moved, strict=True):
        if _verdict(was) != _verdict(now):
            continue
        label = _label(now)
        names[label] += 1
        form = {"name": f"{label} {names[label]}", "record": each.to_json(), "expect": _expected(now, elsewhere)}
        cases.append(form)
    return Recorded(tuple(cases), len(given) - len(cases))


def records_of(file: BinaryIO, name: str) -> Iterator[Record]:
    """Yield native records, one a line, as ``emit`` writes and ``match`` takes them; empty lines are left out.

    Raises:
        RouterError: a line is no record, or longer than ``MAX_LINE``; names the line.
    """
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if not line:
            return
        if len(line) > MAX_LINE:
            raise RouterError(f"{name}:{number}: a line of more than {MAX_LINE} bytes is no record")
        if line.strip():
            try:
                yield parse_record(line)
            except RecordError as error:
                hint = "records are lines as `xrouter emit` writes them and `xrouter match` takes them"
                raise RouterError(f"{name}:{number}: {error}", hint=hint) from error


def head_of(catalog: Sequence[str], config: Path | None, output: Path) -> dict[str, Any]:
    """Return the head of a file of cases: the paths of catalog and settings as seen from its folder."""
    head: dict[str, Any] = {}
    if catalog:
        head["catalog"] = [each if "://" in each else _seen_from(output, Path(each)) for each in catalog]
    if config is not None:
        head["config"] = _seen_from(output, config)
    return head


def case_schema() -> bytes:
    """Return the JSON Schema of files of cases, as the package has it."""
    return (files("router.commands.test") / "cases.schema.json").read_bytes()


def text_of(head: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], output: Path) -> str:
    """Return a file of cases as its name says: lines of JSON, or YAML or JSON that names :data:`SCHEMA_COPY`."""
    suffix = output.suffix.lower()
    if suffix in LINES:
        forms = [head, *cases] if head else cases
        return "".join(f"{msgspec.json.encode(form).decode()}\n" for form in forms)
    document = {**head, "cases": list(cases)}
    if suffix in (".yaml", ".yml"):
        return f"# yaml-language-server: $schema=./{SCHEMA_COPY}\n{yaml_text(document)}"
    return json_text({SCHEMA: f"./{SCHEMA_COPY}", **document})


def _seen_from(output: Path, path: Path) -> str:
    here, there = output.resolve().parent.parts, path.resolve().parts
    same = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=False))])
    return Path(*[".."] * (len(here) - same), *there[same:]).as_posix()


def _shown(record: Record, redactor: Redactor) -> Record:
    """Return a record without what is sensitive in it."""
    if not redactor.looks_at_bodies:
        return record
    letter = Letter(
        id="",
        reason="",
        detail="",
        nearest=(),
        endpoint=record.endpoint,
        protocol=record.protocol,
        native=record.native,
        body=record.body,
        epoch="",
        position="",
        received=None,
        failed=None,
        attempts=0,
    )
    shown = redactor.redact(letter).letter
    return replace(record, native=shown.native, body=shown.body)


def _verdict(outcome: Mapping[str, Any]) -> Any:
    return [
        (each["outcome"], each.get("message"), each.get("reason"), each.get("route"))
        for each in outcome.get("events", [outcome])
    ]


def _label(outcome: Mapping[str, Any]) -> str:
    return str(outcome.get("reason") or outcome.get("message", "batch").rpartition("/")[2])


def _expected(outcome: Mapping[str, Any], elsewhere: Mapping[str, Any]) -> dict[str, Any]:
    """Return of an outcome what matters, and does not depend on the place of its record."""
    if outcome["outcome"] == "batch":
        pairs = zip(outcome["events"], elsewhere["events"], strict=True)
        return {"outcome": "batch", "events": [_expected(one, other) for one, other in pairs]}
    expected = {name: outcome[name] for name in _KEPT if outcome.get(name)}
    if "cloudevent" in expected:
        other = elsewhere.get("cloudevent", {})
        # Without an endpoint a mapped event has no source of its own.
        expected["cloudevent"] = {
            name: text
            for name, text in expected["cloudevent"].items()
            if other.get(name) == text and (name, text) != ("source", EVERYTHING)
        }
    return expected
