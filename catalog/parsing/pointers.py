"""Resolve JSON pointers (RFC 6901), and find their lines in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from catalog.model import Finding
from catalog.parsing.regular import read_regular

# JSON pointers (RFC 6901).


def unescape_step(step: str) -> str:
    """Return the member name of an escaped pointer step."""
    return step.replace("~1", "/").replace("~0", "~")


def parse_pointer(pointer: str) -> list[str]:
    """Return the unescaped steps of a pointer; empty for the whole document."""
    return [unescape_step(step) for step in pointer.split("/")[1:]]


def resolve_pointer(document: Any, pointer: str) -> Any:
    """Return the value that a JSON pointer refers to.

    Raises:
        KeyError: there is none.
    """
    for step in parse_pointer(pointer):
        if isinstance(document, list) and step.isdecimal() and len(step) < 10 and int(step) < len(document):
            document = document[int(step)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise KeyError(pointer)
    return document


def to_pointer(path: Iterable[str | int]) -> str:
    """Return the JSON pointer of a path."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


# Finding the line of a JSON pointer in a text.
#
# Done only when findings are shown, so loading costs nothing. One pass over the events of YAML, which includes JSON,
# follows the members on the way to requested pointers. Invalid JSON or YAML gives fewer lines; the parser reports it.

MAX_BYTES: Final = 16 * 1024 * 1024
"""Larger files get no lines, since the search would take longer than reading them."""
_PAIR: Final = re.compile(r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""The escapes of one character that JSON has and YAML has not; an escaped backslash begins none."""
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def lines_of_findings(findings: Iterable[Finding]) -> dict[tuple[str, str], int]:
    """Return the lines of findings in local files, by file and pointer."""
    pointers: dict[str, set[str]] = {}
    for finding in findings:
        if finding.pointer and "://" not in finding.file:
            pointers.setdefault(finding.file, set()).add(finding.pointer)
    lines: dict[tuple[str, str], int] = {}
    for file, wanted in pointers.items():
        path = Path(file)
        try:
            data = read_regular(path) if path.is_file() and path.stat().st_size <= MAX_BYTES else b""
        except OSError:
            continue  # removed or locked since: findings are shown without lines
        lines.update(((file, pointer), line) for pointer, line in lines_of(data, wanted).items())
    return lines


def lines_of(data: bytes, pointers: Collection[str]) -> dict[str, int]:
    """Return the line, from 1, of each pointer's key, or of its nearest existing ancestor.

    Pointers without any existing part, and the whole document, are left out. Never raises.
    """
    root = _Member()
    for pointer in pointers:
        member = root
        for step in pointer.split("/")[1:]:
            member = member.inside.setdefault(step, _Member())
    with suppress(yaml.YAMLError, ValueError):  # the parser reports an unreadable document
        _find_lines(_PAIR.sub(_join_surrogates, data.decode("utf-8-sig", errors="replace")), root)
    lines = ((pointer, _nearest_line(root, pointer)) for pointer in pointers)
    return {pointer: line for pointer, line in lines if line is not None}


def _join_surrogates(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) == 2 else str(json.loads(f'"{match[0]}"'))


@dataclass(slots=True)
class _Member:
    """A member of the document that pointers name or pass: its members by step, and its line, once it is found.

    Members are in one another, since a pointer for each would cost its length.
    """

    inside: dict[str, _Member] = field(default_factory=dict)
    line: int | None = None


def _nearest_line(member: _Member, pointer: str) -> int | None:
    line = None
    for step in pointer.split("/")[1:]:
        member = member.inside[step]
        if member.line is None:
            break
        line = member.line
    return line


@dataclass(slots=True)
class _OpenCollection:
    """A collection being read: its wanted members by step, and the one whose value is next; None before a key."""

    wanted: Mapping[str, _Member]
    is_map: bool
    next: _Member | None = None
    count: int = 0


def _find_lines(text: str, root: _Member) -> None:
    """Set the lines of all members of *root*, which is the whole document."""
    stack: list[_OpenCollection] = []
    unwanted = _Member()
    events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
    for event in events:
        mark = event.start_mark
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        here = stack[-1] if stack else _OpenCollection({}, True, root)
        member, here.next = here.next, None
        if member is None:
            step = getattr(event, "value", "") if here.is_map else here.count
            member = here.wanted.get(to_pointer([step])[1:], unwanted) if here.wanted else unwanted
            member.line = mark.line + 1
            here.count += 1
            if here.is_map:  # That was the key; what is in a key has no pointer.
                here.next, member = member, unwanted
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append(_OpenCollection(member.inside, isinstance(event, yaml.MappingStartEvent)))
