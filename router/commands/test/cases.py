"""Read case files strictly: records with their expected outcomes, each with its location.

A file is one document, ``{"catalog": PATHS, "config": CONFIG, "cases": [CASE...]}``, in YAML or JSON, or a case on each
line (``.jsonl``), the first of which may be the same head without cases. A case is ``{"name", "record", "expect"}``:
the record in the form of ``match``, and the members of its outcome that matter. Paths start from the file's folder.
``cases.schema.json`` says the same to editors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import jsonschema_rs

from catalog.documents.fetching import CASES
from catalog.findings import DocumentError
from catalog.parsing.pointers import lines_of, to_pointer
from catalog.parsing.regular import read_input
from catalog.parsing.texts import parse_text
from router.errors import RouterError, hint_near

LINES: Final = (".jsonl", ".ndjson")
SUFFIXES: Final = (".yaml", ".yml", ".json", *LINES)
MAX_PROBLEMS: Final = 50
"""Maximum errors that are shown."""
ROUTING_MEMBERS: Final = ("endpoint", "route", "sinks", "topics")
"""Members that only a router's settings decide."""
SCHEMA: Final = "$schema"
"""The member by which JSON names its schema, for editors."""
MAX_MESSAGE: Final = 200
"""Characters of what is wrong with a value, which it quotes."""
_HEAD: Final = frozenset({"catalog", "config"})


