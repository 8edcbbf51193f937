"""Catalog documents that want the reader's stack, memory or time; :data:`CASES` is the table of them.

Each is made when asked for. ``size`` scales it: small ones show what is said about a document of the kind, large ones
(:data:`LARGE`) that it stays in its bounds. ``outcome`` is what the error says, or the rule that must be among the
findings, or empty when there is nothing to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalog.schemas.contract import BEYOND_LIMITS, SchemaSource
from tests.support.cases import read_cases

Make = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of hostile document; ``refused`` tells a ``DocumentError`` from findings."""

    name: str
    make: Make
    small: int
    outcome: str = ""
    refused: bool = False

    @property
    def file(self) -> str:
        """The file name, whose ending decides how it is read."""
        return self.name if "." in self.name else f"{self.name}.json"


def messages(body: Any, *, group: str = "g", **more: Any) -> bytes:
    """Return a catalog with one group of messages."""
    return json.dumps({"messagegroups": {group: {"messages": body}}, **more}).encode()


def _chain(size: int, last: int) -> bytes:
    def base(number: int) -> str:
        return f"/messagegroups/g/messages/m{number + 1 if number + 1 < size else last}"

    return messages({f"m{number}": {"basemessage": base(number)} for number in range(size)})


def _laughs(size: int) -> bytes:
    lines = [b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, size)]
    return b"a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + b"".join(lines)


def _one_value(text: str) -> Make:
    document = '{"messagegroups":{"g":{"messages":{"m":{"envelopemetadata":{"a":{"value":%s}}}}}}}'
    return lambda size: (document % (text * size)).encode()


