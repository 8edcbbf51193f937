"""JSON and YAML texts to plain trees, safely: bounded depth and size, no tags, and nothing that UTF-8 cannot hold.

What is read here is later hashed, listed and written down; so a text with a lone surrogate, or a number that no double
can hold, is refused where it is read, with its place, and not where it would first do harm.
"""

from __future__ import annotations

import json
import math
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias

import yaml

from catalog.findings import DocumentError, SourceLocation
from catalog.values import WrittenNumber, plain_number, written_number

# How much of a text is read at all, and which numbers: the same for JSON and YAML.

MAX_DEPTH: Final = 128
MAX_NODES: Final = 2_000_000
"""Values of one document: those of some forty thousand definitions, which fit into 1 GiB with all made of them."""
MAX_DUPLICATES: Final = 10_000
"""Repeated keys of one document that are reported; more of them have one cause."""
MAX_DIGITS: Final = 300
"""Digits of an integer, so that each of them also has a double near it."""
_INTEGER: Final = re.compile(r"[-+]?[0-9]++", re.ASCII)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A tree, and the places of keys that occur twice in one object (the last value counts), the first of them."""

    tree: Any
    duplicates: tuple[SourceLocation, ...] = ()


def number_of(text: str) -> int | float:
    """Return the number that decimal digits, with sign, fraction or exponent, stand for.

    Raises:
        ValueError: it is too large to be kept.
    """
    if _INTEGER.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"an integer of {len(text)} digits is too large")
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def written_number_of(text: str) -> int | float:
    """Return the number of decimal digits, which keeps the text where that is not how the number is shown.

    Raises:
        ValueError: it is too large to be kept.
    """
    return written_number(number_of(text), text)


def too_deep(file: str) -> DocumentError:
    """Return the error for a document that nests too deeply."""
    return DocumentError(f"{file} nests deeper than {MAX_DEPTH} levels", file=file, hint="a catalog needs far fewer")


def too_large(file: str) -> DocumentError:
    """Return the error for a document of too many values, aliases written out."""
    hint = "split the document, or use fewer aliases"
    return DocumentError(f"{file} stands for more than {MAX_NODES} values", file=file, hint=hint)


# YAML texts to plain trees, from the events of the parser: no tags, no dates, no aliases that multiply.
#
# Scalars are read by the core schema of YAML 1.2, so texts that look like dates, ``yes`` or ``0x1`` stay texts, which
# is what catalogs mean by them. Numbers may keep their text (``1.10``), for where a text is meant. An alias shares the
# tree that it stands for, and counts as if it were written out.

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
        self.duplicates: list[SourceLocation] = []
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

    def _place(self) -> SourceLocation:
        """Return the place of what is being read; made only when it is reported, since it costs its depth."""
        place = SourceLocation(self._file)
        for each in self._open:
            if isinstance(each.node, list):
                place /= len(each.node)
            elif each.key is not None:
                place /= each.key
        return place


__all__ = ["MAX_DEPTH", "MAX_NODES", "Parsed", "parse_catalog_text", "parse_text"]

_ENCODINGS: Final = (
    (BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark begins it
    (BOM_UTF32_BE, "utf-32"),
    (BOM_UTF16_LE, "utf-16"),
    (BOM_UTF16_BE, "utf-16"),
)
_SCHEMAS: Final = frozenset({"schema", "dataschema"})
"""Members that hold a schema document."""
_STRING_OR_MARK: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?+|[,\[{]', re.DOTALL)
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_Path: TypeAlias = "tuple[_Path, str | int] | None"
"""The way to a value from its own key backwards, shared by all that is below it."""


def parse_catalog_text(file: str, data: bytes) -> Parsed:
    """Parse a document as :func:`parse_text` does; numbers outside of schemas keep their text where that differs.

    Raises:
        DocumentError: as :func:`parse_text`.
    """
    kept = 0

    def number(text: str) -> int | float:
        nonlocal kept
        value = written_number_of(text)
        kept += isinstance(value, WrittenNumber)
        return value

    parsed = _parsed(file, data, number)
    if kept:
        _make_schemas_plain(parsed.tree)
    return parsed


def _make_schemas_plain(tree: Any) -> None:
    """Take their texts from the numbers in schemas, which other readers get."""
    seen: set[int] = set()  # what several aliases stand for
    level: list[tuple[Any, bool]] = [(tree, False)]
    while level:
        following: list[tuple[Any, bool]] = []
        for node, inside in level:
            if not isinstance(node, (dict, list)) or (id(node) in seen and not inside):
                continue
            seen.add(id(node))
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                within = inside or (isinstance(key, str) and key.lower() in _SCHEMAS)
                if within and isinstance(value, WrittenNumber):
                    node[key] = plain_number(value)
                elif isinstance(value, (dict, list)):
                    following.append((value, within))
        level = following


def parse_text(file: str, data: bytes) -> Parsed:
    """Parse *data* as JSON, or as YAML when the name of *file* says so or it does not begin like JSON.

    The text is UTF-8, or what its byte order mark says.

    Raises:
        DocumentError: neither JSON nor YAML, not decodable, too deep or large, or with values that cannot be kept.
    """
    return _parsed(file, data, number_of)


def _parsed(file: str, data: bytes, number: Callable[[str], int | float]) -> Parsed:
    text = _decoded(file, data)
    if text.lstrip()[:1] in ("{", "[") and not file.endswith((".yaml", ".yml")):
        return _json(file, text, number)
    if not text.strip():
        raise DocumentError(f"{file} is empty", file=file, hint="write an xRegistry document into it")
    return parse_yaml(file, text, number)


def _decoded(file: str, data: bytes) -> str:
    encoding = next((name for mark, name in _ENCODINGS if data.startswith(mark)), "utf-8-sig")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise DocumentError(f"{file} is not {name}: {error}", file=file, hint="save it as UTF-8") from error


def _json(file: str, text: str, number: Callable[[str], int | float]) -> Parsed:
    _check_size(file, text)
    repeated: dict[int, tuple[dict[str, Any], list[str]]] = {}  # holds the objects, so that no id is used again

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        node = dict(pairs)
        if len(node) != len(pairs):
            names = (name for name, _ in pairs)
            repeated[id(node)] = (node, sorted(name for name, times in Counter(names).items() if times > 1))
        return node

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON number")

    try:
        tree = json.loads(
            text,
            object_pairs_hook=members,
            parse_constant=no_constant,
            parse_int=number,
            parse_float=number,
        )
    except RecursionError as error:
        raise too_deep(file) from error
    except ValueError as error:
        raise DocumentError(f"{file} is not JSON: {error}", file=file, hint="mend the syntax") from error
    _check_depth(file, tree)
    if _SURROGATE_ESCAPE.search(text):
        _check_characters(file, tree)
    return Parsed(tree, tuple(islice(_repeated(file, tree, repeated), MAX_DUPLICATES)) if repeated else ())


def _repeated(file: str, tree: Any, names: dict[int, tuple[dict[str, Any], list[str]]]) -> Iterator[SourceLocation]:
    for path, node in _walked(tree):
        if id(node) in names:
            place = _place(file, path)
            yield from (place / name for name in names[id(node)][1])


def _check_size(file: str, text: str) -> None:
    """Count the values before any is made: each follows a bracket, a brace or a comma that is in no string."""
    if sum(map(text.count, ",[{")) <= MAX_NODES:
        return
    marks = 0
    for match in _STRING_OR_MARK.finditer(text):
        marks += text[match.start()] != '"'
        if marks > MAX_NODES:
            raise too_large(file)


def _check_depth(file: str, tree: Any) -> None:
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        level = [
            value
            for node in level
            for value in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(value, (dict, list))
        ]
        if not level:
            return
    raise too_deep(file)


def _check_characters(file: str, tree: Any) -> None:
    """Refuse half a character: pairs of escapes were joined by now, so what is left stands alone."""
    for path, node in _walked(tree):
        texts = (node, *(key for key in node)) if isinstance(node, dict) else (node,)
        for text in texts:
            if isinstance(text, str) and _SURROGATE.search(text):
                pointer = _place(file, path).pointer.encode("utf-8", "backslashreplace").decode("utf-8")
                hint = "write the character itself, or both escapes of its pair"
                message = f"{file} has half a surrogate pair, which is no character, at {pointer or 'its top'}"
                raise DocumentError(message, file=file, pointer=pointer, hint=hint)


def _walked(tree: Any) -> Iterator[tuple[_Path, Any]]:
    """Give every value with its path, objects before what is in them; a path is made into a place when needed."""
    level: list[tuple[_Path, Any]] = [(None, tree)]
    while level:
        following: list[tuple[_Path, Any]] = []
        for path, node in level:
            yield path, node
            if isinstance(node, dict):
                following.extend(((path, key), value) for key, value in node.items())
            elif isinstance(node, list):
                following.extend(((path, index), value) for index, value in enumerate(node))
        level = following


def _place(file: str, path: _Path) -> SourceLocation:
    keys: list[str | int] = []
    while path is not None:
        path, key = path
        keys.append(key)
    place = SourceLocation(file)
    for key in reversed(keys):
        place /= key
    return place
