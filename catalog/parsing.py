"""JSON and YAML texts to plain trees, safely: bounded depth and size, no aliases that multiply, no tags, no dates.

YAML is read by the JSON schema of YAML 1.2 from parser events: texts that look like dates or ``yes`` stay texts, which
is what catalogs mean by them, and an alias is a reference whose nodes are counted each time it is used.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from catalog.declared import Place
from catalog.errors import DocumentError

MAX_DEPTH: Final = 128
MAX_NODES: Final = 5_000_000
_INTEGER: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: Final[dict[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A tree, and the places of keys that occur twice in one object (the last value counts)."""

    tree: Any
    duplicates: tuple[Place, ...] = ()


def parse_text(file: str, data: bytes) -> Parsed:
    """Parse *data* as JSON, or as YAML when the name of *file* says so or it does not begin like JSON.

    Raises:
        DocumentError: neither JSON nor YAML, not UTF-8, or too deep or large.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{file} is not UTF-8: {error}", file=file, hint="save it as UTF-8") from error
    if text.lstrip()[:1] in ("{", "[") and not file.endswith((".yaml", ".yml")):
        return _json(file, text)
    if not text.strip():
        raise DocumentError(f"{file} is empty", file=file, hint="write an xRegistry document into it")
    return _yaml(file, text)


def _json(file: str, text: str) -> Parsed:
    repeated: dict[int, tuple[dict[str, Any], list[str]]] = {}  # holds the objects, so that no id is used again

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = (name for name, _ in pairs)
            repeated[id(found)] = (found, sorted(name for name, times in Counter(names).items() if times > 1))
        return found

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON number")

    try:
        tree = json.loads(text, object_pairs_hook=members, parse_constant=no_constant)
    except RecursionError as error:
        raise _too_deep(file) from error
    except ValueError as error:
        raise DocumentError(f"{file} is not JSON: {error}", file=file, hint="mend the syntax") from error
    duplicates: list[Place] = []
    for place, node in _objects(file, tree, wanted=bool(repeated)):
        if id(node) in repeated:
            duplicates.extend(place / name for name in repeated[id(node)][1])
    return Parsed(tree, tuple(duplicates))


def _objects(file: str, tree: Any, *, wanted: bool) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Walk the tree for its depth, and give the objects when *wanted*; places cost, so only then."""
    root = Place(file)
    level: list[tuple[Place, Any]] = [(root, tree)]
    for _ in range(MAX_DEPTH + 1):
        following: list[tuple[Place, Any]] = []
        for place, node in level:
            if isinstance(node, dict):
                if wanted:
                    yield place, node
                following.extend(
                    (place / k if wanted else root, v) for k, v in node.items() if isinstance(v, (dict, list))
                )
            elif isinstance(node, list):
                pairs = enumerate(node)
                following.extend((place / i if wanted else root, v) for i, v in pairs if isinstance(v, (dict, list)))
        if not following:
            return
        level = following
    raise _too_deep(file)


def _too_deep(file: str) -> DocumentError:
    return DocumentError(f"{file} nests deeper than {MAX_DEPTH} levels", file=file, hint="a catalog needs far fewer")


def _yaml(file: str, text: str) -> Parsed:
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except (yaml.YAMLError, ValueError) as error:
        message = " ".join(str(error).split())
        raise DocumentError(f"{file} is neither JSON nor YAML: {message}", file=file, hint="mend the syntax") from error
    return Parsed(builder.root, tuple(builder.duplicates))


@dataclass(slots=True)
class _Open:
    """A collection being read; ``key`` is the key read last in a mapping, while its value is awaited."""

    node: dict[str, Any] | list[Any]
    place: Place
    before: int
    anchor: str | None
    key: str | None = None
    merged: set[str] = field(default_factory=set)


class _Builder:
    """Builds a tree from YAML events. ``nodes`` counts what the tree would hold written out, aliases included."""

    def __init__(self, file: str) -> None:
        self.root: Any = None
        self.duplicates: list[Place] = []
        self._file = file
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}
        self._nodes = 0
        self._deepest = 0
        self._documents = 0

    def take(self, event: Any) -> None:
        """Take the next event of the parser."""
        if isinstance(event, yaml.ScalarEvent):
            value = event.value if not event.implicit[0] else _scalar(event.value)
            self._count(1)
            self._place(value, text=event.value)
            if event.anchor:
                self._anchors[event.anchor] = (value, 1, 0)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
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

    def _enter(self, node: dict[str, Any] | list[Any], anchor: str | None) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise _too_deep(self._file)
        before = self._nodes
        self._count(1)
        place = self._place(node, text=None)
        self._open.append(_Open(node, place, before, anchor))

    def _leave(self) -> None:
        done = self._open.pop()
        if done.anchor:
            self._anchors[done.anchor] = (done.node, self._nodes - done.before, _depth(done.node))

    def _alias(self, anchor: str | None) -> None:
        known = self._anchors.get(anchor or "")
        if known is None:
            raise DocumentError(f"{self._file}: alias *{anchor} stands for nothing read so far", file=self._file)
        node, nodes, depth = known
        if len(self._open) + depth > MAX_DEPTH:
            raise _too_deep(self._file)
        self._count(nodes)
        self._place(node, text=node if isinstance(node, str) else None)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            hint = "split the document, or use fewer aliases"
            raise DocumentError(f"{self._file} stands for more than {MAX_NODES} values", file=self._file, hint=hint)

    def _place(self, value: Any, *, text: str | None) -> Place:
        """Put a value where it belongs, or take it as a key; return its place."""
        if not self._open:
            self.root = value
            return Place(self._file)
        parent = self._open[-1]
        if isinstance(parent.node, list):
            parent.node.append(value)
            return parent.place / (len(parent.node) - 1)
        if parent.key is None:
            if text is None:
                raise DocumentError(f"{self._file}: a key is no text", file=self._file, pointer=parent.place.pointer)
            parent.key = text
            return parent.place
        place, key = parent.place / parent.key, parent.key
        parent.key = None
        if key == "<<" and isinstance(value, dict):
            for name, member in value.items():
                if name not in parent.node:
                    parent.node[name] = member
                    parent.merged.add(name)
            return place
        if key in parent.node and key not in parent.merged:
            self.duplicates.append(place)
        parent.node[key] = value
        return place


def _depth(node: Any) -> int:
    """Count the levels of a collection; an alias chain cannot make this slow, as its nodes are counted before."""
    depth, level = 0, [node]
    while level:
        depth += 1
        nested = [v for n in level for v in (n.values() if isinstance(n, dict) else n) if isinstance(v, (dict, list))]
        level = list({id(v): v for v in nested}.values())
    return depth


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
