"""Compatibility of JSON schemas: whether all values of one are values of another."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from catalog.parsing.pointers import resolve_pointer
from catalog.schemas.contract import CostExceeded, EmptyLibrary, SchemaError, SchemaSource, Validator
from catalog.schemas.families import compile_schema, family_of
from catalog.schemas.filling import Chooser, UnsupportedSchema
from catalog.schemas.jsonschema.validating import REGEX_OPTIONS, draft_of
from registry.compatibility.schemas import Budget, Undecided

# Schemas as conjuncts, types and bounds.
#
# A schema is the conjunction of its *conjuncts*: plain schemas without ``$ref`` and ``allOf``.

Schema = Mapping[str, Any]
EMPTY_SCHEMA: Final[Schema] = {"not": {}}
"""The schema that allows nothing, like ``false``."""
MAX_STEPS: Final = 20_000
"""Maximum visits of subschemas; beyond, the result is undecided."""
ALL_TYPES: Final = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
NUMBERS: Final = frozenset(("integer", "fraction"))
_HIDES_SIBLINGS: Final = ("04", "06", "07")
_DRAFTS: Final = ("04", "06", "07", "2019-09", "2020-12")
_DRAFT_OF_KEYWORD: Final = {
    **dict.fromkeys(("const", "contains", "propertyNames"), "06"),
    **dict.fromkeys(("if", "then", "else"), "07"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), "2019-09"),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), "2019-09"),
    "prefixItems": "2020-12",
}
"""Keywords by the draft that introduced them."""
_DYNAMIC_REFERENCES: Final = ("$dynamicRef", "$recursiveRef")


@dataclass(slots=True)
class RootSchema:
    """A schema document, in which references are resolved; ``version`` is its draft, such as ``draft-07``."""

    document: Any
    version: str
    _draft: str = field(init=False)
    _steps: int = 0

    def __post_init__(self) -> None:
        self._draft = draft_of(self.document, self.version)

    def conjuncts_of(self, schema: Any) -> list[Schema]:
        """Return the conjuncts of a schema.

        Raises:
            Undecided: a reference is external or circular, or the limit is exceeded.
        """
        schemas: list[Schema] = []
        waiting = [schema]
        while waiting:
            self._steps += 1
            if self._steps > MAX_STEPS or len(waiting) > MAX_STEPS:
                raise Undecided("the schema refers to itself, or has too many references")
            each = waiting.pop()
            if each is False:
                return [EMPTY_SCHEMA]
            if not isinstance(each, Mapping):
                continue
            if any(name in each for name in _DYNAMIC_REFERENCES):
                raise Undecided("dynamic references are not supported")
            if each is not self.document and any(isinstance(each.get(name), str) for name in ("$id", "id")):
                raise Undecided("nested schemas with their own $id are not supported")
            if isinstance(each.get("$ref"), str):
                waiting.append(self._resolve(each["$ref"]))
                if self._draft in _HIDES_SIBLINGS:
                    continue
            if isinstance(each.get("allOf"), list):
                waiting.extend(each["allOf"])
            schemas.append({name: value for name, value in each.items() if self._has_keyword(name)})
        return schemas

    def _has_keyword(self, name: str) -> bool:
        since = _DRAFT_OF_KEYWORD.get(name, _DRAFTS[0])
        return name not in ("$ref", "allOf") and _DRAFTS.index(since) <= _DRAFTS.index(self._draft)

    def _resolve(self, reference: str) -> Any:
        if not reference.startswith("#") or (reference[1:] and reference[1] != "/"):
            raise Undecided(f"the external reference {reference} is not resolved")
        try:
            return resolve_pointer(self.document, unquote(reference[1:]))
        except (LookupError, ValueError):
            raise Undecided(f"the reference {reference} cannot be resolved") from None


def expand_types(kind: Any) -> frozenset[str]:
    """Return the types that ``type`` allows."""
    names = kind if isinstance(kind, list) else [kind]
    return frozenset(part for name in names for part in (NUMBERS if name == "number" else (str(name),)))


def strictest_bound(conjuncts: Sequence[Schema], name: str, *, lowest: bool = False) -> float | None:
    """Return the strictest numeric bound *name*, None without one."""
    given = [each[name] for each in conjuncts if isinstance(each.get(name), int | float)]
    given = [each for each in given if not isinstance(each, bool)]
    return None if not given else min(given) if lowest else max(given)


def items_of(schema: Schema) -> tuple[Sequence[Any], Any]:
    """Return the schemas of the leading items, and the schema of all others."""
    if isinstance(schema.get("prefixItems"), list):
        return schema["prefixItems"], schema.get("items", True)
    items = schema.get("items", True)
    return (items, schema.get("additionalItems", True)) if isinstance(items, list) else ((), items)


def subschemas(schema: Schema, name: str) -> Mapping[str, Any]:
    """Return a map of subschemas, empty if absent."""
    members = schema.get(name)
    return members if isinstance(members, Mapping) else {}


# Listed values (``enum``, ``const``), compared as in JSON: ``true`` is not a number, and 1.0 equals 1.
#
# Every comparison is counted, to bound the time.

_MAX_LEVELS: Final = 64
_REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))

ValuesByKey = Mapping[Hashable, Any]
"""Values by key: equal values have equal keys."""


class ValueComparer:
    """Compares values for one proof. All methods raise Undecided if the budget is exceeded."""

    def __init__(self, budget: Budget) -> None:
        self.spend: Final = budget.spend
        self._enums: dict[int, tuple[list[Any], ValuesByKey]] = {}

    def equality_key(self, value: Any, level: int = 0) -> Hashable:
        """Return a key that is equal for equal values."""
        self.spend(1)
        if level > _MAX_LEVELS:
            raise Undecided("the values are nested too deeply")
        if isinstance(value, list):
            return "array", tuple(self.equality_key(each, level + 1) for each in value)
        if isinstance(value, Mapping):
            return "object", frozenset((name, self.equality_key(each, level + 1)) for name, each in value.items())
        if isinstance(value, int | float) and not isinstance(value, bool):
            return "number", _number_key(value)
        hashable: Hashable = value
        return hashable

    def are_equal(self, one: Any, other: Any) -> bool:
        """Whether two values are equal."""
        return self.equality_key(one) == self.equality_key(other)

    def distinct_enum(self, enum: list[Any]) -> ValuesByKey:
        """Return the distinct values of an enum; cached for each list."""
        if id(enum) not in self._enums:
            listed: dict[Hashable, Any] = {}
            for each in enum:
                listed.setdefault(self.equality_key(each), each)
            self._enums[id(enum)] = enum, listed  # keep the list, so that its id stays unique
        return self._enums[id(enum)][1]

    def possible_values(self, conjuncts: Sequence[Schema]) -> ValuesByKey | None:
        """Return all possible values if they are enumerated, None if not."""
        lists: list[ValuesByKey] = []
        for each in conjuncts:
            if "const" in each:
                lists.append({self.equality_key(each["const"]): each["const"]})
            elif isinstance(each.get("enum"), list):
                lists.append(self.distinct_enum(each["enum"]))
        self.spend(len(conjuncts))
        if not lists:
            return None
        first, *others = lists
        self.spend(len(first) * len(lists))
        return {key: value for key, value in first.items() if all(key in other for other in others)}

    def possible_types(self, conjuncts: Sequence[Schema]) -> frozenset[str]:
        """Return the types that values may have; numbers are ``integer`` or ``fraction``."""
        types = ALL_TYPES
        for each in conjuncts:
            if each is EMPTY_SCHEMA:
                return frozenset()
            if "type" in each:
                self.spend(len(each["type"]) if isinstance(each["type"], list) else 1)
                types &= expand_types(each["type"])
        listed = self.possible_values(conjuncts)
        return (
            types
            if listed is None
            else types & frozenset(kind for each in listed.values() for kind in _iter_types(each))
        )

    def may_refer(self, schema: Any) -> bool:
        """Whether a schema may contain a reference."""
        waiting = [schema]
        while waiting:
            self.spend(1)
            each = waiting.pop()
            if isinstance(each, list):
                waiting.extend(each)
            elif isinstance(each, Mapping):
                if not _REFERENCES.isdisjoint(each):
                    return True
                waiting.extend(each.values())
        return False


def _number_key(number: float) -> str:
    """Return a text for a number: hashes of numbers can be chosen by an attacker, those of texts cannot."""
    if isinstance(number, float) and not number.is_integer():
        return number.hex()
    return f"{int(number):x}"


def _iter_types(value: Any) -> Iterator[str]:
    if value is None or isinstance(value, bool):
        yield "null" if value is None else "boolean"
    elif isinstance(value, int | float):
        yield "integer" if isinstance(value, int) or (math.isfinite(value) and value.is_integer()) else "fraction"
        if isinstance(value, float):
            yield "fraction"  # which 1.0 is for draft-04
    else:
        yield "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


# Whether bounds of sizes and numbers of the smaller schemas are within those of the larger one.

MIN_KEYWORDS: Final = {"minLength": "string", "minItems": "array", "minProperties": "object"}
MAX_KEYWORDS: Final = {"maxLength": "string", "maxItems": "array", "maxProperties": "object"}
"""Keywords with the type that they apply to."""


def size_gap(name: str, argument: Any, smaller: list[Schema]) -> str:
    """Return why values may have sizes that *name* does not allow, '' if they cannot."""
    ours = strictest_bound(smaller, name, lowest=name in MAX_KEYWORDS)
    if name == "minProperties" and ours is None:
        ours = float(
            max((len(each["required"]) for each in smaller if isinstance(each.get("required"), list)), default=0)
        )
    if name in MIN_KEYWORDS:
        return "" if argument <= (ours or 0) else "smaller sizes are possible"
    return "" if ours is not None and ours <= argument else "larger sizes are possible"


def bound_gap(argument: Any, smaller: list[Schema], *, strict: bool, sign: int) -> str:
    """Compare lower bounds, or with a *sign* of -1 upper bounds."""
    plain, exclusive = ("minimum", "exclusiveMinimum") if sign > 0 else ("maximum", "exclusiveMaximum")
    for each in smaller:
        flag = each.get(exclusive) is True
        given = [
            (each.get(plain), flag),
            (None if isinstance(each.get(exclusive), bool) else each.get(exclusive), True),
        ]
        for value, excluded in given:
            if isinstance(value, int | float) and not isinstance(value, bool):
                above = sign * (value - argument)
                if above > 0 or (above == 0 and (excluded or not strict)):
                    return ""
    return "numbers beyond it are possible"


def _bound_check(name: str) -> Callable[[Any, list[Schema], frozenset[str], ValuesByKey | None], str]:
    sign = 1 if name.lower().endswith("minimum") else -1
    strict = name.startswith("exclusive")

    def check(argument: Any, smaller: list[Schema], types: frozenset[str], values: ValuesByKey | None) -> str:
        numbers = [
            each for each in (values or {}).values() if isinstance(each, int | float) and not isinstance(each, bool)
        ]
        if values is not None:
            beyond = [each for each in numbers if sign * (each - argument) < 0 or (strict and each == argument)]
            if not beyond:
                return ""
            return f"{beyond[0]} is possible" if bound_gap(argument, smaller, strict=strict, sign=sign) else ""
        return bound_gap(argument, smaller, strict=strict, sign=sign)

    return check


def _multiple_gap(argument: Any, smaller: list[Schema], types: frozenset[str], values: ValuesByKey | None) -> str:
    steps = [each["multipleOf"] for each in smaller if isinstance(each.get("multipleOf"), int | float)]
    steps += [1] if "fraction" not in types else []
    wanted = Fraction(str(argument))
    fits = wanted > 0 and any((Fraction(str(each)) / wanted).denominator == 1 for each in steps)
    return "" if fits else "other numbers are possible"


NUMERIC_CHECKS: Final[Mapping[str, Callable[[Any, list[Schema], frozenset[str], ValuesByKey | None], str]]] = {
    **{name: _bound_check(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    "multipleOf": _multiple_gap,
}
"""Comparisons of numeric bounds, by keyword."""


# Proof that all values of the smaller schema are values of the larger one.
#
# The rules are sound but incomplete: if none applies, nothing is proven. ``format`` and other annotations are ignored,
# as by the catalog's validator. jsonschema-rs's own ``covers`` decides 100 of our 118 cases (ours 110), and cannot
# decide recursive types that change, which a registry must let evolve.

_OBJECT_KEYWORDS: Final = frozenset(("properties", "patternProperties", "additionalProperties"))
_ARRAY_KEYWORDS: Final = frozenset(("items", "prefixItems", "additionalItems"))
_EQUAL_KEYWORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("contains", "minContains", "maxContains", "unevaluatedItems", "uniqueItems"), "array"),
    **dict.fromkeys(("propertyNames", "dependencies", "dependentSchemas", "dependentRequired"), "object"),
    **dict.fromkeys(("unevaluatedProperties",), "object"),
    **dict.fromkeys(("not", "if", "then", "else"), ""),
    "pattern": "string",
}
"""Keywords that are proven by an equal keyword in the smaller schema; with their type, '' for all."""
_MAX_BRANCHES: Final = 64
_MAX_DISJOINT_DEPTH: Final = 8
_MATCH_STEPS: Final = 50
"""Steps counted for matching one name."""


class SubsetProof:
    """Proves that values of schemas of *smaller* are values of schemas of *larger*."""

    def __init__(self, smaller: RootSchema, larger: RootSchema, budget: Budget) -> None:
        self._smaller = smaller
        self._larger = larger
        self._values = ValueComparer(budget)
        self._patterns: dict[str, Any] = {}
        self._same_document: bool | None = None
        self._assumed: dict[tuple[frozenset[int], int], None] = {}
        self._kept: list[Any] = []
        self._levels = 0

    def find_gap(self, smaller: Sequence[Any], larger: Any, where: str) -> str:
        """Return where the proof fails for values of all of *smaller*, '' if it succeeds; *where* is the location.

        Raises:
            Undecided: the schemas are too large.
        """
        # Recursive schemas: a pair is assumed while it is being proven (coinduction).
        key = frozenset(map(id, smaller)), id(larger)
        if key in self._assumed:
            return ""
        self._kept.append((smaller, larger))  # so that their ids stay unique
        before = len(self._assumed)
        self._assumed[key] = None
        self._levels += 1
        if self._levels > _MAX_LEVELS:
            raise Undecided("the schemas are nested too deeply")
        why = self._find_gap([one for each in smaller for one in self._smaller.conjuncts_of(each)], larger, where)
        self._levels -= 1
        if why:
            while len(self._assumed) > before:
                self._assumed.popitem()
        return why

    def _find_gap(self, smaller: list[Schema], larger: Any, where: str) -> str:
        if EMPTY_SCHEMA in smaller or not self._values.possible_types(smaller):
            return ""
        first = next(
            (why for each in self._larger.conjuncts_of(larger) if (why := self._keywords_gap(smaller, each, where))), ""
        )
        if not first:
            return ""
        for branches in _iter_cases(smaller, self._values.possible_types(smaller)):
            if all(not self.find_gap(each, larger, where) for each in branches):
                return ""
        return first

    def _keywords_gap(self, smaller: list[Schema], larger: Schema, where: str) -> str:
        """Prove that values of *smaller* satisfy one plain schema, keyword by keyword."""
        if larger is EMPTY_SCHEMA:
            return f"{where or '/'}: nothing is allowed"
        types, values = self._values.possible_types(smaller), self._values.possible_values(smaller)
        if values is None and types <= {"null", "boolean"}:
            plain = (("null", None), ("boolean", True), ("boolean", False))
            values = {value: value for kind, value in plain if kind in types}
        for name, argument in larger.items():
            if name in _OBJECT_KEYWORDS | _ARRAY_KEYWORDS:
                continue
            why = self._keyword_gap(name, argument, smaller, larger, types, values, where)
            if why:
                return f"{where}/{name}: {why}" if not why.startswith("/") else why
        if "object" in types and _OBJECT_KEYWORDS & larger.keys():
            why = self._members_gap(smaller, larger, where)
            if why:
                return why
        return self._items_gap(smaller, larger, where) if "array" in types and _ARRAY_KEYWORDS & larger.keys() else ""

    def _keyword_gap(
        self,
        name: str,
        argument: Any,
        smaller: list[Schema],
        larger: Schema,
        types: frozenset[str],
        values: ValuesByKey | None,
        where: str,
    ) -> str:
        if name == "type":
            wrong = sorted(types - expand_types(argument))
            return f"values may be of type {', '.join(wrong)}" if wrong else ""
        if name in ("enum", "const"):
            allowed = self._values.possible_values([{name: argument}])
            listed = values is not None and allowed is not None and values.keys() <= allowed.keys()
            return "" if listed else "other values are possible"
        if name == "required":
            return self._required_gap(argument, smaller) if "object" in types else ""
        if name in MIN_KEYWORDS or name in MAX_KEYWORDS:
            return size_gap(name, argument, smaller) if {**MIN_KEYWORDS, **MAX_KEYWORDS}[name] in types else ""
        if argument is True and name in ("exclusiveMinimum", "exclusiveMaximum"):  # of draft-04
            plain = larger.get("minimum" if name == "exclusiveMinimum" else "maximum")
            bounded = types & NUMBERS and plain is not None
            return (
                bound_gap(plain, smaller, strict=True, sign=1 if name == "exclusiveMinimum" else -1) if bounded else ""
            )
        if name in NUMERIC_CHECKS and not isinstance(argument, bool):
            return NUMERIC_CHECKS[name](argument, smaller, types, values) if types & NUMBERS else ""
        if name in ("anyOf", "oneOf") and isinstance(argument, list):
            return self._choice_gap(argument, smaller, where, name)
        if name in _EQUAL_KEYWORDS:
            return self._equal_gap(name, argument, smaller, larger, types)
        return ""

    def _choice_gap(self, branches: list[Any], smaller: list[Schema], where: str, name: str) -> str:
        """Prove that one branch accepts all values, and with ``oneOf`` no other branch any."""
        for index, branch in enumerate(branches):
            if self.find_gap(smaller, branch, f"{where}/{name}/{index}"):
                continue
            if name == "anyOf" or all(
                self._is_disjoint(smaller, other) for place, other in enumerate(branches) if place != index
            ):
                return ""
        return "no single branch accepts all values"

    def _is_disjoint(self, smaller: list[Schema], branch: Any, level: int = 0) -> bool:
        """Whether a branch certainly accepts no value of *smaller*."""
        other = self._larger.conjuncts_of(branch)
        types = self._values.possible_types(smaller)
        if not types & self._values.possible_types(other):
            return True
        one, two = self._values.possible_values(smaller), self._values.possible_values(other)
        if one is not None and two is not None and one.keys().isdisjoint(two):
            return True
        if types != {"object"} or level > _MAX_DISJOINT_DEPTH:
            return False
        names = {
            str(name) for each in other for name in each.get("required") or () if name in subschemas(each, "properties")
        }
        for name in names:
            theirs = [subschemas(each, "properties")[name] for each in other if name in subschemas(each, "properties")]
            ours = [one for each in self._member_schemas(smaller, name) for one in self._smaller.conjuncts_of(each)]
            if (
                not self._required_gap([name], smaller)
                and ours
                and any(self._is_disjoint(ours, each, level + 1) for each in theirs)
            ):
                return True
        return False

    def _equal_gap(self, name: str, argument: Any, smaller: list[Schema], larger: Schema, types: frozenset[str]) -> str:
        kind = _EQUAL_KEYWORDS[name]
        if kind and kind not in types:
            return ""
        if name == "uniqueItems" and argument is False:
            return ""
        if name in ("then", "else") and "if" not in larger:
            return ""
        names = ("if", "then", "else") if name in ("if", "then", "else") else (name,)
        if name.startswith("unevaluated"):
            return "unevaluated members or items are not analysed"
        if name in ("contains", "minContains", "maxContains"):
            names = ("contains", "minContains", "maxContains")
        wanted = self._values.equality_key([[larger[one]] if one in larger else [] for one in names])
        same = any(
            self._values.equality_key([[each[one]] if one in each else [] for one in names]) == wanted
            for each in smaller
        )
        return "" if same and not self._refers_elsewhere(argument) else "it is not the same in the other schema"

    def _refers_elsewhere(self, schema: Any) -> bool:
        """Whether a schema has references that may resolve differently in the smaller document."""
        if not self._values.may_refer(schema):
            return False
        if self._same_document is None:
            self._same_document = self._values.are_equal(self._smaller.document, self._larger.document)
        return not self._same_document

    def _matches(self, pattern: str, name: str) -> bool:
        """Whether a pattern matches, by the validator's engine, which is bounded."""
        self._values.spend(_MATCH_STEPS)
        if pattern not in self._patterns:
            try:
                validator = jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=REGEX_OPTIONS)
            except ValueError as error:
                raise Undecided(f"the pattern {pattern[:50]} is not valid") from error
            self._patterns[pattern] = validator
        return bool(self._patterns[pattern].is_valid(name))

    def _required_gap(self, names: Any, smaller: list[Schema]) -> str:
        if isinstance(names, bool) or not isinstance(names, list):
            return "it is not a list"
        lists = [each["required"] for each in smaller if isinstance(each.get("required"), list)]
        self._values.spend(len(smaller) + sum(map(len, lists)))
        given = {str(name) for each in lists for name in each}
        missing = [str(name) for name in names if name not in given]
        return f"{missing[0]} may be missing" if missing else ""

    def _member_schemas(self, smaller: list[Schema], name: str) -> list[Any]:
        """Return all schemas that a member's value must satisfy."""
        self._values.spend(len(smaller))
        constraints: list[Any] = []
        for each in smaller:
            own = [subschemas(each, "properties")[name]] if name in subschemas(each, "properties") else []
            own += [value for key, value in subschemas(each, "patternProperties").items() if self._matches(key, name)]
            constraints += own or ([each["additionalProperties"]] if "additionalProperties" in each else [])
        return constraints

    def _members_gap(self, smaller: list[Schema], larger: Schema, where: str) -> str:
        known, patterns = subschemas(larger, "properties"), subschemas(larger, "patternProperties")
        rest = larger.get("additionalProperties", True)
        for name, schema in known.items():
            why = self.find_gap(self._member_schemas(smaller, name) or [True], schema, f"{where}/properties/{name}")
            if why:
                return why
        for name in dict.fromkeys(name for each in smaller for name in subschemas(each, "properties")):
            wanted = [schema for key, schema in patterns.items() if self._matches(key, name)]
            if not wanted and name not in known:
                wanted = [rest]
            for schema in wanted:
                why = self.find_gap(self._member_schemas(smaller, name), schema, f"{where}/properties/{name}")
                if why:
                    return why
        for key, schema in patterns.items():
            same = [
                subschemas(each, "patternProperties")[key]
                for each in smaller
                if key in subschemas(each, "patternProperties")
            ]
            why = self.find_gap(same, schema, f"{where}/patternProperties/{key}") if same else ""
            if why or (not same and self._others_gap(smaller, schema, (), where)):
                return why or f"{where}/patternProperties/{key}: other members may have such names"
        return self._others_gap(smaller, rest, patterns, where)

    def _others_gap(self, smaller: list[Schema], larger: Any, named: Mapping[str, Any] | tuple[()], where: str) -> str:
        """Prove that unnamed members satisfy *larger*: one conjunct must ensure it for all of them."""
        place = f"{where}/additionalProperties"
        why = self.find_gap([True], larger, place)
        for each in smaller if why else ():
            kept = [value for key, value in subschemas(each, "patternProperties").items() if key not in named]
            faults = [self.find_gap([one], larger, place) for one in (*kept, each.get("additionalProperties", True))]
            why = next(filter(None, faults), "")
            if not why:
                break
        return why

    def _items_gap(self, smaller: list[Schema], larger: Schema, where: str) -> str:
        first, rest = items_of(larger)
        shapes = [items_of(each) for each in smaller]
        most = strictest_bound(smaller, "maxItems", lowest=True)
        count = max([len(first), *(len(prefix) for prefix, _ in shapes)])
        for index in range(count + 1):
            if most is not None and index >= most:
                return ""
            self._values.spend(len(shapes))
            ours = [prefix[index] if index < len(prefix) else others for prefix, others in shapes]
            why = self.find_gap(ours or [True], first[index] if index < len(first) else rest, f"{where}/items")
            if why:
                return why
        return ""


