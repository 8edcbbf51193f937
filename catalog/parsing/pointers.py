"""Resolve JSON pointers (RFC 6901), and find their lines in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
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


@dataclass(slots=True)
class _PointerNode:
    """A node on the way to a requested pointer; ``line``, from 1, is set when it is found."""

    members: dict[str, _PointerNode] = field(default_factory=dict)
    line: int | None = None

    def child(self, key: str) -> _PointerNode:
        return self.members.setdefault(key, _PointerNode())


@dataclass(slots=True)
class _OpenCollection:
    """A collection being read. ``index`` counts the elements of an array; it is None in an object."""

    wanted: _PointerNode | None
    index: int | None
    key_next: bool
    inner: _PointerNode | None = None

    def enter_member(self, key: str, line: int) -> None:
        """Enter a member, whose value is read next."""
        self.inner = self.wanted.members.get(key) if self.wanted is not None else None
        if self.inner is not None:
            self.inner.line = line

    def begin_value(self) -> _PointerNode | None:
        """Return the node of the value that begins now; None if it was not requested."""
        inner, self.inner = self.inner, None
        return inner


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
        lines.update(((file, pointer), line) for pointer, line in lines_of(file, data, wanted).items())
    return lines


def lines_of(file: str, data: bytes, pointers: Iterable[str]) -> dict[str, int]:
    """Return the line, from 1, of each pointer's key, or of its nearest existing ancestor.

    Pointers without any existing part, and the whole document, are left out. *file* decides between JSON and YAML.
    Never
    raises.
    """
    text = data.decode("utf-8-sig", errors="replace")
    root = _PointerNode()
    split = {pointer: parse_pointer(pointer) for pointer in pointers}
    for parts in split.values():
        node = root
        for part in parts:
            node = node.child(part)
    _scan_events(_PAIR.sub(_join_surrogates, text), root)
    return {pointer: line for pointer, parts in split.items() if (line := _find_line(root, parts)) is not None}


def _join_surrogates(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) == 2 else str(json.loads(f'"{match[0]}"'))


def _find_line(root: _PointerNode, parts: list[str]) -> int | None:
    node, line = root, None
    for part in parts:
        node = node.members[part]
        if node.line is None:
            break
        line = node.line
    return line


def _scan_events(text: str, root: _PointerNode) -> None:
    stack: list[_OpenCollection] = []
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                stack.pop()
            elif isinstance(event, yaml.NodeEvent):
                _handle_node(event, stack, root)
    except (yaml.YAMLError, ValueError):
        return  # the parser reports an unreadable document


def _handle_node(event: Any, stack: list[_OpenCollection], root: _PointerNode) -> None:
    """Handle one node: a key, or a value that may begin a collection."""
    inner: _PointerNode | None = None
    if not stack:
        inner = root
    elif stack[-1].key_next:  # a key that is a collection has no name
        stack[-1].key_next = False
        stack[-1].enter_member(str(getattr(event, "value", "")), event.start_mark.line + 1)
    else:
        here = stack[-1]
        if here.index is None:
            here.key_next = True
        else:
            here.enter_member(str(here.index), event.start_mark.line + 1)
            here.index += 1
        inner = here.begin_value()
    if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
        mapping = isinstance(event, yaml.MappingStartEvent)
        stack.append(_OpenCollection(inner, None if mapping else 0, mapping))
