"""YAML texts to plain trees, from the events of the parser: no tags, no dates, no aliases that multiply.

Scalars are read by the core schema of YAML 1.2, so texts that look like dates, ``yes`` or ``0x1`` stay texts, which is
what catalogs mean by them. Numbers may keep their text (``1.10``), for where a text is meant. An alias shares the tree
that it stands for, and counts as if it were written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from catalog.declared import Place
from catalog.errors import DocumentError
from catalog.parsing.limits import MAX_DEPTH, MAX_DUPLICATES, MAX_NODES, Parsed, number_of, too_deep, too_large

_NUMBER: Final = re.compile(r"[-+]?+(?:\.[0-9]++|[0-9]++(?:\.[0-9]*+)?+)(?:[eE][-+]?+[0-9]++)?+", re.ASCII)
_WORDS: Final[dict[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_PREFIX: Final = "tag:yaml.org,2002:"
_PLAIN: Final = frozenset(_PREFIX + name for name in ("null", "bool", "int", "float"))
_TAGS: Final = _PLAIN | {"!", *(_PREFIX + name for name in ("str", "map", "seq"))}
_MERGE: Final = "<<"
_LONG: Final = 64
"""Characters that count as one node more, so that aliases cannot multiply a long text either."""
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(file: str, text: str, number: Callable[[str], int | float] = number_of) -> Parsed:
    """Parse one YAML document, whose numbers are made by *number*.

    Raises:
        DocumentError: no YAML, several documents, too deep or large, or with a tag or key that no JSON can have.
    """
    builder = _Builder(file, number)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except (yaml.YAMLError, ValueError) as error:
        message = " ".join(str(error).split())
        raise DocumentError(f"{file} is neither JSON nor YAML: {message}", file=file, hint="mend the syntax") from error
    return Parsed(builder.root, tuple(builder.duplicates))


@dataclass(frozen=True, slots=True)
class _Anchored:
    """What an anchor stands for; ``text`` is a scalar as written, which is what it is as a key."""

    value: Any
    text: str | None
    nodes: int
    depth: int


@dataclass(slots=True)
class _Open:
    """A collection being read.

    ``key`` is the key read last in a mapping, while its value is awaited, and ``merging`` whether that is a plain
    ``<<``; ``before`` counts the nodes before it, ``depth`` the levels below it so far; ``merged`` are the names
    that it has from others, which its own may replace.
    """

    node: dict[str, Any] | list[Any]
    anchor: str | None
    before: int
    key: str | None = None
    merging: bool = False
    depth: int = 0
    merged: set[str] = field(default_factory=set)


class _Builder:
    """Builds a tree from events; ``nodes`` counts what the tree would hold written out."""

    def __init__(self, file: str, number: Callable[[str], int | float]) -> None:
        self.root: Any = None
        self._number = number
        self.duplicates: list[Place] = []
        self._file = file
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchored] = {}
        self._nodes = 0
        self._documents = 0

    def take(self, event: Any) -> None:
        """Take the next event of the parser."""
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._check_tag(event)
            self._enter({} if isinstance(event, yaml.MappingStartEvent) else [], event.anchor)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._leave()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise DocumentError(
                    f"{self._file} holds several YAML documents", file=self._file, hint="split the file"
                )

    def _scalar(self, event: Any) -> None:
        self._check_tag(event)
        text: str = event.value
        value = self._value(text) if event.implicit[0] or event.tag in _PLAIN else text
        nodes = 1 + len(text) // _LONG
        self._count(nodes)
        self._put(value, text, plain=event.implicit[0])
        if event.anchor:
            self._anchors[event.anchor] = _Anchored(value, text, nodes, 0)

    def _value(self, text: str) -> Any:
        if text in _WORDS:
            return _WORDS[text]
        return self._number(text) if _NUMBER.fullmatch(text) else text

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None and event.tag not in _TAGS:
            at = self._place()
            message = f"{self._file} has the tag {event.tag[:80]!r}, which means nothing here"
            raise DocumentError(message, file=self._file, pointer=at.pointer, hint="write a plain value")

    def _enter(self, node: dict[str, Any] | list[Any], anchor: str | None) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise too_deep(self._file)
        if self._open and isinstance(self._open[-1].node, dict) and self._open[-1].key is None:
            raise self._no_text()
        self._open.append(_Open(node, anchor, self._nodes))
        self._count(1)

    def _leave(self) -> None:
        done = self._open.pop()
        if done.anchor:
            self._anchors[done.anchor] = _Anchored(done.node, None, self._nodes - done.before, done.depth + 1)
        self._put(done.node, None, done.depth + 1)

    def _alias(self, anchor: str | None) -> None:
        known = self._anchors.get(anchor or "")
        if known is None:
            at = self._place().pointer
            message = f"{self._file}: alias *{anchor} stands for nothing read so far"
            raise DocumentError(message, file=self._file, pointer=at, hint="define the anchor before it, not around it")
        if len(self._open) + known.depth > MAX_DEPTH:
            raise too_deep(self._file)
        self._count(known.nodes)
        self._put(known.value, known.text, known.depth)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise too_large(self._file)

    def _put(self, value: Any, text: str | None, depth: int = 0, *, plain: bool = False) -> None:
        """Put a whole value where it belongs, or take it as a key by its *text*."""
        if not self._open:
            self.root = value
            return
        parent = self._open[-1]
        parent.depth = max(parent.depth, depth)
        if isinstance(parent.node, list):
            parent.node.append(value)
        elif parent.key is not None:
            self._set(parent, parent.node, parent.key, value)
            parent.key = None
        elif text is None:
            raise self._no_text()
        else:
            parent.key, parent.merging = text, plain and text == _MERGE

    def _no_text(self) -> DocumentError:
        at = self._place().pointer
        return DocumentError(f"{self._file}: a key is no text", file=self._file, pointer=at, hint="write it as text")

    def _set(self, parent: _Open, node: dict[str, Any], key: str, value: Any) -> None:
        merged = value if isinstance(value, list) else [value]
        if parent.merging and merged and all(isinstance(each, dict) for each in merged):
            for name, member in ((name, each[name]) for each in merged for name in each):
                if name not in node:
                    node[name] = member
                    parent.merged.add(name)
            return
        if key in node and key not in parent.merged:
            if len(self.duplicates) < MAX_DUPLICATES:
                self.duplicates.append(self._place())
        parent.merged.discard(key)
        node[key] = value

    def _place(self) -> Place:
        """Return the place of what is being read; made only when it is reported, since it costs its depth."""
        place = Place(self._file)
        for each in self._open:
            if isinstance(each.node, list):
                place /= len(each.node)
            elif each.key is not None:
                place /= each.key
        return place