class CasesUnreadable(RouterError):
    """Case files that cannot be used; ``problems`` has all errors, the first is also in the message."""

    def __init__(self, problems: list[str]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(problems[0] + more)
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One case. ``record`` is a line of JSON as ``match`` reads it; ``line`` is known only for JSON lines files."""

    name: str
    pointer: str
    record: bytes
    expect: Mapping[str, Any]
    line: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CaseFile:
    """One case file. ``catalog`` and ``config`` are its own, as paths relative to the working directory."""

    path: Path
    data: bytes = field(repr=False)
    catalog: tuple[str, ...]
    config: Path | None
    cases: tuple[Case, ...]


def read_cases(paths: Iterable[Path]) -> list[CaseFile]:
    """Read case files, and those below folders (``*.cases.yaml``, ``.json``, ``.jsonl``).

    Raises:
        CasesUnreadable: a file cannot be read or is not a case file, or there are no cases.
    """
    problems: list[str] = []
    found = [_read_file(path, problems) for given in paths for path in _list_case_files(given)]
    if problems:
        raise CasesUnreadable(problems[:MAX_PROBLEMS])
    if not any(file.cases for file in found):
        raise CasesUnreadable([f"there are no cases; give files, or folders with files such as NAME{CASES}.yaml"])
    return found


def iter_outcome_faults(form: Any) -> Iterator[tuple[str, str]]:
    """Yield pointer and error of each member that is not part of an outcome of ``match``."""
    if form == {}:
        yield "", "expects nothing"
    yield from iter_faults(form, "expected")
    events = form.get("events") if isinstance(form, dict) else None
    listed = events if isinstance(events, list) else []
    places = {"": form} | {f"/events/{number}": each for number, each in enumerate(listed)}
    for at, each in places.items():
        routed = [name for name in ROUTING_MEMBERS if isinstance(each, dict) and name in each]
        yield from ((f"{at}/{name}", "requires a router's settings; use `xrouter test --config`") for name in routed)


def read_case_schema() -> bytes:
    """Return the JSON Schema of case files from the package."""
    return (files("router.commands.test") / "cases.schema.json").read_bytes()


def iter_faults(form: Any, part: str = "") -> Iterator[tuple[str, str]]:
    """Yield pointer and fault of whatever the schema of case files forbids; *part* names one of its definitions."""
    schema, validator = _load_validator(part)
    for error in validator.iter_errors(form):
        at = to_pointer([str(step) for step in error.instance_path])
        holder: Any = schema
        described = ""
        for step in error.schema_path[:-1]:
            holder = holder[step]
            described = holder.get("description", described) if isinstance(holder, dict) else described
        unknown: list[str] = getattr(error.kind, "unexpected", None) or []
        for name in unknown:
            yield at + to_pointer([name]), f"is unknown; {hint_near(name, holder['properties'])}"
        if not unknown:
            yield at, f"is not valid: {error.message[:MAX_MESSAGE]}" + (f" ({described})" if described else "")


@cache
def _load_validator(part: str) -> tuple[Any, jsonschema_rs.Validator]:
    schema = json.loads(read_case_schema())
    if part:
        schema = {"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]}
    return schema, jsonschema_rs.validator_for(schema)


def _list_case_files(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given]
    return [
        path
        for path in sorted(given.rglob(f"*{CASES}.*"))
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(given).parts)
        and path.is_file()
    ]


def _read_file(path: Path, problems: list[str]) -> CaseFile:
    """Read one file; skip what is not a case, and add it to *problems*."""
    head: Mapping[str, Any] = {}
    cases: list[Case] = []
    data = b""
    try:
        if path.suffix.lower() not in SUFFIXES:
            raise DocumentError(f"{path} is not a case file: its name must end in one of {', '.join(SUFFIXES)}")
        data = read_case_bytes(path)
        if path.suffix.lower() in LINES:
            head, cases = _read_lines(path, data, problems)
        else:
            head, cases = _read_document(path, data, problems)
    except DocumentError as error:
        problems.append(str(error))
    base = path.parent
    catalog = tuple(each if "://" in each else str(base / each) for each in _to_strings(head.get("catalog")))
    config = base / str(head["config"]) if head.get("config") else None
    return CaseFile(path, data, catalog, config, tuple(cases))


def _read_document(path: Path, data: bytes, problems: list[str]) -> tuple[Mapping[str, Any], list[Case]]:
    parsed = parse_text(str(path), data)
    notes = [(place.pointer, "occurs twice") for place in parsed.duplicates]
    tree = parsed.tree
    if not isinstance(tree, dict):
        raise DocumentError(f"{path} is not a map with the member cases")
    given = tree.get("cases", [])
    notes += iter_faults({**tree, "cases": [] if isinstance(given, list) else given})
    given = given if isinstance(given, list) else []
    cases: list[Case] = []
    for number, form in enumerate(given):
        pointer = f"/cases/{number}"
        faults = [(pointer + at, fault) for at, fault in iter_faults(form, "case")]
        notes += faults
        if not faults:
            cases.append(_make_case(form, pointer, number, None))
    if notes:
        lines = lines_of(data, {pointer for pointer, _ in notes})
        problems += (f"{_format_location(path, lines.get(at))}: {at or '/'} {fault}" for at, fault in notes)
    return tree, cases


def _read_lines(path: Path, data: bytes, problems: list[str]) -> tuple[Mapping[str, Any], list[Case]]:
    head: Mapping[str, Any] = {}
    cases: list[Case] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        if len(problems) >= MAX_PROBLEMS:
            break
        try:
            form = parse_text(f"{path}.json", line.strip()).tree
        except DocumentError:
            problems.append(f"{_format_location(path, number)}: is not a JSON object")
            continue
        begins = not cases and not head and isinstance(form, dict) and bool(form) and form.keys() <= _HEAD
        faults = list(iter_faults(form) if begins else iter_faults(form, "case"))
        problems += (f"{_format_location(path, number)}: {at or '/'} {fault}" for at, fault in faults)
        if begins:
            head = form
        elif not faults:
            cases.append(_make_case(form, "", len(cases), number))
    return head, cases


def read_case_bytes(path: Path) -> bytes:
    """Return the bytes of a file of cases or expectations.

    Raises:
        DocumentError: it cannot be read, or is too large.
    """
    try:
        return read_input(path)
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error


def _make_case(form: Mapping[str, Any], pointer: str, number: int, line: int | None) -> Case:
    record = json.dumps(form["record"]).encode("ascii")
    return Case(str(form.get("name") or f"case {number + 1}"), pointer, record, form["expect"], line)


def _to_strings(value: Any) -> tuple[str, ...]:
    """Return a string or a list of strings as strings; empty for anything else."""
    listed = value if isinstance(value, list) else [value]
    return tuple(listed) if all(isinstance(each, str) and each for each in listed) else ()


def _format_location(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}:{line}"