def _iter_cases(smaller: list[Schema], types: frozenset[str]) -> Iterator[list[list[Any]]]:
    """Yield case distinctions of the values: by branches of one choice, of several, or by type."""
    choices = [
        (index, name)
        for index, each in enumerate(smaller)
        for name in ("anyOf", "oneOf")
        if isinstance(each.get(name), list)
    ]
    for index, name in choices:
        kept = {key: value for key, value in smaller[index].items() if key != name}
        others = [each for place, each in enumerate(smaller) if place != index]
        if len(smaller[index][name]) <= _MAX_BRANCHES:
            yield [[*others, kept, branch] for branch in smaller[index][name]]
    if not choices and 1 < len(types) < len(ALL_TYPES) and types != NUMBERS:
        groups = [NUMBERS & types, *({kind} for kind in sorted(types - NUMBERS))]
        spelled = [["number"] if "fraction" in each else sorted(each) for each in groups if each]
        yield [[*smaller, {"type": names}] for names in spelled]


# Search for a counterexample: a value that one JSON schema accepts and another refuses, near sample values.
#
# Only a value that was found proves anything; the catalog's validators check each.

_TRIALS: Final = 20_000
_MAX_SEEDS: Final = 12
_MAX_CONSTANTS: Final = 60
_MAX_NAMES: Final = 100
_MAX_WITNESS_LEVELS: Final = 12
_MAX_SHOWN: Final = 200
_SAMPLE_TIME: Final = "2026-01-01T00:00:00Z"
_SAMPLES: Final[tuple[Any, ...]] = (None, True, 0, 1, -1, 0.5, "", "x", "x" * 300, [], [0, 0], {}, 10**9, -(10**9))
_UNKNOWN_MEMBER: Final = "anything_else"
_LIMIT_KEYWORDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_NAMING_KEYWORDS: Final = ("properties", "required", "dependentRequired", "dependentSchemas", "dependencies")
_LENGTH_KEYWORDS: Final = ("minLength", "maxLength")


