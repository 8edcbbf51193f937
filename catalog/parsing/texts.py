"""Parse JSON and YAML safely: bounded depth and size, no tags, and only text that UTF-8 can encode.

Values are later hashed, listed and written. So lone surrogates, and numbers outside the range of a double, are refused
when they are read, with their location.
"""

from __future__ import annotations

import json
import math
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from importlib.resources import files
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
import yaml

from catalog.findings import DocumentError, SourceLocation
from catalog.values import WrittenNumber, plain_number, with_written_text

T = TypeVar("T")

# Limits and numbers, the same for JSON and YAML.

MAX_DEPTH: Final = 128
MAX_NODES: Final = 2_000_000
"""Maximum values of one document: those of some 40,000 definitions, which fit into 1 GiB when loaded."""
MAX_DUPLICATES: Final = 10_000
"""Maximum repeated keys reported for one document."""
MAX_DIGITS: Final = 300
"""Maximum digits of an integer, so that it can be converted to a double."""
_INTEGER: Final = re.compile(r"[-+]?[0-9]++", re.ASCII)


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A parsed tree, and the locations of repeated keys, of which the last value is used."""

    tree: Any
    duplicates: tuple[SourceLocation, ...] = ()


def parse_number(text: str) -> int | float:
    """Parse a decimal number with optional sign, fraction and exponent.

    Raises:
        ValueError: it is too large.
    """
    if _INTEGER.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"an integer of {len(text)} digits is too large")
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def parse_written_number(text: str) -> int | float:
    """Parse a number; if its notation is unusual (``1.10``), the result keeps its text.

    Raises:
        ValueError: it is too large.
    """
    return with_written_text(parse_number(text), text)


def too_deep_error(file: str) -> DocumentError:
    """Return the error for a document with too deep nesting."""
    return DocumentError(f"{file} nests deeper than {MAX_DEPTH} levels", file=file, hint="a catalog needs far fewer")


def too_large_error(file: str) -> DocumentError:
    """Return the error for a document with too many values, counting aliases as copies."""
    hint = "split the document, or use fewer aliases"
    return DocumentError(f"{file} stands for more than {MAX_NODES} values", file=file, hint=hint)


# Parsing YAML from events: no tags, no dates, and no multiplying aliases.
#
# ``yaml.compose`` is no faster (0.20 s against 0.17 s for 0.7 MB), ends the process on 100,000 nested lists, and needs
# gigabytes for the values that the limits below refuse.
#
# Scalars follow the core schema of YAML 1.2, so dates, ``yes`` and ``0x1`` are texts, as catalogs mean them. Numbers
# may
# keep their text (``1.10``), for use as text. An alias shares its anchor's tree, and counts as a copy.

_NUMBER: Final = re.compile(r"[-+]?+(?:\.[0-9]++|[0-9]++(?:\.[0-9]*+)?+)(?:[eE][-+]?+[0-9]++)?+", re.ASCII)
_WORDS: Final[dict[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_PREFIX: Final = "tag:yaml.org,2002:"
_PLAIN_TAGS: Final = frozenset(_PREFIX + name for name in ("null", "bool", "int", "float"))
_TAGS: Final = _PLAIN_TAGS | {"!", *(_PREFIX + name for name in ("str", "map", "seq"))}
_MERGE: Final = "<<"
_MAX_NUMBER_TEXT: Final = 64
"""Each multiple of this many characters counts as one more node, so that aliases cannot multiply a long text."""
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(file: str, text: str, number: Callable[[str], int | float] = parse_number) -> ParsedDocument:
    """Parse one YAML document; *number* parses its numbers.

    Raises:
        DocumentError: invalid YAML, several documents, too deep or large, or a tag or key that JSON does not allow.
    """
    builder = _TreeBuilder(file, number)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.handle_event(event)
    except (yaml.YAMLError, ValueError) as error:
        message = " ".join(str(error).split())
        raise DocumentError(f"{file} is neither JSON nor YAML: {message}", file=file, hint="mend the syntax") from error
    return ParsedDocument(builder.root, tuple(builder.duplicates))


@dataclass(frozen=True, slots=True)
class _AnchoredValue:
    """The value of an anchor. ``text`` is a scalar as written, used if it is a key."""

    value: Any
    text: str | None
    nodes: int
    depth: int


@dataclass(slots=True)
class _OpenCollection:
    """A collection that is being read.

    ``key`` is the last key of a mapping until its value is read, ``merging`` whether it is a plain ``<<``.
    ``before`` is the
    number of nodes before it, ``depth`` the levels below it so far; ``merged`` are names merged from others, which its
    own may replace.
    """

    node: dict[str, Any] | list[Any]
    anchor: str | None
    before: int
    key: str | None = None
    merging: bool = False
    depth: int = 0
    merged: set[str] = field(default_factory=set)


class _TreeBuilder:
    """Builds a tree from events; ``nodes`` counts its nodes, with aliases as copies."""

    def __init__(self, file: str, number: Callable[[str], int | float]) -> None:
        self.root: Any = None
        self._number = number
        self.duplicates: list[SourceLocation] = []
        self._file = file
        self._open: list[_OpenCollection] = []
        self._anchors: dict[str, _AnchoredValue] = {}
        self._nodes = 0
        self._documents = 0

    def handle_event(self, event: Any) -> None:
        """Handle the next event of the parser."""
        if isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._check_tag(event)
            self._open_collection({} if isinstance(event, yaml.MappingStartEvent) else [], event.anchor)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close_collection()
        elif isinstance(event, yaml.AliasEvent):
            self._add_alias(event.anchor)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise DocumentError(
                    f"{self._file} holds several YAML documents", file=self._file, hint="split the file"
                )

    def _add_scalar(self, event: Any) -> None:
        self._check_tag(event)
        text: str = event.value
        value = self._scalar_value(text) if event.implicit[0] or event.tag in _PLAIN_TAGS else text
        nodes = 1 + len(text) // _MAX_NUMBER_TEXT
        self._count_nodes(nodes)
        self._add_value(value, text, plain=event.implicit[0])
        if event.anchor:
            self._anchors[event.anchor] = _AnchoredValue(value, text, nodes, 0)

    def _scalar_value(self, text: str) -> Any:
        if text in _WORDS:
            return _WORDS[text]
        return self._number(text) if _NUMBER.fullmatch(text) else text

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None and event.tag not in _TAGS:
            at = self._current_location()
            message = f"{self._file} has the tag {event.tag[:80]!r}, which means nothing here"
            raise DocumentError(message, file=self._file, pointer=at.pointer, hint="write a plain value")

    def _open_collection(self, node: dict[str, Any] | list[Any], anchor: str | None) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise too_deep_error(self._file)
        if self._open and isinstance(self._open[-1].node, dict) and self._open[-1].key is None:
            raise self._key_error()
        self._open.append(_OpenCollection(node, anchor, self._nodes))
        self._count_nodes(1)

    def _close_collection(self) -> None:
        done = self._open.pop()
        if done.anchor:
            self._anchors[done.anchor] = _AnchoredValue(done.node, None, self._nodes - done.before, done.depth + 1)
        self._add_value(done.node, None, done.depth + 1)

    def _add_alias(self, anchor: str | None) -> None:
        known = self._anchors.get(anchor or "")
        if known is None:
            at = self._current_location().pointer
            message = f"{self._file}: alias *{anchor} stands for nothing read so far"
            raise DocumentError(message, file=self._file, pointer=at, hint="define the anchor before it, not around it")
        if len(self._open) + known.depth > MAX_DEPTH:
            raise too_deep_error(self._file)
        self._count_nodes(known.nodes)
        self._add_value(known.value, known.text, known.depth)

    def _count_nodes(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise too_large_error(self._file)

    def _add_value(self, value: Any, text: str | None, depth: int = 0, *, plain: bool = False) -> None:
        """Add a complete value to the open collection; its *text* may be a key."""
        if not self._open:
            self.root = value
            return
        parent = self._open[-1]
        parent.depth = max(parent.depth, depth)
        if isinstance(parent.node, list):
            parent.node.append(value)
        elif parent.key is not None:
            self._set_member(parent, parent.node, parent.key, value)
            parent.key = None
        elif text is None:
            raise self._key_error()
        else:
            parent.key, parent.merging = text, plain and text == _MERGE

    def _key_error(self) -> DocumentError:
        at = self._current_location().pointer
        return DocumentError(f"{self._file}: a key is no text", file=self._file, pointer=at, hint="write it as text")

    def _set_member(self, parent: _OpenCollection, node: dict[str, Any], key: str, value: Any) -> None:
        merged = value if isinstance(value, list) else [value]
        if parent.merging and merged and all(isinstance(each, dict) for each in merged):
            for name, member in ((name, each[name]) for each in merged for name in each):
                if name not in node:
                    node[name] = member
                    parent.merged.add(name)
            return
        if key in node and key not in parent.merged:
            if len(self.duplicates) < MAX_DUPLICATES:
                self.duplicates.append(self._current_location())
        parent.merged.discard(key)
        node[key] = value

    def _current_location(self) -> SourceLocation:
        """Return the location of the value being read; computed only for reports."""
        steps = (len(each.node) if isinstance(each.node, list) else each.key for each in self._open)
        return _to_location(self._file, (step for step in steps if step is not None))


_ENCODINGS: Final = (
    (BOM_UTF32_LE, "utf-32"),  # must precede UTF-16, whose mark is a prefix of it
    (BOM_UTF32_BE, "utf-32"),
    (BOM_UTF16_LE, "utf-16"),
    (BOM_UTF16_BE, "utf-16"),
)
_SCHEMAS: Final = frozenset({"schema", "dataschema"})
"""Members that contain a schema document."""
_STRING_OR_MARK: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?+|[,\[{]', re.DOTALL)
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def parse_catalog_text(file: str, data: bytes) -> ParsedDocument:
    """Parse a document like :func:`parse_text`, but numbers outside of schemas keep unusual notations.

    Raises:
        DocumentError: like :func:`parse_text`.
    """
    kept = 0

    def number(text: str) -> int | float:
        nonlocal kept
        value = parse_written_number(text)
        kept += isinstance(value, WrittenNumber)
        return value

    parsed = _parse(file, data, number)
    if kept:
        _make_schemas_plain(parsed.tree)
    return parsed


def _make_schemas_plain(tree: Any) -> None:
    """Replace numbers with text in schemas by plain numbers, for schema libraries."""
    seen: set[int] = set()  # shared by several aliases
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


def parse_text(file: str, data: bytes) -> ParsedDocument:
    """Parse *data* as JSON, or as YAML if *file* has a YAML suffix or the text does not begin like JSON.

    The encoding is UTF-8 unless there is a byte order mark.

    Raises:
        DocumentError: neither JSON nor YAML, not decodable, too deep or large, or with an invalid value.
    """
    return _parse(file, data, parse_number)


def read_table(package: str, name: str, form: type[T]) -> T:
    """Read a table of this project, a YAML file of *package*; executors of Spark have that in an archive."""
    return msgspec.convert(parse_text(name, files(package).joinpath(name).read_bytes()).tree, form)


def _parse(file: str, data: bytes, number: Callable[[str], int | float]) -> ParsedDocument:
    text = _decode(file, data)
    if text.lstrip()[:1] in ("{", "[") and not file.endswith((".yaml", ".yml")):
        return _parse_json(file, text, number)
    if not text.strip():
        raise DocumentError(f"{file} is empty", file=file, hint="write an xRegistry document into it")
    return parse_yaml(file, text, number)


def _decode(file: str, data: bytes) -> str:
    encoding = next((name for mark, name in _ENCODINGS if data.startswith(mark)), "utf-8-sig")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise DocumentError(f"{file} is not {name}: {error}", file=file, hint="save it as UTF-8") from error


def _parse_json(file: str, text: str, number: Callable[[str], int | float]) -> ParsedDocument:
    _check_size(file, text)
    repeated: dict[int, tuple[dict[str, Any], list[str]]] = {}  # references the objects, so that no id is reused

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
            text, object_pairs_hook=members, parse_constant=no_constant, parse_int=number, parse_float=number
        )
    except RecursionError as error:
        raise too_deep_error(file) from error
    except ValueError as error:
        raise DocumentError(f"{file} is not JSON: {error}", file=file, hint="mend the syntax") from error
    _check_depth(file, tree)
    if _SURROGATE_ESCAPE.search(text):
        _check_characters(file, tree)
    return ParsedDocument(tree, tuple(islice(_repeats(file, tree, repeated), MAX_DUPLICATES)) if repeated else ())


def _repeats(file: str, tree: Any, names: dict[int, tuple[dict[str, Any], list[str]]]) -> Iterator[SourceLocation]:
    path: list[str | int] = []
    for node in _iter_values(tree, path):
        if id(node) in names:
            place = _to_location(file, path)
            yield from (place / name for name in names[id(node)][1])


def _check_size(file: str, text: str) -> None:
    """Count the values before parsing: each follows a bracket, brace or comma outside of strings."""
    if sum(map(text.count, ",[{")) <= MAX_NODES:
        return
    marks = 0
    for match in _STRING_OR_MARK.finditer(text):
        marks += text[match.start()] != '"'
        if marks > MAX_NODES:
            raise too_large_error(file)


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
    raise too_deep_error(file)


def _check_characters(file: str, tree: Any) -> None:
    """Refuse lone surrogates; the parser has joined pairs already."""
    path: list[str | int] = []
    for node in _iter_values(tree, path):
        texts = (node, *node) if isinstance(node, dict) else (node,)
        for text in texts:
            if isinstance(text, str) and _SURROGATE.search(text):
                pointer = _to_location(file, path).pointer.encode("utf-8", "backslashreplace").decode("utf-8")
                hint = "write the character itself, or both escapes of its pair"
                message = f"{file} has half a surrogate pair, which is no character, at {pointer or 'its top'}"
                raise DocumentError(message, file=file, pointer=pointer, hint=hint)


def _iter_values(tree: Any, path: list[str | int]) -> Iterator[Any]:
    """Yield every value, parents before children, with *path* set to its path."""
    yield tree
    levels = [_iter_members(tree)]
    while levels:
        for key, value in levels[-1]:
            path.append(key)
            yield value
            if isinstance(value, (dict, list)):
                levels.append(_iter_members(value))
                break
            path.pop()
        else:
            levels.pop()
            del path[-1:]


def _iter_members(node: Any) -> Iterator[tuple[str | int, Any]]:
    return iter(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())


def _to_location(file: str, path: Iterable[str | int]) -> SourceLocation:
    return reduce(SourceLocation.__truediv__, path, SourceLocation(file))
