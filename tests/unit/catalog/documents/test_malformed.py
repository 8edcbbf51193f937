"""Whatever a document holds, reading it gives findings or one clear error, in bounded time and memory."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.documents.documents import Document
from catalog.findings import MAX_FINDINGS, MAX_TEXT, DocumentError, Findings
from catalog.load import build_catalog, catalog_to_json, finding_to_json, listing_to_json, load
from catalog.model import Catalog
from catalog.parsing.texts import parse_text
from router.cli import run_command_line
from router.errors import CatalogUnavailable
from tests.support.cases import read_cases, samples
from tests.support.corpora import documents
from tests.support.hostile import CASES, LARGE, Case, messages

ROOT: Final = Path(__file__).parents[4]
DATA: Final = ROOT / "tests" / "cases"
FILES: Final = [path for path in samples() if path.is_file()]
CUTS: Final = 40
PLACES: Final = 8
"""Places of one document at which the quick run puts odd values; the full one takes all."""
ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1e308,
    10**299,
    "",
    "x" * 100_000,
    [],
    {},
    [[[]]],
    {"value": {}},
    {"": None},
    "\x00",
    "http://[",
)
SLOW: Final = frozenset({"heirs-of-headers", "many-messages"})
"""Cases that take seconds at any size that is too much; others are too many in the same way."""
MEMORY: Final = 1024**3
SECONDS: Final = 120
"""Far more than any case takes on an idle core; a quadratic one would take hours."""
_LOAD: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
from router.cli import main
main(["check", sys.argv[1], "--format", "json"])
"""


def read(tree: Any) -> Catalog:
    """Make a catalog of a tree, and all that is written down of it."""
    catalog = build_catalog([Document("a.json", tree)], Findings())
    for definition in catalog.definitions.values():
        msgspec.json.encode(listing_to_json(definition, catalog))
    for finding in catalog.findings:
        msgspec.json.encode(finding_to_json(finding))
    msgspec.json.encode(catalog_to_json(catalog))
    return catalog


def spoilt(tree: Any, step: int) -> Iterator[Any]:
    """Give *tree* with each odd value at every *step*-th of its places, other places for each value."""
    holders = list(places_of(tree))
    for number, odd in enumerate(ODD):
        for holder, key in holders[number % step :: step]:
            kept = holder[key]
            holder[key] = deepcopy(odd)
            yield tree
            holder[key] = kept


def places_of(tree: Any) -> Iterator[tuple[Any, Any]]:
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(members):
        yield tree, key
        yield from places_of(value)


