"""Schemas by id from a real schema registry: what is there, what is not, what cannot be said for now, and the disk."""

from __future__ import annotations

import json
import pickle
import ssl
from pathlib import Path

import pytest

from catalog.documents.connecting import Certificates, OriginLogin, to_basic
from catalog.load import load
from catalog.schemas.ids.client import RegistryUnavailableError, SchemaIdRegistry
from catalog.schemas.validation import PayloadValidation
from router.cli import run_command_line
from router.schemaids.cache import RegistryAddress, RegistryIds
from router.settings import load_settings
from router.settings.catalogs import make_catalog_fetcher
from tests.support.apicurio import Apicurio
from tests.support.qpid import make_certificates
from tests.support.web import Front

POINT = '{"type":"record","name":"Point","namespace":"geo","fields":[{"name":"x","type":"double"}]}'
SPOT = '{"type":"record","name":"Spot","namespace":"geo","fields":[{"name":"at","type":"geo.Point"}]}'
RIDE = '{"type":"record","name":"Ride","namespace":"fleet","fields":[{"name":"from","type":"geo.Spot"}]}'
COMMON = 'syntax = "proto3"; package fleet; message Money { int64 cents = 1; }'
BILL = 'syntax = "proto3"; package fleet; import "money.proto"; message Bill { Money sum = 1; }'
PLAIN = '{"type":"object","title":"Plain","properties":{"a":{"type":"integer"}}}'


def registered(apicurio: Apicurio, prefix: str) -> dict[str, int]:
    """Register five schemas, two of which refer to others, and return their ids."""

    def other(name: str, subject: str) -> list[dict[str, object]]:
        return [{"name": name, "subject": f"{prefix}{subject}", "version": 1}]

    return {
        "point": apicurio.register(f"{prefix}point", POINT),
        "spot": apicurio.register(f"{prefix}spot", SPOT, references=other("geo.Point", "point")),
        "ride": apicurio.register(f"{prefix}ride", RIDE, references=other("geo.Spot", "spot")),
        "money": apicurio.register(f"{prefix}money", COMMON, "PROTOBUF"),
        "bill": apicurio.register(f"{prefix}bill", BILL, "PROTOBUF", other("money.proto", "money")),
        "plain": apicurio.register(f"{prefix}plain", PLAIN, "JSON"),
    }


def ids_of(url: str, folder: Path | None = None, login: OriginLogin | None = None) -> RegistryIds:
    return RegistryIds(RegistryAddress("lake", url, login, 5.0), folder)


def settings(folder: Path, url: str, more: str = "") -> Path:
    (folder / "catalog.xreg.json").write_text('{"specversion": "1.0-rc1"}')
    config = folder / "router.yaml"
    config.write_text(f"schema_registries: {{lake: {{url: '{url}', {more}}}}}\n")
    return config


def test_a_schema_comes_with_all_that_it_refers_to(apicurio: Apicurio) -> None:
    ids = registered(apicurio, "whole-")
    asked = ids_of(apicurio.url)
    ride = asked.get_schema(str(ids["ride"]))
    assert ride is not None
    assert (ride.family, ride.fault) == ("Avro", "")
    assert ride.document == RIDE
    assert dict(ride.references) == {"geo.Spot": SPOT, "geo.Point": POINT}
    assert ride.subjects == (("whole-ride", 1),)
    bill = asked.get_schema(str(ids["bill"]))
    assert bill is not None
    assert bill.family == "Protobuf"
    assert dict(bill.references) == {"money.proto": COMMON}
    plain = asked.get_schema(str(ids["plain"]))
    assert plain is not None
    assert (plain.family, plain.document) == ("JsonSchema", PLAIN)


@pytest.mark.parametrize(
    "schema_id", ["4000000", "4294967295", "99999999999999", "b1946ac9-2492-4d23-8b1c-0a1b2c3d4e5f"]
)
def test_what_is_not_there_is_nothing(apicurio: Apicurio, tmp_path: Path, schema_id: str) -> None:
    assert ids_of(apicurio.url, tmp_path / "lake").get_schema(schema_id) is None


