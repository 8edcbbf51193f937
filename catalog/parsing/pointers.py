"""JSON pointers (RFC 6901), and the lines of a text that they lead to."""

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

# JSON pointers (RFC 6901): their steps, and what they mean in a tree.


def unescaped(step: str) -> str:
    """Return the name that a step of a pointer stands for."""
    return step.replace("~1", "/").replace("~0", "~")


def steps_of(pointer: str) -> list[str]:
    """Return the names that lead to what a pointer means; none for the whole document."""
    return [unescaped(step) for step in pointer.split("/")[1:]]


def at_pointer(document: Any, pointer: str) -> Any:
    """Return what a JSON pointer means in a tree.

    Raises:
        KeyError: there is nothing.
    """
    for step in steps_of(pointer):
        if isinstance(document, list) and step.isdecimal() and len(step) < 10 and int(step) < len(document):
            document = document[int(step)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise KeyError(pointer)
    return document


def as_pointer(path: Iterable[str | int]) -> str:
    """Return the JSON pointer of a path."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


# Lines of JSON pointers: where in a text the member stands that a finding points to.
#
# Asked for only when findings are shown, so nothing of it costs a load. One pass over the tokens of JSON or the events
# of YAML, in which only members on the way to a wanted pointer are looked at; documents were parsed before, so that
# what is no JSON or YAML simply gives fewer lines.

MAX_BYTES: Final = 16 * 1024 * 1024
"""Larger files get no lines: looking would take longer than reading them did."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\],]', re.DOTALL)
_SPACE: Final = re.compile(r"\s*+")
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class _Wanted:
    """A place on the way to a wanted pointer; ``line`` is set when it is met, from 1."""

    members: dict[str, _Wanted] = field(default_factory=dict)
    line: int | None = None

    def child(self, key: str) -> _Wanted:
        return self.members.setdefault(key, _Wanted())


@dataclass(slots=True)
class _Open:
    """A collection being read. ``index`` counts the elements of an array; it is None in an object."""

    wanted: _Wanted | None
    index: int | None
    key_next: bool
    inner: _Wanted | None = None

    def meets(self, key: str, line: int) -> None:
        """Note a member; what it holds is read next."""
        self.inner = self.wanted.members.get(key) if self.wanted is not None else None
        if self.inner is not None:
            self.inner.line = line

    def begun(self) -> _Wanted | None:
        """Return what the collection or scalar that begins now stands for."""
        inner, self.inner = self.inner, None
        return inner


def lines_of_findings(findings: Iterable[Finding]) -> dict[tuple[str, str], int]:
    """Return lines by file and pointer, for findings in local files that can still be read."""
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
            continue  # it went away or was locked since it was read: the findings stand, without lines
        lines.update(((file, pointer), line) for pointer, line in lines_of(file, data, wanted).items())
    return lines


def lines_of(file: str, data: bytes, pointers: Iterable[str]) -> dict[str, int]:
    """Return the line, from 1, of each pointer: that of its key, or of its nearest ancestor that is there.

    Pointers of which not even the first part is there, and the whole document, are left out. *file* only tells JSON
    from YAML. Never raises.
    """
    text = data.decode("utf-8-sig", errors="replace")
    root = _Wanted()
    split = {pointer: steps_of(pointer) for pointer in pointers}
    for parts in split.values():
        node = root
        for part in parts:
            node = node.child(part)
    if text.lstrip()[:1] in ("{", "[") and not file.endswith((".yaml", ".yml")):
        _scan_json(text, root)
    else:
        _scan_yaml(text, root)
    return {pointer: line for pointer, parts in split.items() if (line := _line(root, parts)) is not None}


def _line(root: _Wanted, parts: list[str]) -> int | None:
    node, line = root, None
    for part in parts:
        node = node.members[part]
        if node.line is None:
            break
        line = node.line
    return line


def _scan_json(text: str, root: _Wanted) -> None:
    lines = _Lines(text)
    stack: list[_Open] = []
    for token in _TOKEN.finditer(text):
        mark, at = token.group()[0], token.start()
        here = stack[-1] if stack else None
        if mark in "{[":
            inner = here.begun() if here is not None else root
            stack.append(_Open(inner, 0 if mark == "[" else None, mark == "{"))
            if mark == "[":
                _element(stack[-1], text, at + 1, lines)
        elif here is None:
            return  # no JSON after all
        elif mark in "}]":
            stack.pop()
        elif mark == ",":
            if here.index is None:
                here.key_next = True
            else:
                here.index += 1
                _element(here, text, at + 1, lines)
        elif here.key_next:
            here.key_next = False
            if here.wanted is not None:
                here.meets(_unquoted(token.group()), lines.at(at))


def _element(array: _Open, text: str, at: int, lines: _Lines) -> None:
    """Meet the element of an array that begins after *at*; scalars are no tokens, so it is met before it is read."""
    if array.wanted is not None and array.wanted.members:
        space = _SPACE.match(text, at)
        array.meets(str(array.index), lines.at(space.end() if space else at))


def _unquoted(token: str) -> str:
    if "\\" not in token:
        return token[1:-1]
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token


class _Lines:
    """Turns places in a text, asked for in order, into lines."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._last = 0
        self._line = 1

    def at(self, place: int) -> int:
        self._line += self._text.count("\n", self._last, place)
        self._last = place
        return self._line


def _scan_yaml(text: str, root: _Wanted) -> None:
    stack: list[_Open] = []
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                stack.pop()
            elif isinstance(event, yaml.NodeEvent):
                _node(event, stack, root)
    except (yaml.YAMLError, ValueError):
        return  # that the document cannot be read is a finding of its own


def _node(event: Any, stack: list[_Open], root: _Wanted) -> None:
    """Take one node: a key, or a value that may begin a collection."""
    inner: _Wanted | None = None
    if not stack:
        inner = root
    elif stack[-1].key_next:  # a key that is a collection is met under no name
        stack[-1].key_next = False
        stack[-1].meets(str(getattr(event, "value", "")), event.start_mark.line + 1)
    else:
        here = stack[-1]
        if here.index is None:
            here.key_next = True
        else:
            here.meets(str(here.index), event.start_mark.line + 1)
            here.index += 1
        inner = here.begun()
    if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
        mapping = isinstance(event, yaml.MappingStartEvent)
        stack.append(_Open(inner, None if mapping else 0, mapping))