def find_witness(smaller: SchemaSource, larger: SchemaSource) -> str:
    """Return a value (shortened JSON) that *smaller* accepts and *larger* refuses, '' if none was found.

    The result is deterministic.

    Raises:
        Undecided: one of the schemas cannot be used.
    """
    try:
        takes, refuses = (compile_schema(each, EmptyLibrary()) for each in (smaller, larger))
    except SchemaError as error:
        raise Undecided(str(error)) from error
    names, constants = _collect_words((smaller.document, larger.document))
    tried = islice(
        (each for base in _iter_bases(smaller) for each in _iter_variants(base, names, constants, 0)), _TRIALS
    )
    for value in tried:
        body = msgspec.json.encode(value)
        if _is_valid(takes, body) is True and _is_valid(refuses, body) is False:
            text = body.decode("utf-8")
            return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return ""


def _is_valid(validator: Validator, body: bytes) -> bool | None:
    try:
        return validator.fault(body, None) is None
    except CostExceeded:
        return None


def _iter_bases(schema: SchemaSource) -> Iterator[Any]:
    """Yield values of a schema: minimal, maximal, and between."""
    filler = family_of(schema.family).open_sampler(schema, EmptyLibrary())
    for seed in range(_MAX_SEEDS):
        try:
            chosen = Chooser(random.Random(seed), _SAMPLE_TIME, (0.0, 1.0, 0.5)[seed % 3])
            yield msgspec.json.decode(filler.payload(chosen, "application/json"))
        except (UnsupportedSchema, RecursionError):
            continue


