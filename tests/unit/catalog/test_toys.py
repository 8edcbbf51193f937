"""A dialect and a schema family of our own: each is one entry in one list, and nothing else is edited."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from catalog.dialects.detection import DIALECTS, Dialect
from catalog.load import load
from catalog.schemas.columns import PayloadMaker, payload_findings
from catalog.schemas.families import FAMILIES, family_names, inferred_content_type, parse_format
from catalog.schemas.validation import PayloadValidation
from router.cli import run_command_line
from tests.support.toy_family import LINES

XID: Final = "/messagegroups/g/messages/m"
BUNDLES: Final = Dialect(
    title="Bundles 7",
    detects=lambda document: "bundles" in document,
    names={
        "groups": {"bundles": "messagegroups"},
        "messages": {"letters": "messages"},
        "selectors": {"wrapping": "envelope"},
        "attributes": {"stamps": "envelopemetadata"},
        "bases": {"after": "basemessage"},
    },
    suffixes=(".bundle",),
    checks_attributes=False,
)
DOCUMENT: Final = """
bundles:
  g:
    letters:
      base: {wrapping: CloudEvents/1.0, stamps: {type: {value: t.0}}}
      m: {after: /messagegroups/g/messages/base, stamps: {subject: {value: s}}}
"""


@pytest.fixture
def bundles(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "a.bundle").write_text(DOCUMENT, encoding="utf-8")
    DIALECTS.insert(0, BUNDLES)
    yield tmp_path
    DIALECTS.remove(BUNDLES)


def test_a_dialect_is_one_entry(bundles: Path) -> None:
    catalog = load([bundles])
    definition = catalog.definitions[XID]
    values = {prop.name: prop.value for prop in definition.envelopemetadata}
    assert (values["type"], values["subject"]) == ("t.0", "s")
    assert [finding.rule for finding in catalog.findings] == ["deprecated-dialect"]
    assert "Bundles 7" in catalog.findings[0].message


def test_its_names_are_read_in_documents_of_other_dialects(bundles: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(
        "specversion: 1.0-rc4\n"
        "messagegroups: {h: {letters: {n: {envelope: CloudEvents/1.0, stamps: {type: {value: t}}}}}}\n"
    )
    catalog = load([file])
    assert list(catalog.definitions) == ["/messagegroups/h/messages/n"]
    assert [finding.rule for finding in catalog.findings] == ["unusual-name", "unusual-name"]


def test_check_reads_it(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", str(bundles)]) == 0
    assert "this is Bundles 7, which xRegistry 1.0 has replaced" in capsys.readouterr().out


def test_without_the_entry_it_is_no_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(DOCUMENT, encoding="utf-8")
    assert run_command_line(["check", str(tmp_path / "a.yaml")]) == 1
    assert "not-a-catalog" in capsys.readouterr().out


def catalog_with_lines(folder: Path, lines: str) -> Path:
    file = folder / "a.yaml"
    file.write_text(
        "specversion: 1.0-rc4\n"
        "messagegroups: {g: {messages: {m: {envelope: CloudEvents/1.0, envelopemetadata: {type: {value: t}},\n"
        f"  dataschemaformat: Lines/1, dataschema: '{lines} lines'}}}}}}}}\n",
        encoding="utf-8",
    )
    return file


@pytest.fixture
def lines() -> Iterator[None]:
    FAMILIES.append(LINES)
    parse_format.cache_clear()
    yield
    FAMILIES.remove(LINES)
    parse_format.cache_clear()


@pytest.mark.usefixtures("lines")
def test_a_schema_family_is_one_entry(tmp_path: Path) -> None:
    catalog = load([catalog_with_lines(tmp_path, "2")])
    assert not catalog.findings
    validation = PayloadValidation(catalog)
    assert validation.faults(XID, [b"a\nb\n"], [None])[0] is None
    assert str(validation.faults(XID, [b"a\n"], [None])[0]) == "1 lines instead of 2"
    payload = PayloadMaker(catalog.definitions[XID], catalog).make("text/plain", 1, random.Random(7), "")
    assert not payload.doubt
    assert (payload.data or b"").count(b"\n") == 2
    assert payload_findings(catalog, XID) == ("the payload has no columns: lines are not typed",)
    assert inferred_content_type("Lines/1") == "text/plain"
    assert family_names().endswith("XSD or Lines")


@pytest.mark.usefixtures("lines")
def test_check_compiles_its_schemas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", str(catalog_with_lines(tmp_path, "some"))]) == 1
    assert "'some lines' is no number of lines" in capsys.readouterr().out


def test_without_the_entry_its_format_is_unknown(tmp_path: Path) -> None:
    catalog = load([catalog_with_lines(tmp_path, "2")])
    assert [finding.rule for finding in catalog.findings] == ["unknown-schema-format"]