def test_a_wrong_address_is_no_reason_to_doubt_records(apicurio: Apicurio) -> None:
    """Apicurio answers 404 there, too: what is not there is told from an address that is wrong."""
    wrong = apicurio.url.removesuffix("/v7") + "/v77"
    for schema_id in ("1", "99999999999999"):
        with pytest.raises(RegistryUnavailableError, match=r"schema registry lake at http.*v77 answers 404.*address"):
            ids_of(wrong).get_schema(schema_id)


def test_the_disk_answers_when_the_registry_is_gone(apicurio: Apicurio, tmp_path: Path) -> None:
    ids, folder = registered(apicurio, "disk-"), tmp_path / "lake"
    before = ids_of(apicurio.url, folder)
    known = before.get_schema(str(ids["ride"]))
    assert before.get_schema("7000000") is None
    apicurio.kill()
    try:
        after: RegistryIds = pickle.loads(pickle.dumps(before))
        assert after.get_schema(str(ids["ride"])) == known
        assert after.get_schema("7000000") is None
        with pytest.raises(RegistryUnavailableError, match="schema registry lake at http"):
            after.get_schema("7000001")
        (folder / f"{ids['ride']}.json").write_text("{")
        with pytest.raises(RegistryUnavailableError, match=rf"{ids['ride']}\.json is damaged"):
            ids_of(apicurio.url, folder).get_schema(str(ids["ride"]))
    finally:
        apicurio.restart()
    assert ids_of(apicurio.url, folder).get_schema(str(ids["ride"])) == known
    assert (folder / f"{ids['ride']}.json").stat().st_size > 100
    assert after.get_schema("7000001") is None  # it asks again by itself


def test_without_a_folder_memory_has_to_do(apicurio: Apicurio) -> None:
    ids = registered(apicurio, "memory-")
    with Front(apicurio.url) as front:
        asked = ids_of(front.url)
        for _ in range(3):
            assert asked.get_schema(str(ids["point"])) is not None
            assert asked.get_schema("7000000") is None
        assert sum(each.startswith(f"GET /schemas/ids/{ids['point']}") for each in front.seen) == 2  # and its versions
        assert sum(each == "GET /schemas/ids/7000000" for each in front.seen) == 1


@pytest.mark.parametrize("way", ["basic", "bearer", "bearer_file", "wrong"])
def test_a_login_is_shown(apicurio: Apicurio, tmp_path: Path, way: str) -> None:
    (tmp_path / "token").write_text("abc\n")
    login, wanted = {
        "basic": (OriginLogin("", basic=("ann", "hush")), to_basic("ann", "hush")),
        "bearer": (OriginLogin("", bearer="abc"), "Bearer abc"),
        "bearer_file": (OriginLogin("", bearer_file=tmp_path / "token"), "Bearer abc"),
        "wrong": (OriginLogin("", basic=("ann", "hush")), "Bearer other"),
    }[way]
    with Front(apicurio.url, authorization=wanted) as front:
        origin = front.url.partition("/apis")[0]
        shown = OriginLogin(origin, login.basic, login.bearer, login.bearer_file)
        asked: RegistryIds = pickle.loads(pickle.dumps(ids_of(front.url, login=shown)))
        if way == "wrong":
            with pytest.raises(RegistryUnavailableError, match="answers 401, it does not let us in; check its login"):
                asked.get_schema("1")
        else:
            assert asked.get_schema("4000000") is None