def step_of(tree: Any, places: int) -> int:
    return math.ceil(sum(1 for _ in places_of(tree)) / places)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_cut_off_anywhere(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    for end in range(0, len(whole), len(whole) // CUTS + 1):
        cut = tmp_path / path.name
        cut.write_bytes(whole[:end])
        try:
            load([cut])
        except DocumentError as error:
            assert error.file == str(cut)
            continue
        assert path.suffix == ".yaml"  # of which a beginning may be a document, and a JSON text never is


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_odd_values_at_some_places(path: Path) -> None:
    tree = parse_text(path.name, path.read_bytes()).tree
    for broken in spoilt(tree, step_of(tree, PLACES)):
        read(broken)


@pytest.mark.slow
def test_odd_values_in_documents_of_all_dialects_and_rules() -> None:
    """Whatever stands anywhere, every reader and every rule is asked and none raises."""
    trees = [
        case["document"]
        for name in ("dialects", "hybrids")
        for case in read_cases(DATA / f"catalog/{name}.yaml").values()
    ]
    for path in sorted((DATA / "lint").glob("*.yaml")):
        kinds = (case[kind] for case in read_cases(path).values() for kind in ("triggers", "near-misses"))
        trees += [each["document"] for listed in kinds for each in listed if "document" in each]
    for tree in trees:
        for broken in spoilt(tree, step_of(tree, 2)):
            read(broken)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_odd_values_at_every_place(path: Path) -> None:
    for broken in spoilt(parse_text(path.name, path.read_bytes()).tree, 1):
        read(broken)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_odd_values_in_real_documents() -> None:
    for path in documents():
        tree = parse_text(path.name, path.read_bytes()).tree
        for broken in spoilt(tree, step_of(tree, 3 * PLACES)):
            read(broken)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.full) if case.name in SLOW else case for case in CASES],
    ids=lambda case: case.name,
)
def test_hostile_documents(case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / case.file
    path.write_bytes(case.make(case.small))

    status = run_command_line(["check", str(path), "--format", "json"])

    written, complaint = capfd.readouterr()
    findings = json.loads(written)
    assert complaint == ""
    if case.refused:
        assert status == 2
        assert [finding["rule"] for finding in findings] == ["unreadable-document"]
        assert case.outcome in findings[0]["message"]
        assert findings[0]["file"] == str(path)
        return
    assert status == ("error" in {finding["severity"] for finding in findings})
    assert all(len(finding["message"]) <= MAX_TEXT >= len(finding["hint"]) for finding in findings)
    assert len(findings) <= 3 * (MAX_FINDINGS + 1)
    if case.outcome:
        assert case.outcome in {finding["rule"] for finding in findings}


@pytest.mark.parametrize("case", [case for case in CASES if case.refused][::4], ids=lambda case: case.name)
def test_what_is_refused_ends_every_command_alike(
    case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / case.file
    path.write_bytes(case.make(case.small))

    assert run_command_line(["catalog", "list", str(path), "--format", "json"]) == CatalogUnavailable("").exit_code

    written, complaint = capfd.readouterr()
    assert written == ""
    assert complaint.startswith(f"xrouter: error: {path}")
    assert "unexpected" not in complaint


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("case", [case for case in CASES if case.name in LARGE], ids=lambda case: case.name)
def test_large_ones_stay_in_their_bounds(case: Case, tmp_path: Path) -> None:
    """In a process of its own, which may have 1 GiB of memory with the interpreter and all libraries."""
    path = tmp_path / case.file
    path.write_bytes(case.make(LARGE[case.name]))

    command = [sys.executable, "-c", _LOAD.format(memory=MEMORY), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=SECONDS, check=False)

    assert done.returncode == (2 if case.refused else done.returncode), done.stderr.decode()[-500:]
    assert done.returncode in (0, 1, 2)
    assert done.stderr == b""  # and no MemoryError, which is how the limit on memory would show
    assert json.loads(done.stdout) or not case.outcome


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("bom.json", '\ufeff{"messagegroups":{"g":{"messages":{"m":{}}}}}'.encode()),
        ("wide.json", '{"messagegroups":{"g":{"messages":{"m":{}}}}}'.encode("utf-16")),
        ("wider.json", '{"messagegroups":{"g":{"messages":{"m":{}}}}}'.encode("utf-32")),
        ("wide.yaml", "messagegroups: {g: {messages: {m: {}}}}".encode("utf-16")),
        ("anchors.yaml", b"&a messagegroups: {&b g: {messages: {&c m: {}}}}\nx: {*a : 1, *b : 2}"),
        ("merges.yaml", b"x: &x {m: {}}\ny: &y {n: {}}\nmessagegroups: {g: {messages: {<<: [*x, *y]}}}"),
        ("inline-merge.yaml", b"messagegroups: {g: {messages: {<<: {m: {}}}}}"),
        ("pair.json", messages({"m": {"description": "\U0001f41d"}})),
        ("controls.json", messages({"m": {}, "m\x00\u202e": {"protocol": "\x00", "dataschemauri": "./\x00"}})),
        ("odd-keys.json", messages({"m": {}, "": {}, "a/b~c": {}, "#": {}, "%2F": {}, "..": {}})),
    ],
)
def test_unusual_encodings_and_names_are_read(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    catalog = load([tmp_path / name])
    assert "/messagegroups/g/messages/m" in catalog.definitions
    msgspec.json.encode(catalog_to_json(catalog))


@pytest.mark.parametrize(
    ("name", "data", "pointer"),
    [
        ("a.json", rb'{"a":[0,{"b/":"\ud800"}]}', "/a/1/b~1"),
        ("a.json", rb'{"a":{"\udc00":1}}', "/a"),
        ("a.yaml", b"a: [0, {b: !x 1}]", "/a/1/b"),
        ("a.yaml", b"a: [0, {b: *c}]", "/a/1/b"),
        ("a.yaml", b"a: [0, {[b]: 1}]", "/a/1"),
    ],
)
def test_what_is_refused_is_pointed_at(name: str, data: bytes, pointer: str) -> None:
    with pytest.raises(DocumentError) as error:
        parse_text(name, data)
    assert (error.value.file, error.value.pointer) == (name, pointer)


def test_a_file_name_that_is_no_text_can_be_told(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / os.fsdecode(b"\xff.json")).write_bytes(messages({"m": 1}))
    assert run_command_line(["check", str(tmp_path), "--format", "json"]) == 1
    assert json.loads(capfdbinary.readouterr().out)[0]["file"].endswith("\\udcff.json")


def test_json_and_yaml_nest_equally_deep() -> None:
    for depth, fits in ((128, True), (129, False)):
        for name in ("a.json", "a.yaml"):
            try:
                parse_text(name, b"[" * depth + b"]" * depth)
            except DocumentError:
                assert not fits
            else:
                assert fits


NAMES: Final = (
    "messagegroups endpoints schemagroups definitionGroups schemaGroups groups messages definitions schemas versions "
    "meta defaultversionid envelope protocol envelopemetadata protocoloptions envelopeoptions metadata attributes "
    "format config options usage basemessage basemessageuri xref uri dataschema dataschemaformat dataschemauri schema "
    "schemaurl datacontenttype type value required name headers query properties application-properties "
    "user_properties topic_name subject path key id definition publish specversion g m 1 2"
).split()
TEXTS: Final = (
    "/messagegroups/g/messages/m #/messagegroups/g ../m CloudEvents/1.0 KAFKA MQTT/5.0 HTTP AMQP/1.0 NATS consumer "
    "JsonSchema/draft-07 Avro/1.11 JsonStructure {a}/{b} #/schemagroups/g/schemas/m:X uritemplate integer 0.1 1.0-rc4"
).split()
characters = st.characters(max_codepoint=0xD7FF)  # others are escaped as pairs, which YAML does not have
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(TEXTS),
    st.text(characters, max_size=4),
)
keys = st.one_of(st.sampled_from(NAMES), st.text(characters, max_size=3))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=6)),
    max_leaves=40,
)
entities = st.dictionaries(st.sampled_from(["g", "m", "n"]), st.dictionaries(st.sampled_from(NAMES), trees, max_size=8))
catalogs = st.dictionaries(
    st.sampled_from(["messagegroups", "endpoints", "schemagroups", "definitionGroups", "groups", "definitions", "id"]),
    st.one_of(
        trees,
        st.dictionaries(st.sampled_from(["g", "m"]), st.fixed_dictionaries({"messages": entities, "schemas": trees})),
        st.dictionaries(st.sampled_from(["g", "m"]), st.fixed_dictionaries({"definitions": entities})),
    ),
    max_size=5,
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(catalogs)
def test_any_tree_is_a_catalog_with_findings(tree: dict[str, Any]) -> None:
    read(tree)


@given(st.text("{}[]:,-&*!|>'\"#?<\n ab1%\\u\ufeff\x85", max_size=60), st.sampled_from(["a.json", "a.yaml"]))
def test_any_text_is_a_tree_or_one_error(text: str, name: str) -> None:
    try:
        parsed = parse_text(name, text.encode())
    except DocumentError as error:
        assert error.file == name
    else:
        msgspec.json.encode(parsed.tree)


@pytest.mark.slow
@given(trees)
def test_yaml_reads_all_json(tree: Any) -> None:
    text = json.dumps({"a": tree}).encode()
    assert parse_text("a.yaml", text).tree == parse_text("a.json", text).tree
