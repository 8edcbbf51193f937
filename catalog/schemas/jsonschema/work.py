"""How much work a JSON schema may make of a body: an upper bound, cheap enough to be asked for every body.

The library judges recursive schemas in linear time, because it remembers what it met. What it does not bound are a few
keywords (``multipleOf``, enums of objects, look-around), references that fan out, and above all the tree of errors
below ``anyOf`` and ``oneOf``: each way through the schema to a value counts, and a level of nesting may double them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from catalog.parsing.pointers import at_pointer
from catalog.schemas.contract import MAX_DIRECT_BYTES

MAX_JUDGING: Final = 20_000_000
"""Steps of about ten nanoseconds that judging one body may take."""
MAX_EXPLAINING: Final = 20_000
"""Steps of some ten microseconds and some kilobytes that finding its errors may take."""
MAX_LISTING: Final = 2_000
"""The same steps, for finding all errors where one is known: the library finds every one before it tells of any."""
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


class SchemaWork:
    """Bounds on the work of judging and explaining bodies by one schema."""

    def __init__(self, schema: Any, home: str, resources: Mapping[str, Any]) -> None:
        """*resources* are the other documents by URI; what a reference cannot be followed to counts as endless."""
        graph = _Graph(schema, home, resources)
        self._per_value = graph.heaviest()
        self._per_byte = graph.matching
        self._ways = graph.ways()
        self.soon_judged = min(MAX_DIRECT_BYTES, MAX_JUDGING // max(1, self._per_value + self._per_byte))
        """Bytes up to which every body is judged soon."""

    def judges_soon(self, body: bytes) -> bool:
        """Tell whether a verdict on a body takes a moment at most."""
        size = len(body)
        if size > MAX_DIRECT_BYTES:
            return False
        if size <= self.soon_judged:
            return True
        return _values(body) * self._per_value + size * self._per_byte <= MAX_JUDGING

    def explains_soon(self, body: bytes, steps: int = MAX_EXPLAINING) -> bool:
        """Tell whether finding errors takes no more than *steps*, of a body that does not conform."""
        levels = min(len(self._ways) - 1, body.count(b"{") + body.count(b"["))
        return len(body) <= MAX_DIRECT_BYTES and _values(body) * self._ways[levels] <= steps


def _values(body: bytes) -> int:
    """Return no less than the number of values in a body, names of members among them."""
    return 1 + body.count(b",") + 2 * body.count(b":") + body.count(b"[")


class _Node:
    """One schema: what it costs by itself, and the schemas that it applies to the same value and to those within."""

    def __init__(self) -> None:
        self.cost = 10
        self.shown = 1.0
        self.here: list[int] = []
        self.named: dict[str, list[int]] = {}
        self.below: list[int] = []


class _Graph:
    """The schemas that can be reached from a root, by number; number 0 is the root."""

    def __init__(self, schema: Any, home: str, resources: Mapping[str, Any]) -> None:
        self._resources = {home.partition("#")[0]: schema, **resources}
        self._bases: dict[int, str] = {}
        self._ids: dict[str, Any] = {}
        self._anchors: dict[str, list[Any]] = {}
        for uri, document in list(self._resources.items()):
            self._index(document, uri)
        self._numbers: dict[int, int] = {}
        self._nodes: list[_Node] = []
        self._waiting: list[Any] = []
        self.endless = False
        self.matching = 0
        """Steps per byte of a body that its regular expressions may take."""
        self._number(schema)
        while self._waiting and not self.endless:
            self._read(self._waiting.pop())

    def heaviest(self) -> int:
        """Return the most steps that judging one value may take, by all the schemas that apply to it in place."""
        if self.endless:
            return _ENDLESS
        known: dict[int, int] = {}
        return max((self._in_place(number, known, ()) for number in range(len(self._nodes))), default=0)

    def ways(self) -> list[float]:
        """Return, by levels of nesting, the most errors that may have to be looked at for one value of a body."""
        if self.endless:
            return [_ENDLESS]
        counts = self._closed({0: 1.0}) if self._nodes else {}
        by_level = [self._shown(counts)]
        for _ in range(_MAX_LEVELS):
            steps = self._steps(counts)
            most = max((self._shown(each) for each in steps), default=0.0)
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

    def _steps(self, counts: Mapping[int, float]) -> list[dict[int, float]]:
        """Return how often each schema applies to a member, for each name that schemas know and for any other."""
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
        return [self._closed(each) for each in whole if each]

    def _closed(self, counts: Mapping[int, float]) -> dict[int, float]:
        """Return how often each schema applies to a value, by those that apply to it in place."""
        total: dict[int, float] = {}
        current, rounds = dict(counts), 0
        while current:
            following: dict[int, float] = {}
            for number, ways in current.items():
                total[number] = min(_ENDLESS, total.get(number, 0.0) + ways)
                for other in self._nodes[number].here:
                    following[other] = min(_ENDLESS, following.get(other, 0.0) + ways)
            current, rounds = following, rounds + 1
            if rounds > _MAX_LEVELS:
                return {number: float(_ENDLESS) for number in (*total, *current)}
        return total

    def _shown(self, counts: Mapping[int, float]) -> float:
        return sum(ways * self._nodes[number].shown for number, ways in counts.items())

    def _in_place(self, number: int, known: dict[int, int], within: tuple[int, ...]) -> int:
        if number in known:
            return known[number]
        if number in within or len(within) > _MAX_LEVELS:
            return _ENDLESS
        node = self._nodes[number]
        cost = node.cost + sum(self._in_place(other, known, (*within, number)) for other in node.here)
        known[number] = min(_ENDLESS, cost)
        return known[number]

    def _number(self, schema: Any) -> int | None:
        """Return the number of a schema, which is read later; None for true, false and what is no schema."""
        if not isinstance(schema, dict):
            return None
        number = self._numbers.get(id(schema))
        if number is None:
            number = self._numbers[id(schema)] = len(self._nodes)
            self._nodes.append(_Node())
            self._waiting.append(schema)
            self.endless = self.endless or number > _MAX_NODES
        return number

    def _read(self, schema: Mapping[str, Any]) -> None:
        node = self._nodes[self._numbers[id(schema)]]
        node.here = [number for each in self._here(schema) if (number := self._number(each)) is not None]
        properties = schema.get("properties")
        for name, each in properties.items() if isinstance(properties, dict) else ():
            number = self._number(each)
            if number is not None:
                node.named[name] = [number]
        node.below = [number for each in _below(schema) if (number := self._number(each)) is not None]
        node.cost += _cost(schema)
        node.shown += _shown(schema)
        self.matching += sum(map(_matching, _patterns(schema)))

    def _here(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for keyword in _IN_PLACE_LISTS:
            yield from _list(schema.get(keyword))
        yield from (schema.get(keyword) for keyword in _IN_PLACE)
        for keyword in _IN_PLACE_MAPS:
            yield from _map(schema.get(keyword)).values()
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(schema.get(keyword), str):
                yield from self._referred(schema[keyword], self._bases.get(id(schema), ""), plain=keyword == "$ref")

    def _referred(self, reference: str, base: str, *, plain: bool) -> list[Any]:
        """Return what a reference may lead to: of a dynamic one every schema of that name."""
        try:
            uri, fragment = urldefrag(urljoin(base, reference))
        except ValueError:
            uri, fragment = base, ""
        schemas = [] if plain else list(self._anchors.get(fragment, self._ids.values()))
        document = self._ids.get(uri, self._resources.get(uri))
        if document is not None and fragment.startswith("/"):
            try:
                schemas.append(at_pointer(document, fragment))
            except KeyError:
                document = None
        elif document is not None and fragment:
            schemas.extend(self._anchors.get(fragment, ()))
        elif document is not None:
            schemas.append(document)
        if not schemas and "json-schema.org" not in uri:
            self.endless = True
        return schemas

    def _index(self, document: Any, uri: str) -> None:
        """Note the base URI of every schema, and where its identifiers and anchors are."""
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
            waiting.extend((each, base) for each in _inner(node) if isinstance(each, (dict, list)))


def _below(schema: Mapping[str, Any]) -> Iterator[Any]:
    yield from (schema.get(keyword) for keyword in _BELOW)
    for keyword in _BELOW_LISTS:
        yield from _list(schema.get(keyword))
    yield from _map(schema.get("patternProperties")).values()


def _cost(schema: Mapping[str, Any]) -> int:
    """Return the steps that a schema's own keywords take for one value."""
    cost = sum(steps for keyword, steps in _COSTS.items() if keyword in schema)
    options = _list(schema.get("enum"))
    if any(isinstance(each, (dict, list)) for each in (*options, schema.get("const"))):
        cost += 5 * _size([*options, schema.get("const")])
    patterns = list(_patterns(schema))
    cost += 30 * len(patterns) + 10 * len(_map(schema.get("properties"))) + 5 * len(_list(schema.get("required")))
    return cost + sum(_BACKTRACKING_COST for each in patterns if any(sign in each for sign in _BACKTRACKING))


def _shown(schema: Mapping[str, Any]) -> float:
    """Return how much more than another error those of a schema are: they quote its options."""
    return (_size(schema.get("enum")) + len(_list(schema.get("required")))) / 8


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    yield from _map(schema.get("patternProperties"))


def _matching(pattern: str) -> int:
    """Return the steps that a linear engine may take for one byte: counted repetitions are written out."""
    states = 1
    for repetition in _COUNTED.finditer(pattern):
        states = min(
            _ENDLESS, states * max(1, int(repetition.group(1)[:9] or repetition.group()[1:].rstrip(",")[:9] or 1))
        )
    return states if states > 1_000 else 1


def _size(tree: Any) -> int:
    """Return the number of values in a tree."""
    size, waiting = 0, [tree]
    while waiting:
        node = waiting.pop()
        size += 1
        waiting.extend(_inner(node))
    return size


def _inner(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
