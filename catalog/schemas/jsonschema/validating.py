"""Validation with JSON Schema, drafts 04 to 2020-12, by jsonschema-rs.

``format`` is only an annotation in every draft: 2019-09 and later define it so, earlier ones leave it open, and a date
in a slightly different form should not change which definition a record matches. Regular expressions run in linear
time, except lookaround and backreferences, which are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, urldefrag, urljoin

import jsonschema_rs
import msgspec

from catalog.parsing.pointers import resolve_pointer, to_pointer
from catalog.schemas.contract import (
    MAX_DEPTH,
    MAX_DIRECT_BYTES,
    MAX_FAULTS,
    Comparison,
    CostExceeded,
    Library,
    MissingTypeError,
    SchemaError,
    SchemaFault,
    SchemaSource,
    clip,
    make_fault,
    parse_json,
    worst_comparison,
)
from catalog.schemas.json.references import HOLDERS, pointer_of
from catalog.schemas.library import to_tree

# An upper bound of the work to validate a body, cheap enough to compute for every body.
#
# The library validates recursive schemas in linear time with a cache. It does not limit a few keywords (``multipleOf``,
# enums of objects, lookaround), references that fan out, and above all the tree of errors of ``anyOf`` and ``oneOf``:
# each path through the schema to a value has its own errors, and each nesting level may double them.

MAX_JUDGING: Final = 20_000_000
"""Maximum steps, of about ten nanoseconds, to validate one body here."""
MAX_EXPLAINING: Final = 20_000
"""Maximum steps, of about ten microseconds and a few kilobytes, to find the first error."""
MAX_LISTING: Final = 2_000
"""Maximum of the same steps to find all errors, because the library finds all before it returns any."""
_ENDLESS: Final = 1 << 60
_MAX_NODES: Final = 20_000
_MAX_LEVELS: Final = 64
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else", "extends")
_IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies")
_BELOW: Final = (
    *("additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "contains"),
    *("propertyNames", "items", "contentSchema"),
)
_BELOW_LISTS: Final = ("items", "prefixItems")
_COUNTED: Final = re.compile(r"\{\d*,?(\d*)")
_BACKTRACKING: Final = ("(?=", "(?!", "(?<", "\\1", "\\2", "\\3", "\\4", "\\5", "\\6", "\\7", "\\8", "\\9", "\\k")
_COSTS: Final = {"multipleOf": 2_000, "uniqueItems": 200, "unevaluatedProperties": 50, "unevaluatedItems": 50}
_BACKTRACKING_COST: Final = 100_000


class WorkLimits:
    """Upper bounds of the work to validate bodies, and to find their errors, with one schema."""

    def __init__(self, schema: Any, home: str, resources: Mapping[str, Any]) -> None:
        """*resources* are the other documents by URI; an unresolvable reference counts as unlimited work."""
        graph = _Graph(schema, home, resources)
        self._per_value = graph.max_steps()
        self._per_byte = graph.matching
        self._ways = graph.max_errors_by_level()
        self.fast_bytes = min(MAX_DIRECT_BYTES, MAX_JUDGING // max(1, self._per_value + self._per_byte))
        """Every body up to this size can be validated fast."""

    def validates_fast(self, body: bytes) -> bool:
        """Whether a body can be validated within MAX_JUDGING."""
        size = len(body)
        if size > MAX_DIRECT_BYTES:
            return False
        if size <= self.fast_bytes:
            return True
        return _count_values(body) * self._per_value + size * self._per_byte <= MAX_JUDGING

    def explains_fast(self, body: bytes, steps: int = MAX_EXPLAINING) -> bool:
        """Whether the errors of an invalid body can be found within *steps*."""
        levels = min(len(self._ways) - 1, body.count(b"{") + body.count(b"["))
        return len(body) <= MAX_DIRECT_BYTES and _count_values(body) * self._ways[levels] <= steps


def _count_values(body: bytes) -> int:
    """Return an upper bound of the number of values in a body, including member names."""
    return 1 + body.count(b",") + 2 * body.count(b":") + body.count(b"[")


class _Node:
    """One schema: its own cost, and the schemas that it applies to the same value and to members and items."""

    def __init__(self) -> None:
        self.cost = 10
        self.error_size = 1.0
        self.in_place: list[int] = []
        self.named: dict[str, list[int]] = {}
        self.below: list[int] = []


class _Graph:
    """All schemas reachable from a root, numbered; number 0 is the root."""

    def __init__(self, schema: Any, home: str, resources: Mapping[str, Any]) -> None:
        self._iter_resources = {home.partition("#")[0]: schema, **resources}
        self._bases: dict[int, str] = {}
        self._ids: dict[str, Any] = {}
        self._anchors: dict[str, list[Any]] = {}
        for uri, document in list(self._iter_resources.items()):
            self._index_document(document, uri)
        self._numbers: dict[int, int] = {}
        self._nodes: list[_Node] = []
        self._waiting: list[Any] = []
        self.endless = False
        self.matching = 0
        """Maximum steps per byte of the regular expressions."""
        self._number_of(schema)
        while self._waiting and not self.endless:
            self._read_schema(self._waiting.pop())

    def max_steps(self) -> int:
        """Return the maximum steps to validate one value, including all schemas that apply to the same value."""
        if self.endless:
            return _ENDLESS
        known: dict[int, int] = {}
        return max((self._in_place_cost(number, known, ()) for number in range(len(self._nodes))), default=0)

    def max_errors_by_level(self) -> list[float]:
        """Return, by nesting level, the maximum number of errors that one value may cause."""
        if self.endless:
            return [_ENDLESS]
        counts = self._add_in_place({0: 1.0}) if self._nodes else {}
        by_level = [self._error_weight(counts)]
        for _ in range(_MAX_LEVELS):
            steps = self._member_counts(counts)
            most = max((self._error_weight(each) for each in steps), default=0.0)
            by_level.append(max(by_level[-1], most))
            following: dict[int, float] = {}
            for each in steps:
                for number, ways in each.items():
                    following[number] = max(following.get(number, 0.0), ways)
            if following == counts or not following:
                return by_level
            if by_level[-1] >= _ENDLESS:
                break
            counts = following
        return [*by_level, _ENDLESS]

    def _member_counts(self, counts: Mapping[int, float]) -> list[dict[int, float]]:
        """Return how often each schema applies to a member, for each known name and for unknown names."""
        common: dict[int, float] = {}
        named: dict[str, dict[int, float]] = {}
        for number, ways in counts.items():
            node = self._nodes[number]
            for other in node.below:
                common[other] = common.get(other, 0.0) + ways
            for name, others in node.named.items():
                mine = named.setdefault(name, {})
                for other in others:
                    mine[other] = mine.get(other, 0.0) + ways
        whole = [common]
        for mine in named.values():
            whole.append({each: common.get(each, 0.0) + mine.get(each, 0.0) for each in {*common, *mine}})
        return [self._add_in_place(each) for each in whole if each]

    def _add_in_place(self, counts: Mapping[int, float]) -> dict[int, float]:
        """Return how often each schema applies to a value, including schemas applied by others to the same value."""
        total: dict[int, float] = {}
        current, rounds = dict(counts), 0
        while current:
            following: dict[int, float] = {}
            for number, ways in current.items():
                total[number] = min(_ENDLESS, total.get(number, 0.0) + ways)
                for other in self._nodes[number].in_place:
                    following[other] = min(_ENDLESS, following.get(other, 0.0) + ways)
            current, rounds = following, rounds + 1
            if rounds > _MAX_LEVELS:
                return {number: float(_ENDLESS) for number in (*total, *current)}
        return total

    def _error_weight(self, counts: Mapping[int, float]) -> float:
        return sum(ways * self._nodes[number].error_size for number, ways in counts.items())

    def _in_place_cost(self, number: int, known: dict[int, int], within: tuple[int, ...]) -> int:
        if number in known:
            return known[number]
        if number in within or len(within) > _MAX_LEVELS:
            return _ENDLESS
        node = self._nodes[number]
        cost = node.cost + sum(self._in_place_cost(other, known, (*within, number)) for other in node.in_place)
        known[number] = min(_ENDLESS, cost)
        return known[number]

    def _number_of(self, schema: Any) -> int | None:
        """Return the number of a schema, and queue a new one for reading; None if it is not an object."""
        if not isinstance(schema, dict):
            return None
        number = self._numbers.get(id(schema))
        if number is None:
            number = self._numbers[id(schema)] = len(self._nodes)
            self._nodes.append(_Node())
            self._waiting.append(schema)
            self.endless = self.endless or number > _MAX_NODES
        return number

    def _read_schema(self, schema: Mapping[str, Any]) -> None:
        node = self._nodes[self._numbers[id(schema)]]
        node.in_place = [n for each in self._iter_in_place(schema) if (n := self._number_of(each)) is not None]
        properties = schema.get("properties")
        for name, each in properties.items() if isinstance(properties, dict) else ():
            number = self._number_of(each)
            if number is not None:
                node.named[name] = [number]
        node.below = [number for each in _inner_schemas(schema) if (number := self._number_of(each)) is not None]
        node.cost += _keyword_cost(schema)
        node.error_size += _error_size(schema)
        self.matching += sum(map(_steps_per_byte, _iter_patterns(schema)))

    def _iter_in_place(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for keyword in _IN_PLACE_LISTS:
            yield from _list_of(schema.get(keyword))
        yield from (schema.get(keyword) for keyword in _IN_PLACE)
        for keyword in _IN_PLACE_MAPS:
            yield from _dict_of(schema.get(keyword)).values()
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(schema.get(keyword), str):
                yield from self._resolve(schema[keyword], self._bases.get(id(schema), ""), plain=keyword == "$ref")

    def _resolve(self, reference: str, base: str, *, plain: bool) -> list[Any]:
        """Return the possible targets of a reference; for a dynamic one, all schemas with that anchor."""
        try:
            uri, fragment = urldefrag(urljoin(base, reference))
        except ValueError:
            uri, fragment = base, ""
        schemas = [] if plain else list(self._anchors.get(fragment, self._ids.values()))
        document = self._ids.get(uri, self._iter_resources.get(uri))
        if document is not None and fragment.startswith("/"):
            try:
                schemas.append(resolve_pointer(document, fragment))
            except KeyError:
                document = None
        elif document is not None and fragment:
            schemas.extend(self._anchors.get(fragment, ()))
        elif document is not None:
            schemas.append(document)
        if not schemas and "json-schema.org" not in uri:
            self.endless = True
        return schemas

    def _index_document(self, document: Any, uri: str) -> None:
        """Store the base URI of every schema, and all identifiers and anchors."""
        waiting = [(document, uri)]
        self._ids.setdefault(uri, document)
        while waiting:
            node, base = waiting.pop()
            if isinstance(node, dict):
                own = node.get("$id", node.get("id"))
                if isinstance(own, str):
                    try:
                        base = urldefrag(urljoin(base, own))[0]
                    except ValueError:
                        pass
                    self._ids.setdefault(base, node)
                    if own.startswith("#"):
                        self._anchors.setdefault(own[1:], []).append(node)
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(node.get(keyword), str):
                        self._anchors.setdefault(node[keyword], []).append(node)
                self._bases.setdefault(id(node), base)
            waiting.extend((each, base) for each in _children(node) if isinstance(each, (dict, list)))


def _inner_schemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    yield from (schema.get(keyword) for keyword in _BELOW)
    for keyword in _BELOW_LISTS:
        yield from _list_of(schema.get(keyword))
    yield from _dict_of(schema.get("patternProperties")).values()


def _keyword_cost(schema: Mapping[str, Any]) -> int:
    """Return the steps of a schema's own keywords for one value."""
    cost = sum(steps for keyword, steps in _COSTS.items() if keyword in schema)
    options = _list_of(schema.get("enum"))
    if any(isinstance(each, (dict, list)) for each in (*options, schema.get("const"))):
        cost += 5 * _count_tree_values([*options, schema.get("const")])
    patterns = list(_iter_patterns(schema))
    cost += 30 * len(patterns) + 10 * len(_dict_of(schema.get("properties")))
    cost += 5 * len(_list_of(schema.get("required")))
    return cost + sum(_BACKTRACKING_COST for each in patterns if any(sign in each for sign in _BACKTRACKING))


