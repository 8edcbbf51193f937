"""JSON and YAML texts to plain trees, safely: bounded depth and size, no tags, and nothing that UTF-8 cannot hold.

What is read here is later hashed, listed and written down; so a text with a lone surrogate, or a number that no double
can hold, is refused where it is read, with its place, and not where it would first do harm.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from catalog.declared import Place
from catalog.errors import DocumentError
from catalog.parsing.limits import (
    MAX_DEPTH,
    MAX_DUPLICATES,
    MAX_NODES,
    Parsed,
    number_of,
    too_deep,
    too_large,
    written_number_of,
)
from catalog.parsing.yaml_tree import parse_yaml
from catalog.values import Written, plain_number

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
        kept += isinstance(value, Written)
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
                if within and isinstance(value, Written):
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


def _repeated(file: str, tree: Any, names: dict[int, tuple[dict[str, Any], list[str]]]) -> Iterator[Place]:
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


def _place(file: str, path: _Path) -> Place:
    keys: list[str | int] = []
    while path is not None:
        path, key = path
        keys.append(key)
    place = Place(file)
    for key in reversed(keys):
        place /= key
    return place