def _attribute(value: Any) -> Any:
    return {"m": {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": value}}}}


def _headers(size: int) -> bytes:
    headers = [{"name": f"h{number}", "type": "nonsense"} for number in range(size)]
    return messages({"m": {"protocol": "KAFKA", "protocoloptions": {"headers": headers}}})


def _bomb_of_ids(size: int) -> bytes:
    return messages({str(number): {} for number in range(100)}, group="g" * size)


def _long_references(size: int) -> bytes:
    texts = (
        "../" * size + "?",
        "/messagegroups/" * size,
        "#/messagegroups/a/messages/" * size,
        "%" * size,
        "x:" * size,
    )
    return messages({f"m{number}": {"basemessage": text} for number, text in enumerate(texts)})


def _braces(size: int) -> bytes:
    values = {"type": "{" * size, "source": "{a}" * size, "subject": "{a" * size, "id": "}{" * size}
    return messages({"m": {"envelopemetadata": {name: {"value": value} for name, value in values.items()}}})


def _versions(size: int) -> bytes:
    return messages({"m": {"versions": {str(number): {} for number in range(size)}}})


def _heirs(attributes: bool, size: int) -> bytes:
    """Return *size* messages that inherit *size* properties each from one."""
    names = [f"a{number}" for number in range(size)]
    base = (
        {"envelopemetadata": {name: {"value": "x"} for name in names}}
        if attributes
        else {"protocol": "KAFKA", "protocoloptions": {"headers": [{"name": name, "value": "x"} for name in names]}}
    )
    heirs = {f"m{number}": {"basemessage": "/messagegroups/g/messages/b"} for number in range(size)}
    return messages({"b": base, **heirs})


def _channels(size: int) -> bytes:
    """Return *size* endpoints that each list one group of *size* messages."""
    endpoints = {f"e{number}": {"messagegroups": ["/messagegroups/g"]} for number in range(size)}
    return messages({f"m{number}": {} for number in range(size)}, endpoints=endpoints)


def _under_a_long_id(size: int) -> bytes:
    return messages({f"m{number}": {} for number in range(5_000)}, group="g" * size)


CASES: Final = (
    # too deep
    Case("deep-json", lambda n: b'{"a":' * n + b"1" + b"}" * n, 129, "nests deeper", refused=True),
    Case("deep-flow.yaml", lambda n: b"[" * n + b"]" * n, 129, "nests deeper", refused=True),
    Case(
        "deep-block.yaml", lambda n: b"".join(b" " * m + b"a:\n" for m in range(n)), 140, "nests deeper", refused=True
    ),
    Case("deep-dashes.yaml", lambda n: b"- " * n + b"1", 140, "nests deeper", refused=True),
    Case("deep-keys.yaml", lambda n: b"? " * n + b"1", 140, "a key is no text", refused=True),
    Case(
        "deep-alias.yaml", lambda n: b"a: &x [[]]\nb: " + b"[" * n + b"*x" + b"]" * n, 126, "nests deeper", refused=True
    ),
    # too many
    Case("many-lists", lambda n: b'{"a":[' + b"[]," * n + b"[]]}", 2_000_000, "stands for more", refused=True),
    Case("many-maps", lambda n: b'{"a":[' + b'{"":1},' * n + b"{}]}", 2_000_000, "stands for more", refused=True),
    Case("laughs.yaml", _laughs, 12, "stands for more", refused=True),
    Case(
        "laughing-text.yaml",
        lambda n: b"a: &x " + b"x" * n + b"\nb: [" + b"*x," * n + b"]",
        20_000,
        "stands for more",
        refused=True,
    ),
    Case(
        "merges.yaml",
        lambda n: b"a: &x {" + b",".join(b"k%d: 0" % m for m in range(n)) + b"}\nb: [" + b"{<<: *x}," * n + b"]",
        2_000,
        "stands for more",
        refused=True,
    ),
    Case("many-messages", lambda n: messages({str(number): {} for number in range(n)}), 50_001, "too-many"),
    Case("many-versions", _versions, 50_001, "too-many"),
    Case("many-faults", lambda n: messages({str(number): 1 for number in range(n)}), 50_001, "too-many-findings"),
    Case(
        "repeated-keys", lambda n: b'{"messagegroups":{' + b",".join([b'"g":{}'] * n) + b"}}", 10_001, "duplicate-key"
    ),
    Case("long-id", _bomb_of_ids, 1_000, "long-id"),
    # what UTF-8 or a double cannot hold
    Case("half-a-pair", lambda n: messages(_attribute("\ud800" * n)), 1, "half a surrogate pair", refused=True),
    Case("half-a-key", lambda n: messages({"m\udc00" * n: {}}), 1, "half a surrogate pair", refused=True),
    Case("half-encoded", lambda n: b'{"a":"\xed\xa0\x80"}' * n, 1, "is not UTF-8", refused=True),
    Case("half-a-pair.yaml", lambda n: rb'a: "\ud800"' * n, 1, "neither JSON nor YAML", refused=True),
    Case("digits", _one_value("9"), 301, "is too large", refused=True),
    Case("digits.yaml", lambda n: b"a: " + b"9" * n, 301, "is too large", refused=True),
    Case("exponent", _one_value("1e400"), 1, "is too large", refused=True),
    Case("exponent.yaml", lambda n: b"a: 1e400" * n, 1, "is too large", refused=True),
    Case("no-number", _one_value("NaN"), 1, "is no JSON number", refused=True),
    Case("raw-nul", lambda n: b'{"messagegroups":{"g\x00":{}}}' * n, 1, "is not JSON", refused=True),
    Case("raw-nul.yaml", lambda n: b'a: "\x00"' * n, 1, "neither JSON nor YAML", refused=True),
    Case("half-utf-16", lambda n: b"\xff\xfe{\x00}" * n, 1, "is not UTF-16", refused=True),
    Case("half-a-text", lambda n: b'{"a":1' * n, 1, "is not JSON", refused=True),
    Case("many-digits", lambda n: b'{"a":' + b"9" * n + b"}", 5_000, "not JSON", refused=True),
    Case("nothing", lambda n: b"" * n, 1, "empty", refused=True),
    Case("list", lambda n: b"[1]" * n, 1, "not contain a JSON or YAML object", refused=True),
    # what YAML has and JSON has not
    Case("tag.yaml", lambda n: b"a: !!python/object/apply:os.getcwd []" * n, 1, "has the tag", refused=True),
    Case("tagged-key.yaml", lambda n: b"!x a: 1" * n, 1, "has the tag", refused=True),
    Case("several.yaml", lambda n: b"a: 1\n---\nb: 1\n" * n, 1, "several YAML documents", refused=True),
    Case("around-itself.yaml", lambda n: b"a: &x {<<: *x, b: 1}" * n, 1, "stands for nothing", refused=True),
    Case("list-key.yaml", lambda n: b"[a]: 1" * n, 1, "a key is no text", refused=True),
    # long
    Case("long-value", lambda n: messages(_attribute("x" * n)), 1_000_000),
    Case(
        "long-names", lambda n: messages({"m": {"protocol": "p" * n, "envelope": "e" * n}}), 100_000, "unknown-envelope"
    ),
    Case("long-references", _long_references, 10_000, "dangling-base"),
    Case("many-braces", _braces, 2_000),
    Case("many-headers", _headers, 1_000, "unknown-type"),
    Case("chain-of-bases", lambda n: _chain(n, 0), 5_000, "base-cycle"),
    Case("chain-to-nowhere", lambda n: _chain(n, n), 5_000, "base-too-deep"),
    Case("heirs", lambda n: _heirs(True, n), 1_001, "too-many"),
    Case("heirs-of-headers", lambda n: _heirs(False, n), 1_001, "too-many"),
    Case("channels", _channels, 1_001, "too-many"),
    Case("under-a-long-id", _under_a_long_id, 1_000, "long-id"),
    Case(
        "into-a-cycle",
        lambda n: messages({f"m{m}": {"basemessage": f"m{m // 2}"} for m in range(n)}),
        1_000,
        "base-cycle",
    ),
)

LARGE: Final[dict[str, int]] = read_cases(Path(__file__).parents[1] / "cases" / "hostile" / "sizes.yaml")
"""Sizes at which what is not bounded would take gigabytes or hours."""


# Bodies of a megabyte or of a few bytes that once took a validator minutes or gigabytes, by name.

JSON = "application/json"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_XS = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{}</xs:schema>'
_ROWS = (
    '<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="i" maxOccurs="unbounded">{}</xs:element>'
    "</xs:sequence></xs:complexType>{}</xs:element>"
)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A schema, a body made for it, and what its verdict may be: ``None`` for a body that conforms."""

    source: SchemaSource
    body: Callable[[], bytes]
    content_type: str
    verdicts: tuple[str, ...]


def nested(levels: int, leaf: bytes = b"1") -> bytes:
    """An object within an object, each as the member ``x``."""
    return b'{"x":' * levels + leaf + b"}" * levels


def twofold(keyword: str, reference: str = "$ref") -> dict[str, Any]:
    """A schema by which every level of :func:`nested` can be read in two ways."""
    inner = {reference: "#n"}
    ways = [{"type": "object", "properties": {"x": inner}, "required": ["x"]} for _ in range(2)]
    mark = "$dynamicAnchor" if reference == "$dynamicRef" else "$anchor"
    return {"$schema": _DRAFT, "$id": "http://plant.invalid/n", mark: "n", keyword: [*ways, {"type": "string"}]}


def _many(item: str, size: int = 1_000_000) -> Callable[[], bytes]:
    """A JSON array of about *size* bytes."""
    return lambda: ("[" + ",".join([item] * (size // (len(item) + 1))) + "]").encode()


def _json(schema: Any, body: bytes | Callable[[], bytes], *verdicts: str) -> Hostile:
    return _hostile(SchemaSource("JsonSchema", "", schema), body, JSON, verdicts)


def _structure(schema: dict[str, Any], body: bytes | Callable[[], bytes], *verdicts: str) -> Hostile:
    uses = ["JSONStructureValidation", "JSONStructureConditionalComposition"]
    root = {"$schema": "https://json-structure.org/meta/extended/v0/#", "$id": "http://plant.invalid/s", "name": "S"}
    return _hostile(SchemaSource("JsonStructure", "", {**root, "$uses": uses, **schema}), body, JSON, verdicts)


def _xsd(inner: str, body: bytes | Callable[[], bytes], *verdicts: str) -> Hostile:
    return _hostile(SchemaSource("XSD", "1.0", _XS.format(inner)), body, "application/xml", verdicts)


def _avro(schema: Any, body: bytes | Callable[[], bytes], *verdicts: str, kind: str = "avro/binary") -> Hostile:
    return _hostile(SchemaSource("Avro", "", schema), body, kind, verdicts)


def _protobuf(text: str, body: bytes | Callable[[], bytes], *verdicts: str, kind: str = "") -> Hostile:
    return _hostile(SchemaSource("Protobuf", "3", text), body, kind or "application/protobuf", verdicts)


def _hostile(
    source: SchemaSource, body: bytes | Callable[[], bytes], content_type: str, verdicts: tuple[str, ...]
) -> Hostile:
    return Hostile(source, (lambda: body) if isinstance(body, bytes) else body, content_type, verdicts)


def _pattern(value: str) -> str:
    facet = f'<xs:restriction base="xs:string"><xs:pattern value="{value}"/></xs:restriction>'
    return f"<xs:simpleType>{facet}</xs:simpleType>"


def zigzag(value: int) -> bytes:
    """A number as Avro writes it."""
    value <<= 1
    written = b""
    while value > 127:
        written, value = written + bytes([value & 127 | 128]), value >> 7
    return written + bytes([value])


def _fanned(keyword: str, levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    return {"$defs": {**definitions, f"a{levels}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


def _records_of_nothing() -> dict[str, Any]:
    """An Avro record of 2^59 records without bytes."""
    empty: dict[str, Any] = {"type": "record", "name": "E0", "fields": []}
    for number in range(1, 60):
        doubled = [{"name": "a", "type": empty}, {"name": "b", "type": empty["name"]}]
        empty = {"type": "record", "name": f"E{number}", "fields": doubled}
    return empty


def _deep_messages() -> bytes:
    body = b""
    for _ in range(5000):
        size, length = len(body), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        body = b"\x0a" + length + bytes([size]) + body
    return body


_COLOURS = [f"colour {n}" for n in range(250)]
_A = "#/definitions/A"
_B = "#/definitions/B"
_UNION = {"type": "object", "properties": {"x": {"type": ["string", {"$ref": _A}, {"$ref": _B}]}}}
_KEY = '<xs:key name="K"><xs:selector xpath="i"/><xs:field xpath="@k"/></xs:key>'
_ATTRIBUTE = '<xs:complexType><xs:attribute name="k" type="xs:string"/></xs:complexType>'
_OPTIONS = "".join(f'<xs:enumeration value="v{n}"/>' for n in range(2000))
_MESSAGE = 'syntax = "proto3"; message M { M m = 1; repeated int32 p = 2; map<string, M> k = 3; repeated M r = 4; }'
_WIDE = f'syntax = "proto3"; message M {{ repeated M r = 1; {" ".join(f"string s{n} = {n};" for n in range(2, 900))} }}'

HOSTILE: dict[str, Hostile] = {
    "enum of 250": _json({"items": {"enum": _COLOURS}}, _many('"x"'), "/0: ", BEYOND_LIMITS),
    "required of 100": _json({"items": {"required": [f"m{n}" for n in range(100)]}}, _many("{}"), "/0: "),
    **{
        f"{keyword} by {reference}": _json(twofold(keyword, reference), nested(25), BEYOND_LIMITS)
        for keyword in ("anyOf", "oneOf")
        for reference in ("$ref", "$dynamicRef")
    },
    "allOf fanned out": _json(_fanned("allOf", 40), b"1", BEYOND_LIMITS),
    "anyOf fanned out": _json(_fanned("anyOf", 40), b'"a"', BEYOND_LIMITS),
    "one number": _json({"multipleOf": 0.01}, b"7" * 1_000_000, "None"),
    "long numbers": _json({"items": {"multipleOf": 0.01}}, _many("7" * 4000), "None"),
    "large numbers": _json({"items": {"multipleOf": 1e-300}}, _many("1e308"), BEYOND_LIMITS),
    "pattern": _json({"pattern": "^(a+)+$"}, b'"' + b"a" * 1_000_000 + b'!"', "aaa"),
    "pattern with look-around": _json(
        {"pattern": "^(?=(a+)+$)(a|aa)+b\\1"}, b'"' + b"a" * 1_000_000 + b'!"', "regex", "match"
    ),
    "patterns that count": _json(
        {"items": {"not": {"pattern": "([a-z]{1,100}x?){1,100}y"}}}, _many('"' + "a" * 1000 + '"'), BEYOND_LIMITS
    ),
    "uniqueItems": _json(
        {"uniqueItems": True}, lambda: json.dumps([{"a": n} for n in range(100_000)]).encode(), "None"
    ),
    "contains": _json({"contains": {"type": "string"}}, _many("1"), "None of", BEYOND_LIMITS),
    "enum of objects": _json(
        {"items": {"enum": [{"a": n, "b": [n] * 20} for n in range(1000)]}},
        _many('{"a":1,"b":[1]}'),
        "/0: ",
        BEYOND_LIMITS,
    ),
    "dependentSchemas": _json(
        {"dependentSchemas": {str(n): {"properties": {str(m): False for m in range(100)}} for n in range(100)}},
        lambda: json.dumps({str(n): n for n in range(100)}).encode(),
        "/",
        BEYOND_LIMITS,
    ),
    "patternProperties": _json(
        {"patternProperties": {f"a{n}.*b$": {"type": "string"} for n in range(100)}},
        lambda: json.dumps({f"k{n}": n for n in range(60_000)}).encode(),
        "None",
        BEYOND_LIMITS,
    ),
    "unevaluatedProperties": _json(
        {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "unevaluatedProperties": False},
        lambda: json.dumps({f"k{n}": n for n in range(60_000)}).encode(),
        "Unevaluated",
        BEYOND_LIMITS,
    ),
    "format hostname": _json({"format": "hostname"}, json.dumps("a@" + "a." * 499_999 + "@").encode(), "None"),
    "structure enum": _structure(
        {"type": "array", "items": {"type": "string", "enum": _COLOURS}}, _many('"x"'), "/0: ", BEYOND_LIMITS
    ),
    "structure unions": _structure(
        {"definitions": {"A": {"name": "A", **_UNION}, "B": {"name": "B", **_UNION}}, **_UNION},
        nested(25),
        BEYOND_LIMITS,
    ),
    "structure email": _structure(
        {"type": "string", "format": "email"}, json.dumps("a@" + "." * 500_000 + "@").encode(), "a@"
    ),
    "structure pattern": _structure({"type": "string", "pattern": "^(a+)+$"}, b'"' + b"a" * 1_000_000 + b'!"', "aaa"),
    "XSD key": _xsd(
        _ROWS.format(_ATTRIBUTE, _KEY),
        lambda: b"<r>" + b"".join(b'<i k="%d"/>' % n for n in range(60_000)) + b"</r>",
        "None",
        BEYOND_LIMITS,
    ),
    "XSD enumeration": _xsd(
        _ROWS.format(
            f'<xs:simpleType><xs:restriction base="xs:string">{_OPTIONS}</xs:restriction></xs:simpleType>', ""
        ),
        lambda: b"<r>" + b"<i>v1999</i>" * 90_000 + b"</r>",
        BEYOND_LIMITS,
    ),
    "XSD pattern": _xsd(
        f'<xs:element name="r">{_pattern("(a|aa)+b")}</xs:element>',
        b"<r>" + b"a" * 30_000 + b"!</r>",
        "gave up",
        BEYOND_LIMITS,
    ),
    "XSD patterns": _xsd(
        _ROWS.format(_pattern("(a|aa)+b?"), ""),
        lambda: b"<r>" + (b"<i>" + b"a" * 40 + b"</i>") * 20_000 + b"</r>",
        "None",
        BEYOND_LIMITS,
    ),
    "XSD elements": _xsd(_ROWS.format("", ""), lambda: b"<r>" + b"<i/>" * 250_000 + b"</r>", "None", BEYOND_LIMITS),
    "Avro nulls": _avro({"type": "array", "items": "null"}, zigzag(2**62) + b"\0", "None"),
    "Avro fields of nothing": _avro(
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "E",
                "fields": [*({"name": f"f{n}", "type": "null"} for n in range(1000)), {"name": "z", "type": "int"}],
            },
        },
        lambda: zigzag(1_000_000) + b"\x02" * 1_000_000 + b"\0",
        "more values than bytes",
        BEYOND_LIMITS,
    ),
    "Avro records": _avro(
        {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}, b"\x02" * 1_000_000, "levels"
    ),
    "Avro records of nothing": _avro(_records_of_nothing(), b"", "more values than bytes", "a.a.a"),
    "Avro levels of JSON": _avro(
        {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]},
        b'{"n":' * 300 + b"null" + b"}" * 300,
        "levels",
        "any of null",
        kind=JSON,
    ),
    "Avro decimal": _avro(
        {"type": "bytes", "logicalType": "decimal", "precision": 99},
        lambda: zigzag(1_000_000) + b"a" * 1_000_000,
        "more than 99 digits",
    ),
    "Avro branches": _avro(
        {
            "type": "array",
            "items": [
                *({"type": "enum", "name": f"E{n}", "symbols": [f"s{n}_{m}" for m in range(50)]} for n in range(250)),
                "string",
            ],
        },
        _many('"x"'),
        BEYOND_LIMITS,
        kind=JSON,
    ),
    "Protobuf levels": _protobuf(_MESSAGE, _deep_messages, "not a M"),
    "Protobuf groups": _protobuf(_MESSAGE, b"\x0b" * 1_000_000, "not a M"),
    "Protobuf packed": _protobuf(_MESSAGE, b"\x12\xc0\x84\x3d" + b"\x01" * 1_000_000, "None"),
    "Protobuf messages": _protobuf(_MESSAGE, b"\x22\0" * 500_000, "None"),
    "Protobuf wide messages": _protobuf(_WIDE, b"\x0a\0" * 500_000, BEYOND_LIMITS),
    "Protobuf map": _protobuf(_MESSAGE, lambda: b"".join(b"\x1a\x07\x0a\x05%05d" % n for n in range(99_999)), "None"),
    "Protobuf JSON": _protobuf(
        _MESSAGE, b'{"m":' * 900 + b"{}" + b"}" * 900, "nests deeper than can be read", kind=JSON
    ),
}

REPRESENTATIVE = frozenset(
    {"oneOf by $dynamicRef", "pattern", "dependentSchemas", "enum of objects", "one number", "format hostname"}
    | {"structure email", "structure pattern", "XSD pattern", "Avro nulls", "Avro records"}
    | {"Protobuf levels", "Protobuf groups", "Protobuf map", "Protobuf JSON"}
)
"""The bodies that every run of the tests takes: each family, each way to a verdict, and those that take little time."""