def _error_size(schema: Mapping[str, Any]) -> float:
    """Return the additional weight of a schema's errors, which quote its options."""
    return (_count_tree_values(schema.get("enum")) + len(_list_of(schema.get("required")))) / 8


def _iter_patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    yield from _dict_of(schema.get("patternProperties"))


def _steps_per_byte(pattern: str) -> int:
    """Return the maximum steps per byte for a pattern; counted repetitions multiply the states."""
    states = 1
    for repetition in _COUNTED.finditer(pattern):
        states = min(
            _ENDLESS, states * max(1, int(repetition.group(1)[:9] or repetition.group()[1:].rstrip(",")[:9] or 1))
        )
    return states if states > 1_000 else 1


def _count_tree_values(tree: Any) -> int:
    """Return the number of values in a tree."""
    size, waiting = 0, [tree]
    while waiting:
        node = waiting.pop()
        size += 1
        waiting.extend(_children(node))
    return size


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


BACKTRACK_LIMIT: Final = 100_000
"""Maximum backtracking steps of a regular expression; beyond, the text does not match."""
REGEX_BYTES: Final = 4 * 1024 * 1024
_HOME: Final = "http://catalog.invalid/"
"""The base of keys that are not URIs, to join relative references; nothing is fetched."""
REGEX_OPTIONS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=REGEX_BYTES)
_VALIDATORS: Final[Mapping[str, type[jsonschema_rs.Validator]]] = {
    "04": jsonschema_rs.Draft4Validator,
    "06": jsonschema_rs.Draft6Validator,
    "07": jsonschema_rs.Draft7Validator,
    "2019-09": jsonschema_rs.Draft201909Validator,
    "2020-12": jsonschema_rs.Draft202012Validator,
}
_DIALECTS: Final = {
    **{draft: f"http://json-schema.org/draft-{draft}/schema#" for draft in ("04", "06", "07")},
    **{draft: f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12")},
}
_DRAFT: Final = re.compile(r"(2019-09|2020-12)|(?:^|draft[-_/ ]?)0?([467])(?!\d)", re.IGNORECASE)
_META: Final = re.compile(r"https?://json-schema\.org/(?:draft|schema)", re.IGNORECASE)
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_MAPS: Final = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"})
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples", "example"})
_LATEST: Final = "2020-12"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def names_of(source: SchemaSource, library: Library) -> Mapping[str, str]:
    """Return ``title`` and ``$id`` of a schema, or of the writer's schema, if present."""
    tree = source.document if source.written is None else to_tree(source.written.schema.document)
    if source.written is None and source.pointer:
        try:
            tree = resolve_pointer(tree, source.pointer)
        except KeyError:
            return {}
    members = tree if isinstance(tree, dict) else {}
    given = {"title": members.get("title"), "$id": members.get("$id", members.get("id"))}
    return {kind: text for kind, text in given.items() if isinstance(text, str) and text}


class JsonSchemaValidator:
    """Validates JSON bodies with one schema."""

    def __init__(self, validator: jsonschema_rs.Validator, work: WorkLimits) -> None:
        self._validator = validator
        self._work = work
        self._fast_bytes = work.fast_bytes

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return the first error of *body*; None if it is valid JSON and valid against the schema.

        The content type is ignored.

        Raises:
            CostExceeded: validation, or finding the error, may take too long, and *at_any_cost* is False.
        """
        if body is not None and len(body) > self._fast_bytes and not (at_any_cost or self._work.validates_fast(body)):
            raise CostExceeded
        value = parse_body(body)
        if isinstance(value, SchemaFault):
            return value
        try:
            if self._validator.is_valid(value):
                return None
            if not at_any_cost and body is not None and not self._work.explains_fast(body):
                raise CostExceeded(refused=True)
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return make_fault(error.message, to_pointer(error.instance_path))
        except (ValueError, TypeError, RecursionError) as failure:
            return make_fault(f"the body cannot be held against the schema: {failure}")
        return make_fault("the body is not valid against the schema")

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return all errors, at most MAX_FAULTS; only the first if there may be too many.

        Raises:
            CostExceeded: as :meth:`fault`.
        """
        first = self.fault(body, content_type)
        if first is None or body is None or not self._work.explains_fast(body, MAX_LISTING):
            return [] if first is None else [first]
        value = parse_body(body)
        if isinstance(value, SchemaFault):
            return [first]
        try:
            errors = islice(self._validator.iter_errors(value), MAX_FAULTS)
            return [make_fault(error.message, to_pointer(error.instance_path)) for error in errors] or [first]
        except (ValueError, TypeError, RecursionError):
            return [first]


def parse_body(body: bytes | None, *, doubles: bool = False) -> Any:
    """Return the value of a JSON body without a byte order mark, or a fault if it is not valid JSON.

    Strings that are not Unicode and very deep nesting are faults, too. *doubles* is as for
    :func:`catalog.schemas.contract.parse_json`.
    """
    if body is None:
        return make_fault("the body is missing; JSON is expected")
    try:
        return parse_json(body.removeprefix(_BYTE_ORDER_MARK), doubles=doubles)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return make_fault(f"the body is not valid JSON: {error}")
    except RecursionError:
        return make_fault("the body nests too deeply to be looked into")


def compile_schema(source: SchemaSource, library: Library) -> JsonSchemaValidator:
    """Compile a schema, or the part that is selected by name or pointer, with all documents that it refers to.

    Raises:
        MissingTypeError: the selected part is missing.
        SchemaError: it is not a valid JSON schema, or has an unresolvable reference or an invalid expression.
    """
    document = _drop_unknown_dialect(to_tree(source.document))
    draft = draft_of(document, source.version)
    pointer = _pointer_of(document, source)
    home = _document_uri(source.uri)
    resources = dict(_iter_resources(source.uri, document, library))
    schema: Any = document
    if pointer:
        base = _join_uri(home, _own_id(document)).partition("#")[0]
        resources[base] = document
        _check_part(document, pointer, draft)
        home, schema = f"{home}?part", {"$ref": f"{base}#{quote(pointer, safe='/~')}"}
    return JsonSchemaValidator(_compile_validator(schema, draft, home, resources), WorkLimits(schema, home, resources))


def references_of(source: SchemaSource) -> Iterable[str]:
    """Return the URIs of other documents in ``$ref``, joined to an enclosing ``$id``, without meta-schemas."""
    return dict.fromkeys(reference for reference, _ in _iter_references(to_tree(source.document)))


def draft_of(document: Any, version: str) -> str:
    """Return the draft: from ``$schema``, else from the declared *version*, else the latest."""
    stated = document.get("$schema") if isinstance(document, dict) else None
    for text in (stated, version):
        match = _DRAFT.search(text) if isinstance(text, str) else None
        if match is not None:
            return match.group(1) or f"0{match.group(2)}"
    return _LATEST


def _compile_validator(schema: Any, draft: str, home: str, resources: Mapping[str, Any]) -> jsonschema_rs.Validator:
    def retrieve(uri: str) -> Any:
        return resources[uri.partition("#")[0]]

    try:
        return _VALIDATORS[draft](
            schema, validate_formats=False, base_uri=home, pattern_options=REGEX_OPTIONS, retriever=retrieve
        )
    except jsonschema_rs.ValidationError as error:
        raise SchemaError(
            f"this is not a valid JSON schema: {error.message}", pointer=to_pointer(error.instance_path)
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise SchemaError(clip(f"the JSON schema cannot be used: {error}")) from error


def _drop_unknown_dialect(document: Any) -> Any:
    """Return the schema without a ``$schema`` that is not a known draft, because custom meta-schemas are not loaded."""
    if isinstance(document, dict):
        declared = document.get("$schema")
        if declared is None or (isinstance(declared, str) and _META.match(declared)):
            return document
        return {name: value for name, value in document.items() if name != "$schema"}
    if isinstance(document, bool):
        return document
    raise SchemaError("this is not a JSON schema: it must be an object", hint="write an object, or correct its format")


def _check_part(document: Any, pointer: str, draft: str) -> None:
    """Validate a part of a document against the meta-schema; the rest of the document need not be a schema.

    Raises:
        MissingTypeError: there is no such part.
        SchemaError: it is not a valid schema.
    """
    try:
        part = resolve_pointer(document, pointer)
    except KeyError:
        raise MissingTypeError(f"the schema has nothing at {pointer}", hint="correct the reference") from None
    if isinstance(part, dict):
        part = {**part, "$schema": _DIALECTS[draft]}
    try:
        jsonschema_rs.meta.validate(part)
    except jsonschema_rs.ValidationError as error:
        at = pointer + to_pointer(error.instance_path)
        raise SchemaError(clip(f"this is not a valid JSON schema: {error.message}"), pointer=at) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise SchemaError(clip(f"the JSON schema cannot be used: {error}"), pointer=pointer) from error


def find_start(source: SchemaSource) -> Any:
    """Return the selected part of a document with a valid schema.

    Raises:
        MissingTypeError, KeyError: the part is missing.
    """
    return resolve_pointer(source.document, _pointer_of(source.document, source))


def _pointer_of(document: Any, source: SchemaSource) -> str:
    """Return the JSON pointer of the selected part; empty for the whole document.

    Raises:
        MissingTypeError: there is no type with that name.
    """
    if source.pointer or not source.name:
        return source.pointer
    pointer = pointer_of(document, source.name)
    if pointer is None:
        members = document if isinstance(document, dict) else {}
        types = [members[holder] for holder in HOLDERS if isinstance(members.get(holder), dict)]
        known = sorted({key for each in types for key in each})
        hint = f"it has {', '.join(known[:8])}" if known else "leave the name out, or add it to $defs"
        raise MissingTypeError(f"the schema has no type {source.name}", hint=hint)
    return pointer


def _document_uri(key: str) -> str:
    """Return an absolute URI for the document *key*."""
    if "://" in key and "#" not in key:
        return key
    steps = ("up" if step == ".." else step for step in key.lstrip("/").split("/"))
    return _HOME + quote("/".join(steps), safe="/")


def _iter_resources(key: str, document: Any, library: Library) -> Iterator[tuple[str, Any]]:
    """Yield all documents that a schema refers to, with every URI to which its references may resolve."""
    waiting, seen = [(key, document, {_document_uri(key)})], {key}
    while waiting:
        base, tree, homes = waiting.pop()
        homes = {*homes, *(_join_uri(home, _own_id(tree)) for home in homes)}
        for reference, written in dict.fromkeys(_iter_references(tree)):
            loaded = library.document(reference, base)
            if loaded is None:
                continue
            other = _drop_unknown_dialect(to_tree(loaded[1]))
            names = {_join_uri(home, each) for home in homes for each in (reference, written)}
            for name in names:
                yield name.partition("#")[0], other
            if loaded[0] not in seen:
                seen.add(loaded[0])
                waiting.append((loaded[0], other, names))


def _iter_references(tree: Any) -> Iterator[tuple[str, str]]:
    """Return references to other documents, as pairs: joined to an absolute ``$id`` around them, and as written."""
    references: list[tuple[str, str]] = []
    own: set[str] = set()
    waiting: list[tuple[Any, str, bool]] = [(tree, "", False)]
    while waiting:
        node, base, is_map = waiting.pop()
        if isinstance(node, list):
            waiting.extend((each, base, False) for each in node if isinstance(each, (dict, list)))
        if not isinstance(node, dict):
            continue
        if not is_map:
            identifier = _own_id(node)
            if identifier and (base or _ABSOLUTE.match(identifier)):
                base = _join_uri(base, identifier).partition("#")[0]
            own.update((base, identifier.partition("#")[0]))
            written = (node.get(keyword) for keyword in _REFERENCES)
            plain = (each.partition("#")[0] for each in written if isinstance(each, str) and not each.startswith("#"))
            references.extend((_join_uri(base, each) if base else each, each) for each in plain)
        for name, part in node.items():
            if isinstance(part, (dict, list)) and (is_map or name not in _NO_SCHEMAS):
                waiting.append((part, base, not is_map and name in _MAPS))
    return (pair for pair in references if pair[0] and pair[0] not in own and not _META.match(pair[0]))


def _join_uri(base: str, reference: str) -> str:
    """Join URIs as in RFC 3986; an invalid reference is returned unchanged."""
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _own_id(schema: Any) -> str:
    """Return ``$id`` (``id`` in draft 04), empty if it is missing or not a string."""
    if not isinstance(schema, dict):
        return ""
    own = schema.get("$id")
    if own is None and "draft-04" in str(schema.get("$schema")):
        own = schema.get("id")
    return own if isinstance(own, str) and not own.startswith("#") else ""


# Comparing two JSON schemas; members that the older one does not name are assumed absent from bodies.

_WORDS: Final = frozenset(
    {"title", "description", "$comment", "examples", "default", "deprecated", "$id", "id", "$schema"}
)
_NESTED: Final = frozenset({"items", "additionalItems", "contains", "additionalProperties", "propertyNames"})
_COMPARING_MAPS: Final = frozenset({"$defs", "definitions", "patternProperties"})
_BOUNDS: Final = frozenset(
    {"type", "enum", "const", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"}
)


def compare(old: Any, new: Any, at: str = "", depth: int = 0) -> Comparison:
    """Compare two schemas; *at* is the JSON pointer to them in their documents."""
    if old == new:
        return "same", ""
    if depth > MAX_DEPTH or not isinstance(old, dict) or not isinstance(new, dict):
        return "unknown", f"{at or '/'} is another kind of schema"
    comparisons: list[Comparison] = []
    for keyword in dict.fromkeys((*old, *new)):
        if keyword in _WORDS:
            comparisons.append(("compatible", f"{at}/{keyword} says otherwise"))
        elif old.get(keyword) != new.get(keyword):
            comparisons.append(_compare_keyword(keyword, old, new, at, depth))
    return worst_comparison(comparisons)


def _compare_keyword(keyword: str, old: Mapping[str, Any], new: Mapping[str, Any], at: str, depth: int) -> Comparison:
    one, other, here = old.get(keyword), new.get(keyword), f"{at}/{keyword}"
    if keyword == "properties" and isinstance(one or {}, dict) and isinstance(other or {}, dict):
        return _compare_properties(old, new, at, depth)
    if keyword == "required" and isinstance(one or [], list) and isinstance(other or [], list):
        moved = sorted(map(str, set(map(str, one or [])) ^ set(map(str, other or []))))
        return ("incompatible", f"{here} changes for {', '.join(moved)}") if moved else ("compatible", "")
    if keyword in _BOUNDS:
        equal = keyword in ("enum", "type") and _sort_values(one) == _sort_values(other)
        return ("compatible", "") if equal else ("incompatible", f"{here} changes")
    if keyword in _NESTED and isinstance(one, dict) and isinstance(other, dict):
        return compare(one, other, here, depth + 1)
    if keyword in _COMPARING_MAPS and isinstance(one, dict) and isinstance(other, dict):
        shared = [compare(one[name], other[name], f"{here}/{name}", depth + 1) for name in one if name in other]
        return worst_comparison([*shared, ("compatible", "")])  # others matter where they are referenced
    return "unknown", f"{here} changes"


def _compare_properties(old: Mapping[str, Any], new: Mapping[str, Any], at: str, depth: int) -> Comparison:
    """Compare members; a new one is compatible unless the old schema forbids unknown members."""
    one, other = old.get("properties") or {}, new.get("properties") or {}
    open_before = old.get("additionalProperties") in (None, True) and "patternProperties" not in old
    comparisons: list[Comparison] = []
    for name in dict.fromkeys((*one, *other)):
        here = f"{at}/properties/{name}"
        if name not in other:
            comparisons.append(("incompatible", f"{here} is gone"))
        elif name in one:
            comparisons.append(compare(one[name], other[name], here, depth + 1))
        elif open_before:
            comparisons.append(("compatible", f"{here} is new"))
        else:
            comparisons.append(("incompatible", f"{here} is new where nothing new was allowed"))
    return worst_comparison(comparisons)


def _sort_values(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, list) else [repr(value)]
