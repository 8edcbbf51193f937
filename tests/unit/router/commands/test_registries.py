"""``xrouter catalog pull`` and ``push``: a file means what the registry means, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bindings.http.request import Access
from catalog.linting.attributes import rejecting_errors
from catalog.load import load
from catalog.model import Catalog, Definition
from registry.http.access import Roles
from router.cli import run_command_line
from tests.support.cases import spread
from tests.support.corpora import CORPORA
from tests.support.registry import Registry, served
from tests.support.web import Web, serving

ROOT = Path(__file__).resolve().parents[4]
FEEDS = ("dwd", "gtfs", "jma-bosai-volcano", "wikimedia_osm_diffs")
FILES = sorted(
    path
    for path in [*CORPORA.rglob("*.xreg.json"), *(ROOT / "catalog" / "samples").glob("*.xreg.*")]
    if "feeders" not in path.parts or path.name.removesuffix(".xreg.json") in FEEDS
)
RELATIVE = {
    *("library.xreg.yaml", "sparkplug.xreg.yaml"),
    *("kafka-consumer-endpoint.xreg.json", "nats-consumer-endpoint.xreg.json"),
}
SERVED = ("self", "xid", "epoch", "versions", "versionsurl", "versionscount", "metaurl")
"""Samples with addresses beside them: a registry has nothing there, and a file has other things."""
MANY_REQUESTS = 200_000
"""Bytes of a document that is not asked for entity by entity: on a busy machine that takes longer than a load may."""


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        yield server


def served_of(path: Path) -> dict[str, Any]:
    """Return the tree of a document for a registry that says itself what its addresses are."""
    tree = yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else json.loads(path.read_text())
    return {key: value for key, value in tree.items() if key not in ("self", "xid")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "inline"),
    [
        pytest.param(path, inline, id=f"{path.name}-{'inline' if inline else ''}", marks=marks)
        for number, path in enumerate(FILES)
        for inline in (("*",), ())
        if inline or path.stat().st_size < MANY_REQUESTS
        for marks in [[pytest.mark.full] if number % 3 else []]
    ],
)
def test_real_documents_come_back_as_they_are(
    web: Web, path: Path, inline: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = served_of(path)
    told = load([path])
    registry = Registry(web, tree, inline, page=3).open()
    file = tmp_path / "pulled.json"
    assert run_command_line(["catalog", "pull", registry.url, str(file)]) == 0
    live, warned = load([registry.url], network=True), "relative references" in capfd.readouterr().err
    assert (load([file]).epoch != live.epoch, path.name in RELATIVE) == (warned, warned)
    assert list(live.definitions) == list(told.definitions)
    pulled = json.loads(file.read_text())
    for group in tree.get("messagegroups", {}):
        for message, held in tree["messagegroups"][group].get("messages", {}).items():
            found = pulled["messagegroups"][group]["messages"][message]
            own = {key: value for key, value in held.items() if key not in SERVED}
            assert {key: found.get(key) for key in own} == own


# ``xrouter catalog push``: a registry means what the catalog means, or is as it was.


SAMPLES = ROOT / "catalog" / "samples"
PUSHED_FEEDS = ("aisstream", "openaq", "nextbus", "dwd")
PUSHED = sorted(
    path
    for path in [*CORPORA.rglob("*.xreg.json"), *SAMPLES.glob("*.xreg.*")]
    if "feeders" not in path.parts or path.name.removesuffix(".xreg.json") in PUSHED_FEEDS
)

REFUSED = {
    "minimal-amqp-external-xsd.xreg.json": 'attribute "schemaurl"',  # which begins with spaces
    "schemastore_org.xreg.json": 'Attribute "format" would differ',
}
"""Documents that xRegistry 1.0 does not allow, with what is wrong."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with served(tmp_path) as client:
        yield client


def url_of(client: httpx.Client) -> str:
    return str(client.base_url)