def test_tls_with_certificates_as_files_and_as_texts(apicurio: Apicurio, tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.certificate, made.key)
    tls.load_verify_locations(made.ca)
    tls.verify_mode = ssl.CERT_REQUIRED
    files = Certificates(made.ca, made.certificate, made.key)
    texts = pickle.loads(pickle.dumps(files.as_texts()))
    with Front(apicurio.url, tls=tls) as front:
        origin = front.url.partition("/apis")[0]
        for certificates in (files, texts):
            login = OriginLogin(origin, certificates=certificates)
            assert ids_of(front.url, login=login).get_schema("4000000") is None
        for stranger in (Certificates(made.ca), Certificates(made.other_ca, made.certificate, made.key)):
            with pytest.raises(RegistryUnavailableError, match="schema registry lake at https://localhost"):
                ids_of(front.url, login=OriginLogin(origin, certificates=stranger)).get_schema("4000000")
    made.key.unlink()
    assert "PRIVATE KEY" not in repr(texts)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((429, b"{}"), (500, b'{"error_code": 50001}'), (503, b""), (403, b"{}"), (404, b"<html>"), (302, b"")),
        *((200, b"<html>"), (200, b"[]"), (200, b"{}"), (200, b'"x"'), (400, b"{}")),
    ],
)
def test_what_cannot_be_said_for_now_is_no_answer(apicurio: Apicurio, tmp_path: Path, status: int, body: bytes) -> None:
    ids = registered(apicurio, "mood-")
    folder = tmp_path / "lake"
    with Front(apicurio.url) as front:
        front.mood = lambda path: (status, body)
        asked = ids_of(front.url, folder)
        with pytest.raises(RegistryUnavailableError):
            asked.get_schema(str(ids["point"]))
        front.mood = lambda path: None
        assert not list(folder.glob("*")) if folder.exists() else True
        assert ids_of(front.url, folder).get_schema(str(ids["point"])) is not None


def test_a_schema_that_cannot_be_used_says_so_for_good(apicurio: Apicurio, tmp_path: Path) -> None:
    ids = registered(apicurio, "broken-")
    with Front(apicurio.url) as front:
        front.mood = lambda path: (
            (404, b'{"error_code": 40401, "message": "gone"}') if path.startswith("/subjects/broken-point/") else None
        )
        ride = ids_of(front.url).get_schema(str(ids["ride"]))
        assert ride is not None
        assert ride.fault == "it refers to version 1 of subject broken-point, which is not there"
        front.mood = lambda path: (200, b'{"schema": "' + b"x" * 5_000_000 + b'"}')
        large = ids_of(front.url).get_schema(str(ids["ride"]))
        assert large is not None
        assert "more than" in large.fault