def _iter_variants(value: Any, names: Sequence[str], constants: Sequence[Any], level: int) -> Iterator[Any]:
    """Yield a value, and others that differ from it in one location."""
    yield value
    if level > _MAX_WITNESS_LEVELS:
        return
    yield from constants
    if isinstance(value, Mapping):
        for name in value:
            yield {key: each for key, each in value.items() if key != name}
        for name in names:
            if name not in value:
                yield from ({**value, name: each} for each in constants)
        for name, each in value.items():
            yield from ({**value, name: other} for other in _iter_variants(each, names, constants, level + 1))
    elif isinstance(value, list):
        yield from ([*value, each] for each in constants)
        for index, each in enumerate(value[:4]):
            yield [*value[:index], *value[index + 1 :]]
            yield from (
                [*value[:index], other, *value[index + 1 :]]
                for other in _iter_variants(each, names, constants, level + 1)
            )


def _collect_words(documents: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Return the member names in schemas, and boundary values."""
    names: dict[str, None] = {_UNKNOWN_MEMBER: None}
    constants: dict[str, Any] = {repr(each): each for each in _SAMPLES}
    waiting = list(documents)
    while waiting and (len(names) < _MAX_NAMES or len(constants) < _MAX_CONSTANTS):
        each = waiting.pop()
        if isinstance(each, list):
            waiting.extend(each)
        if not isinstance(each, Mapping):
            continue
        waiting.extend(each.values())
        for keyword in _NAMING_KEYWORDS:
            members = each.get(keyword)
            if isinstance(members, Mapping | list):
                names.update({name: None for name in islice(members, _MAX_NAMES) if isinstance(name, str)})
        constants.update({repr(value): value for value in islice(_iter_edge_values(each), _MAX_CONSTANTS)})
    return list(names)[:_MAX_NAMES], list(constants.values())[:_MAX_CONSTANTS]


def _iter_edge_values(schema: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(schema.get("enum"), list):
        yield from schema["enum"]
    if "const" in schema:
        yield schema["const"]
    for name in _LIMIT_KEYWORDS:
        limit = schema.get(name)
        if isinstance(limit, int | float) and not isinstance(limit, bool):
            yield from (limit, limit + 1, limit - 1)
    for name in _LENGTH_KEYWORDS:
        length = schema.get(name)
        if isinstance(length, int) and length < 1000:
            yield from ("x" * length, "x" * (length + 1))
            yield "x" * max(0, length - 1)


def find_json_gap(reader: SchemaSource, writer: SchemaSource, budget: Budget) -> str:
    """Return why data written with *writer* may not be valid for *reader*, '' if it is proven to be valid.

    Raises:
        Undecided: neither a proof nor a counterexample was found.
    """
    smaller, larger = RootSchema(writer.document, writer.version), RootSchema(reader.document, reader.version)
    try:
        gap = SubsetProof(smaller, larger, budget).find_gap([writer.document], reader.document, "")
    except Undecided as error:
        gap = str(error)
    if not gap:
        return ""
    value = find_witness(writer, reader)
    if not value:
        raise Undecided(gap)
    return f"{gap}, for example {value}"
