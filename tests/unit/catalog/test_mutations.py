"""Mutations of valid AsyncAPI documents, schemas and bodies: each reader accepts or refuses them; none raises or hangs.

Of other documents ``documents/test_malformed.py`` asks the same.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, NamedTuple

import pytest

from catalog.asyncapi import write_asyncapi
from catalog.documents.documents import Document
from catalog.findings import Declarations, DocumentError, Findings
from catalog.load import build_catalog
from catalog.schemas.contract import CostExceeded, SchemaError, SchemaSource, Validator
from catalog.schemas.families import FAMILIES, compile_schema, family_of
from catalog.schemas.sandbox import LimitExceeded, sandbox
from tests.support.cases import examples, read_cases
from tests.support.schemas import Documents
from tests.unit.catalog.documents.test_malformed import DATA, ODD, places_of
from tests.unit.catalog.schemas.test_verdicts import body_of

MUTATIONS: Final = int(os.environ.get("MUTATIONS", "20000"))
BATCHED: Final = {"schemas of Protobuf", "schemas of XSD"}
"""Compiled in the sandbox, a batch at a time: one by one they would need a process each."""
BATCH: Final = 500
SECONDS: Final = 60.0
"""Far more than any takes on an idle core."""
PIECES: Final = b'{ } [ ] < > " : , ; = & * $ # / \\ \n \t \x00 \xff \xef\xbb\xbf - 0 9 1e9 NaN null true'.split(b" ")


class Held(NamedTuple):
    """A valid schema of the cases, its documents, and bodies for it."""

    source: SchemaSource
    library: Documents
    validator: Validator
    bodies: Sequence[tuple[bytes, str | None]]


@cache
def schemas(family: str) -> list[Held]:
    held = []
    for case in read_cases(DATA / f"schemas/{family}.yaml"):
        if "error" not in case:
            kind, pointer = case.get("type", ""), case.get("pointer", "")
            source = SchemaSource(family, case.get("version", ""), case["schema"], kind, pointer, "main.xsd")
            library = Documents(case.get("documents", {}))
            written = [*case.get("valid", ()), *(each for each, _ in case.get("invalid", ()))]
            bodies = [(body, kind) for body, kind in (body_of(family, each) for each in written) if body]
            held.append(Held(source, library, compile_schema(source, library), bodies or [(b"{}", None)]))
    return held


def mutate_bytes(chance: random.Random, data: bytes) -> bytes:
    """Return *data* with some parts dropped, doubled, exchanged or strewn with pieces."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((0, 1, 1, 4, 30)))
        other = chance.randrange(len(data) + 1)
        new = (b"", data[start:end] * 2, chance.choice(PIECES), chance.randbytes(2), data[other : other + 20])
        data = data[:start] + chance.choice(new) + data[end:]
    return data


def mutate_tree(chance: random.Random, tree: Any) -> Any:
    """Return *tree* with odd values, or values of other places, at some places; a text is mutated as one."""
    if isinstance(tree, str):
        return mutate_bytes(chance, tree.encode()).decode("utf-8", "replace")
    tree = deepcopy(tree)
    for _ in range(chance.choice((1, 1, 2, 5))):
        places = list(places_of(tree))
        if not places:
            break
        (holder, key), (_, name), value = (*chance.choices(places, k=2), chance.choice(ODD))
        if chance.random() < 0.5:
            there, place = chance.choice(places)
            value = there[place]
        if isinstance(holder, dict) and chance.random() < 0.3:
            holder[str(name)] = holder.pop(key)
        else:
            holder[key] = deepcopy(value)
    return tree


@cache
def asyncapi_trees() -> list[Any]:
    files = sorted((DATA / "asyncapi").glob("*.yaml"))
    return [case["document"] for path in files for case in read_cases(path).values()]


def read_asyncapi(chance: random.Random) -> None:
    tree, declarations = mutate_tree(chance, chance.choice(asyncapi_trees())), Declarations()
    with suppress(DocumentError):
        catalog = build_catalog([Document("a.json", tree)], Findings(), declarations)
        write_asyncapi(catalog, declarations)


def read_schema(family: str) -> Callable[[random.Random], None]:
    def read(chance: random.Random) -> None:
        held = chance.choice(schemas(family))
        source = replace(held.source, document=mutate_tree(chance, held.source.document))
        with suppress(SchemaError, CostExceeded):
            list(family_of(source.family).references_of(source))
            family_of(family).find_ignored_parts(source)
            compile_schema(source, held.library).fault(*held.bodies[0])

    return read


def read_body(family: str) -> Callable[[random.Random], None]:
    def read(chance: random.Random) -> None:
        held = chance.choice(schemas(family))
        body, kind = chance.choice(held.bodies)
        with suppress(CostExceeded):
            held.validator.fault(mutate_bytes(chance, body), kind)

    return read


READERS: Final[dict[str, Callable[[random.Random], None]]] = {
    "AsyncAPI": read_asyncapi,
    **{f"schemas of {each.name}": read_schema(each.name) for each in FAMILIES},
    **{f"bodies of {each.name}": read_body(each.name) for each in FAMILIES},
}


def read_mutations(reader: str, numbers: Sequence[int]) -> float:
    """Return the seconds that the slowest of these mutations takes."""
    slowest = 0.0
    for number in numbers:
        begun = time.monotonic()
        try:
            READERS[reader](random.Random(f"{reader} {number}"))
        except BaseException as error:
            error.add_note(f"mutation {number} of {reader}")
            raise
        slowest = max(slowest, time.monotonic() - begun)
    return slowest


def read_batch(reader: str, numbers: Sequence[int]) -> float:
    """Read mutations in one process of the sandbox; one by one if it dies, exceeds its limits or raises."""
    prepare = partial(schemas, reader.removeprefix("schemas of "))
    try:
        slowest, _ = sandbox.call(
            read_mutations, reader, numbers, seconds=SECONDS, memory=1 << 30, key=reader.encode(), prepare=prepare
        )
        return float(slowest)
    except LimitExceeded:
        return read_mutations(reader, numbers)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", READERS)
def test_no_mutation_raises_or_hangs(reader: str) -> None:
    numbers = range(examples(MUTATIONS))
    if reader not in BATCHED:
        assert read_mutations(reader, numbers) < SECONDS
        return
    for start in range(0, len(numbers), BATCH):
        assert read_batch(reader, numbers[start : start + BATCH]) < SECONDS
