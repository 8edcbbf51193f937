"""Catalog documents that want the reader's stack, memory or time; :data:`CASES` is the table of them.

Each is made when asked for. ``size`` scales it: small ones show what is said about a document of the kind, large ones
(:data:`LARGE`) that it stays in its bounds. ``outcome`` is what the error says, or the rule that must be among the
findings, or empty when there is nothing to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

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

LARGE: Final = {
    "deep-json": 100_000,
    "deep-flow.yaml": 100_000,
    "deep-block.yaml": 5_000,
    "deep-dashes.yaml": 100_000,
    "many-lists": 20_000_000,
    "many-maps": 9_000_000,
    "laughing-text.yaml": 1_000_000,
    "many-messages": 900_000,
    "many-faults": 900_000,
    "many-versions": 900_000,
    "repeated-keys": 900_000,
    "long-id": 1_000_000,
    "digits": 1_000_000,
    "long-value": 60_000_000,
    "long-names": 10_000_000,
    "long-references": 1_000_000,
    "chain-of-bases": 49_000,
    "chain-to-nowhere": 49_000,
    "heirs": 10_000,
    "heirs-of-headers": 10_000,
    "channels": 10_000,
    "under-a-long-id": 1_000_000,
    "into-a-cycle": 49_000,
}
"""Sizes at which what is not bounded would take gigabytes or hours."""