def message(kind: str) -> dict[str, Any]:
    return {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": kind}}}


def written(folder: Path, **groups: Any) -> Path:
    file = folder / "catalog.xreg.json"
    file.write_text(json.dumps({"specversion": "1.0-rc4", "registryid": "r", **groups}))
    return file


def group(**messages: Any) -> dict[str, Any]:
    return {"messagegroups": {"g": {"messagegroupid": "g", "messages": messages}}}


def meaning(catalog: Catalog) -> dict[str, Definition]:
    """Return the definitions without where their schemas are reached, which is where the registry is."""
    return {xid: replace(each, schemauri=None) for xid, each in catalog.definitions.items()}


@pytest.mark.slow
@pytest.mark.parametrize("path", spread(PUSHED, quick=8), ids=lambda path: path.name)
def test_what_is_pushed_and_pulled_means_the_same(
    path: Path, client: httpx.Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = load([path])
    errors = rejecting_errors(told.findings)
    status = run_command_line(["catalog", "push", str(path), url_of(client), "--yes"])
    shown = capfd.readouterr()
    if errors:
        assert status == 4 and errors[0].message in shown.err
        assert client.get("/").json()["messagegroupscount"] == 0
        return
    if path.name in REFUSED:
        assert status == 1 and REFUSED[path.name] in shown.err and "changed nothing" in shown.err
        assert client.get("/").json()["schemagroupscount"] == 0
        return
    assert status == 0, shown.err
    pulled = tmp_path / "pulled.json"
    assert run_command_line(["catalog", "pull", url_of(client), str(pulled)]) == 0
    again = load([pulled])
    assert "relative references" in shown.err or meaning(again) == meaning(told)
    assert again.endpoints == told.endpoints
    assert run_command_line(["catalog", "push", str(path), url_of(client), "--yes"]) == 0, capfd.readouterr().err
    assert "nothing changed for consumers" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("known", [("1",), ("1", "2"), ("7",), ("1", "2", "3", "4")])
def test_new_versions_of_a_schema_become_the_default_one(
    known: tuple[str, ...], client: httpx.Client, tmp_path: Path
) -> None:
    def schema(name: str) -> dict[str, Any]:
        return {"versionid": name, "format": "JsonSchema/draft-07", "schema": {"title": name}}

    for name in known:
        assert client.put(f"/schemagroups/g/schemas/s/versions/{name}$details", json=schema(name)).is_success
    versions = {name: schema(name) for name in ("1", "2", "10")}
    body = {"schemaid": "s", "meta": {"defaultversionid": "10"}, "versions": versions}
    file = written(tmp_path, schemagroups={"g": {"schemagroupid": "g", "schemas": {"s": body}}})
    assert run_command_line(["catalog", "push", str(file), url_of(client), "--yes"]) == 0
    assert client.get("/schemagroups/g/schemas/s/versions").json().keys() == {*known, "1", "2", "10"}
    assert client.get("/schemagroups/g/schemas/s").json() == {"title": "10"}
    for name in known:
        assert client.get(f"/schemagroups/g/schemas/s/versions/{name}").json() == {"title": name}


@pytest.mark.slow
def test_the_registry_gets_the_login_and_refuses_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(bearer={"ours": "w-token", "reader": "r-token"})
    file = written(tmp_path, **group(a=message("a")))
    with served(tmp_path, access=access, roles=Roles(writers={"ours": ("/messagegroups/*",)})) as client:
        for token, status in (("r-token", 1), ("w-token", 0)):
            config = tmp_path / "logins.yaml"
            login = {"url": url_of(client), "bearer": "${TOKEN}"}
            config.write_text(json.dumps({"catalog": {"logins": [login], "allow_plaintext_password": True}}))
            monkeypatch.setenv("TOKEN", token)
            assert (
                run_command_line(["catalog", "push", str(file), url_of(client), "--yes", "--logins", str(config)])
                == status
            )
            assert ("do not allow writes" in capfd.readouterr().err) == bool(status)
        assert client.get("/messagegroups/g/messages", headers={"authorization": "Bearer r-token"}).json().keys() == {
            "a"
        }
