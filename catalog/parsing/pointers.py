"""Resolve JSON pointers (RFC 6901), and find their lines in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    steps = ((pointer, pointer.split("/")) for pointer in pointers)
    above = {pointer: ["/".join(parts[:end]) for end in range(len(parts), 1, -1)] for pointer, parts in steps}
    wanted: dict[str, dict[str, str]] = {}
    for pointer in {each for listed in above.values() for each in listed}:
        parent, _, step = pointer.rpartition("/")
        wanted.setdefault(parent, {})[step] = pointer
    lines: dict[str, int] = {}
    try:
        lines.update(_iter_lines(_PAIR.sub(_join_surrogates, data.decode("utf-8-sig", errors="replace")), wanted))
    except (yaml.YAMLError, ValueError):
        pass  # the parser reports an unreadable document
    found = {pointer: next(filter(None, map(lines.get, listed)), None) for pointer, listed in above.items()}
    return {pointer: line for pointer, line in found.items() if line is not None}


def _join_surrogates(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) == 2 else str(json.loads(f'"{match[0]}"'))


_UNWANTED: Final = "-"
"""The pointer of members of which, and below which, no line is wanted: a whole one each would cost its length."""


@dataclass(slots=True)
class _OpenCollection:
    """A collection being read: its wanted members by step, and the pointer of the member whose value is next.

    ``member`` is None before a key.
    """

    wanted: Mapping[str, str]
    is_map: bool
    member: str | None = None
    members: int = 0


def _iter_lines(text: str, wanted: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, int]]:
    """Yield the wanted pointers with their lines; *wanted* has them by parent and step."""
    stack: list[_OpenCollection] = []
    events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
    for event in events:
        mark = event.start_mark
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        here = stack[-1] if stack else _OpenCollection({}, True, "")
        pointer = here.member
        if pointer is None:
            step = getattr(event, "value", "") if here.is_map else here.members
            here.member = here.wanted.get(to_pointer([step])[1:], _UNWANTED) if here.wanted else _UNWANTED
            if here.member != _UNWANTED:
                yield here.member, mark.line + 1
        if pointer is not None or not here.is_map:
            pointer, here.member = here.member, None
            here.members += 1
        if isinstance(event, yaml.CollectionStartEvent):
            inside = wanted.get(_UNWANTED if pointer is None else pointer, {})
            stack.append(_OpenCollection(inside, isinstance(event, yaml.MappingStartEvent)))
