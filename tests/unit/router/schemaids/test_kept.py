"""The files of ids: read for ever, written by many at once, and one answer for all that ask."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from catalog.findings import DocumentError
from catalog.schemas.ids.client import SchemaIdRegistry, WrittenSchema
from router.schemaids.cache import (
    FORGET_SECONDS,
    DamagedFile,
    MirrorProgress,
    RegistryAddress,
    SchemaIdCache,
    mirror_registry,
)

URL = "https://registry.example/apis"
RIDE = WrittenSchema("12", "Avro", '{"type": "int"}', {"a.B": '"string"'}, (("rides-value", 2),))


def kept(folder: Path, now: list[float] | None = None, url: str = URL) -> SchemaIdCache:
    return SchemaIdCache(folder / "lake", url, clock=lambda: (now or [1000.0])[0])


def test_an_answer_is_kept_as_it_was(tmp_path: Path) -> None:
    assert kept(tmp_path).schema("12") is None
    assert kept(tmp_path).store("12", RIDE) == RIDE
    assert kept(tmp_path).schema("12") == RIDE
    assert list(kept(tmp_path).ids()) == ["12"]
    assert (tmp_path / "lake" / "12.json").stat().st_mode & 0o077 == 0


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    """What is written here is what version 1 wrote; later versions have to read it."""
    form = {"format": 1, "url": URL, "id": "12", "family": "Avro", "document": '{"type": "int"}'}
    form |= {"references": {"a.B": '"string"'}, "subjects": [["rides-value", 2]]}
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "12.json").write_text(json.dumps(form))
    assert kept(tmp_path).schema("12") == RIDE


def test_what_another_address_said_under_the_same_name_does_not_count(tmp_path: Path) -> None:
    kept(tmp_path).store("12", RIDE)
    kept(tmp_path).store("13", None)
    other = kept(tmp_path, url="https://other.example")
    assert other.schema("12") is None
    assert not other.is_unknown("13")


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}', b'{"format": 2, "url": "", "id": "12"}'])
def test_a_damaged_file_is_named_and_written_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "12.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"12\.json"):
        kept(tmp_path).schema("12")
    kept(tmp_path).store("12", RIDE)
    assert kept(tmp_path).schema("12") == RIDE


def test_nothing_is_kept_for_a_time_then_forgotten(tmp_path: Path) -> None:
    now = [1000.0]
    first, second = kept(tmp_path, now), kept(tmp_path, now)
    assert not second.is_unknown("7")
    assert first.store("7", None) is None
    assert second.is_unknown("7")
    now[0] += FORGET_SECONDS - 1
    assert kept(tmp_path, now).is_unknown("7")
    now[0] += 2
    assert not second.is_unknown("7")


def test_the_first_answer_counts_for_all(tmp_path: Path) -> None:
    one, other = kept(tmp_path), kept(tmp_path)
    one.store("7", None)
    assert other.store("7", RIDE) is None  # registered between two questions: a repeated batch is judged alike
    one.store("12", RIDE)
    assert other.store("12", None) == RIDE
    assert other.store("7", WrittenSchema("7", "Avro", '"int"'), anew=True)
    assert one.schema("7") is not None  # mirrored by hand


def test_what_was_mirrored_is_known_by_subject_and_version(tmp_path: Path) -> None:
    assert kept(tmp_path).mirrored_versions() == {}
    kept(tmp_path).store_mirrored({"rides-value": {1: "4", 2: "12"}})
    assert kept(tmp_path).mirrored_versions() == {"rides-value": {1: "4", 2: "12"}}
    assert kept(tmp_path, url="https://other.example").mirrored_versions() == {}
    (tmp_path / "lake" / "pulled").write_text("{")
    assert kept(tmp_path).mirrored_versions() == {}


def test_why_nothing_can_be_mirrored_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: RegistryAddress) -> SchemaIdRegistry:
        raise DocumentError("the token cannot be read", file="token")

    monkeypatch.setattr(RegistryAddress, "client", fail)
    with pytest.raises(DocumentError, match="the token cannot be read"):
        mirror_registry(RegistryAddress("lake", URL), tmp_path, ["rides"], MirrorProgress(), lambda: None)


def test_a_line_that_a_crash_tore_harms_no_other(tmp_path: Path) -> None:
    kept(tmp_path).store("7", None)
    (file,) = (tmp_path / "lake").glob("nothing-*")
    file.write_bytes(file.read_bytes() + b"99 10")
    again = kept(tmp_path)
    again.store("8", None)
    assert all(map(kept(tmp_path).is_unknown, ("7", "8")))
    assert again.is_unknown("8")


def test_noise_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.schemaids.cache.MAX_UNKNOWN_IDS", 20)
    now = [1000.0]
    ids = kept(tmp_path, now)
    for number in range(100):
        now[0] += 1
        ids.store(str(number), None)
    assert sum(map(kept(tmp_path, now).is_unknown, map(str, range(100)))) <= 21
    assert ids.is_unknown("99")


def _write(folder: str, start: int) -> int:
    ids = SchemaIdCache(Path(folder), URL)
    for number in range(40):
        ids.store(str(number), WrittenSchema(str(number), "Avro", '"int"'))
        ids.store(str(1000 + number), None)
        assert ids.schema(str((number + start) % (number + 1))) is not None
    return sum(map(ids.is_unknown, map(str, range(2000))))


@pytest.mark.slow
def test_many_processes_read_and_write_one_folder(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        counts = list(pool.map(_write, [str(tmp_path / "lake")] * 4, range(4)))
    ids = kept(tmp_path)
    assert sorted(map(int, ids.ids())) == list(range(40))
    assert [number for number in range(2000) if ids.is_unknown(str(number))] == [1000 + number for number in range(40)]
    assert counts == [40] * 4
    assert not list((tmp_path / "lake").glob("*.new"))