def test_a_registry_is_mirrored_and_then_needed_no_more(
    apicurio: Apicurio, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = registered(apicurio, "mirror-")
    total = len(SchemaIdRegistry("lake", apicurio.url).list_subjects())
    with Front(apicurio.url) as front:
        config = settings(tmp_path, front.url)
        assert run_command_line(["schemas", "pull", str(config)]) == 0
        first = capsys.readouterr()
        assert f"lake: {total} subjects, {total} versions: " in first.out
        asked = len(front.seen)
        assert run_command_line(["schemas", "pull", str(config)]) == 0
        assert f"{total} on disk already, 0 new" in capsys.readouterr().out
        again = front.seen[asked:]
        assert all(each.endswith(("/subjects?deleted=true", "/versions?deleted=true")) for each in again)
        (tmp_path / "state" / "schemas" / "lake" / f"{ids['ride']}.json").write_bytes(b"\0")
        assert run_command_line(["schemas", "pull", str(config), "--subject", "mirror-ride"]) == 0
        assert "lake: 1 subject, 1 version: 0 on disk already, 1 new" in capsys.readouterr().out
        assert run_command_line(["schemas", "pull", str(config), "--subject", "nobody"]) == 1
        assert "schema registry lake has no subject nobody" in capsys.readouterr().err
        assert run_command_line(["schemas", "pull", str(config), "--registry", "sea"]) == 1
        assert "known: lake" in capsys.readouterr().err
        url = front.url
    assert ids_of(url, tmp_path / "state" / "schemas" / "lake").get_schema(str(ids["ride"])) is not None
    assert run_command_line(["schemas", "pull", str(config)]) == 5
    assert "schema registry lake at" in capsys.readouterr().err


def test_mirroring_takes_the_place_of_nothing(apicurio: Apicurio, tmp_path: Path) -> None:
    config = settings(tmp_path, apicurio.url)
    folder = tmp_path / "state" / "schemas" / "lake"
    coming = apicurio.register("late-first", '"int"') + 1
    asked = ids_of(apicurio.url, folder)
    assert asked.get_schema(str(coming)) is None
    assert apicurio.register("late", '{"type": "fixed", "name": "L", "size": 3}') == coming
    assert asked.get_schema(str(coming)) is None  # a repeated batch is judged alike
    assert run_command_line(["schemas", "pull", str(config)]) == 0
    assert asked.get_schema(str(coming)) is not None


def test_doctor_looks_at_each_registry(apicurio: Apicurio, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = registered(apicurio, "doctor-")
    with Front(apicurio.url) as front:
        config = settings(tmp_path, front.url)
        assert f"ok   schema registry lake: {front.url} responds; 0 ids on disk" in examined(config, capsys)
        kept = ids_of(front.url, tmp_path / "state" / "schemas" / "lake")
        kept.get_schema(str(ids["point"]))
        kept.get_schema(str(ids["money"]))
        assert f"ok   schema registry lake: {front.url} responds; 2 ids on disk" in examined(config, capsys)
        (tmp_path / "state" / "schemas" / "lake" / f"{ids['point']}.json").write_text("")
        assert f"warn schema registry lake: {front.url} responds; 1 id on disk; " in examined(config, capsys)
        front.authorization = "Bearer x"
        assert "warn schema registry lake: at http" in (told := examined(config, capsys))
        assert "answers 401, it does not let us in" in told
        url = front.url
    assert f"warn schema registry lake: at {url} cannot be asked" in (told := examined(config, capsys))
    assert "batches with other ids are blocked until it responds" in told


def examined(config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    run_command_line(["doctor", str(config)])
    return capsys.readouterr().out


def test_a_catalog_takes_its_schemas_out_of_a_registry(
    apicurio: Apicurio, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is at such an address is an answer with the schema in it, and with what that refers to elsewhere."""
    ids = registered(apicurio, "catalog-")
    with Front(apicurio.url, authorization=to_basic("ann", "hush")) as front:
        places = {
            "ride": f"{front.url}/subjects/catalog-ride/versions/1",
            "latest": f"{front.url}/subjects/catalog-ride/versions/latest",
            "bill": f"{front.url}/schemas/ids/{ids['bill']}:Bill",
            "plain": f"{front.url}/schemas/ids/{ids['plain']}",
        }
        messages = {
            name: {"envelope": "CloudEvents/1.0", "dataschemauri": place, "envelopemetadata": {"type": {"value": name}}}
            for name, place in places.items()
        }
        catalog = tmp_path / "catalog.xreg.json"
        catalog.write_text(json.dumps({"specversion": "1.0-rc2", "messagegroups": {"g": {"messages": messages}}}))
        config = tmp_path / "router.yaml"
        login = "username: ann, password: '${HUSH}', allow_plaintext_password: true"
        config.write_text(f"schema_registries: {{lake: {{url: '{front.url}', {login}}}}}\n")
        environ = {"HUSH": "hush"}
        loaded = load([str(catalog)], fetcher=make_catalog_fetcher(load_settings(config, environ)))
    assert not [each for each in loaded.findings if "schema" in each.rule]
    checks = PayloadValidation(loaded)
    good = {"ride": b"\0" * 8, "latest": b"\0" * 8, "bill": b"\x0a\x02\x08\x05", "plain": b'{"a": 1}'}
    bad = {"ride": b"\0" * 7, "latest": b"\0" * 9, "bill": b"\x0a\x02\x08", "plain": b'{"a": "1"}'}
    for name in places:
        (xid,) = (xid for xid in loaded.definitions if xid.endswith(f"/{name}"))
        kind = "application/json" if name == "plain" else None
        assert checks.faults(xid, [good[name], bad[name]], [kind] * 2)[0] is None, name
        assert checks.faults(xid, [good[name], bad[name]], [kind] * 2)[1] is not None, name
