"""References beyond the sources: what they lead to serves the catalog and is no part of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalog import references
from catalog.documents.fetching import Fetcher
from catalog.load import load
from catalog.model import Catalog
from tests.support.registry import Registry
from tests.support.web import Reply, Web, serving

M = "/messagegroups/G/messages/M"
ABOUT = {"base-cycle", "base-error", "dangling-base", "dangling-borrow", "dangling-group", "unreachable-reference"}


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        yield server


def group(defaults: dict[str, Any] | None = None, **messages: Any) -> dict[str, Any]:
    return {"messagegroups": {"G": {**(defaults or {}), "messages": messages}}}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def rules(catalog: Catalog) -> list[str]:
    return [f.rule for f in catalog.findings if f.rule in ABOUT]


def test_a_base_in_another_file(tmp_path: Path) -> None:
    write(tmp_path / "common" / "base.json", group({"protocol": "KAFKA"}, M={"datacontenttype": "a/b"}, other={}))
    source = write(tmp_path / "cat" / "c.json", group(M={"basemessage": f"../common/base.json#{M}"}))
    catalog = load([source])
    assert list(catalog.definitions) == [M]
    definition = catalog.definitions[M]
    assert (definition.datacontenttype, definition.protocol) == ("a/b", "KAFKA")
    assert definition.base == (f"../common/base.json#{M}",)
    assert list(catalog.groups) == ["/messagegroups/G"]
    assert (rules(catalog), catalog.pending) == ([], ())

    shutil.copytree(tmp_path, tmp_path / "moved" / "elsewhere")
    assert load([tmp_path / "moved" / "elsewhere" / "cat"]).epoch == catalog.epoch


def test_documents_refer_to_their_own_things_and_on(tmp_path: Path) -> None:
    write(tmp_path / "a.json", group(M={"basemessage": "b/b.yaml#/messagegroups/G/messages/B"}, N={"basemessage": "M"}))
    beyond = group(B={"basemessage": "C", "datacontenttype": "b/b"}, C={"basemessage": f"../d.json#{M}"})
    write(tmp_path / "b" / "b.yaml", beyond)
    write(tmp_path / "d.json", group(M={"envelope": "CloudEvents/1.0", "basemessage": "/messagegroups/G/messages/N"}))
    catalog = load([tmp_path / "a.json"])
    assert catalog.definitions["/messagegroups/G/messages/N"].base == (
        M,
        "b/b.yaml#/messagegroups/G/messages/B",
        "b/b.yaml#/messagegroups/G/messages/C",
        f"d.json#{M}",
    )
    found = [(f.file, f.rule) for f in catalog.findings if f.rule in ABOUT]
    assert found == [(str(tmp_path / "d.json"), "dangling-base")]
    assert catalog.definitions[M].envelope == "CloudEvents/1.0"


def test_a_document_among_the_sources_is_the_catalog(tmp_path: Path) -> None:
    write(tmp_path / "b.json", group(B={"datacontenttype": "a/b"}))
    write(tmp_path / "a.json", group(M={"basemessage": "./x/../b.json#/messagegroups/G/messages/B"}))
    assert load([tmp_path]).definitions[M].base == ("/messagegroups/G/messages/B",)


def test_without_its_document_a_reference_means_the_xid(tmp_path: Path) -> None:
    reference = "https://registry.invalid/x.json#/messagegroups/G/messages/B"
    source = write(tmp_path / "a.json", group(B={"datacontenttype": "a/b"}, M={"basemessage": reference}))
    catalog = load([source])
    assert catalog.definitions[M].base == ("/messagegroups/G/messages/B",)
    assert rules(catalog) == []


def test_cycles_across_documents(tmp_path: Path) -> None:
    write(tmp_path / "a.json", group(M={"basemessage": f"b.json#{M}"}, N={}))
    write(tmp_path / "b.json", group(M={"basemessage": f"a.json#{M}"}))
    catalog = load([tmp_path / "a.json"])
    assert list(catalog.definitions) == ["/messagegroups/G/messages/N"]
    assert rules(catalog) == ["base-cycle", "base-cycle"]

    write(tmp_path / "b.json", group(M={"basemessage": f"c.json#{M}"}))
    write(tmp_path / "c.json", group(M={"basemessage": f"b.json#{M}"}))
    assert rules(load([tmp_path / "a.json"])) == ["base-error", "base-cycle", "base-cycle"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "does not exist"), ({"x": 1}, "not an xRegistry"), (group(X={}), f"does not contain {M}"), ([], "object")],
)
def test_danglers_say_why(tmp_path: Path, content: Any, says: str) -> None:
    if content is not None:
        write(tmp_path / "b.json", content)
    source = write(tmp_path / "a.json", group(N={"basemessage": f"b.json#{M}"}, O={"xref": f"b.json#{M}"}))
    catalog = load([source])
    assert list(catalog.definitions) == ["/messagegroups/G/messages/N"]
    assert rules(catalog) == ["dangling-base", "dangling-borrow"]
    assert all(says in f.message for f in catalog.findings if f.rule in ABOUT)


def test_borrowed_messages(tmp_path: Path) -> None:
    write(tmp_path / "b.json", group({"protocol": "NATS"}, M={"datacontenttype": "a/b"}))
    source = write(tmp_path / "a.json", group(N={"uri": f"b.json#{M}"}))
    definition = load([source]).definitions["/messagegroups/G/messages/N"]
    assert (definition.datacontenttype, definition.protocol) == ("a/b", "NATS")


def test_an_inline_message_of_an_endpoint_beyond(tmp_path: Path) -> None:
    """Its options are spelled for the endpoint's protocol, which is no protocol of the message."""
    message = {"protocoloptions": {"topic-name": "t/{x}"}}
    write(tmp_path / "b.json", {"endpoints": {"e": {"protocol": "MQTT/5.0", "messages": {"m": message}}}})
    source = write(
        tmp_path / "a.json", group(M={"protocol": "MQTT/5.0", "basemessage": "b.json#/endpoints/e/messages/m"})
    )
    assert [(p.name, p.value) for p in load([source]).definitions[M].protocoloptions] == [("topic_name", "t/{x}")]


def test_a_group_of_another_document_gives_candidates(tmp_path: Path) -> None:
    write(tmp_path / "b" / "b.json", group({"protocol": "KAFKA"}, M={"datacontenttype": "b/b"}, N={}))
    endpoint = {"messagegroups": ["/messagegroups/G", "b/b.json#/messagegroups/G"]}
    source = write(tmp_path / "a.json", {**group(M={"datacontenttype": "a/a"}), "endpoints": {"e": endpoint}})
    catalog = load([source])
    theirs = "b/b.json#/messagegroups/G"
    assert catalog.endpoints["/endpoints/e"].candidates == (M, f"{theirs}/messages/M", f"{theirs}/messages/N")
    assert catalog.endpoints["/endpoints/e"].messagegroups == ("/messagegroups/G", theirs)
    assert catalog.groups[theirs] == (f"{theirs}/messages/M", f"{theirs}/messages/N")
    assert catalog.definitions[f"{theirs}/messages/M"].protocol == "KAFKA"
    assert [each.datacontenttype for each in catalog.definitions.values()] == ["a/a", "b/b", None]
    assert rules(catalog) == []


def test_a_whole_document_means_its_only_group(tmp_path: Path) -> None:
    write(tmp_path / "b.json", group(M={}))
    endpoint = {"messagegroups": [{"uri": "b.json"}, {"uri": "none.json"}]}
    catalog = load([write(tmp_path / "a.json", {"endpoints": {"e": endpoint}})])
    assert catalog.endpoints["/endpoints/e"].candidates == (f"b.json#{M}",)
    assert rules(catalog) == ["dangling-group"]


def test_urls(web: Web, tmp_path: Path) -> None:
    web.routes["/dir/b.json"] = Reply(group(M={"basemessage": f"c.json#{M}"}))
    web.routes["/dir/c.json"] = Reply(group(M={"basemessage": f"{tmp_path}/local.json#{M}", "datacontenttype": "a/b"}))
    write(tmp_path / "local.json", group(M={"envelope": "CloudEvents/1.0"}))
    source = write(tmp_path / "a.json", group(M={"basemessage": f"{web.url}/dir/b.json#{M}"}))
    catalog = load([source], network=True)
    definition = catalog.definitions[M]
    assert definition.base == (f"{web.url}/dir/b.json#{M}", f"{web.url}/dir/c.json#{M}")
    assert (definition.datacontenttype, definition.envelope) == ("a/b", None)
    assert rules(catalog) == ["dangling-base"]
    assert rules(load([source])) == ["dangling-base"]


def test_a_message_in_a_live_registry(web: Web, tmp_path: Path) -> None:
    tree = {
        "messagegroups": {"G": {"protocol": "HTTP", "messages": {"B": {"basemessage": "/messagegroups/H/messages/b"}}}}
    }
    tree["messagegroups"]["H"] = {"messages": {"b": {"datacontenttype": "a/b"}}}
    registry = Registry(web, tree).open()
    source = write(tmp_path / "a.json", group(M={"basemessage": f"{registry.url}/messagegroups/G/messages/B"}))
    definition = load([source], network=True).definitions[M]
    assert definition.protocol == "HTTP"
    assert definition.base[0] == f"{registry.url}/messagegroups/G/messages/B"


def test_what_cannot_be_reached_now_is_pending(web: Web, tmp_path: Path) -> None:
    web.routes["/b.json"] = Reply("", 503)
    address = f"{web.url}/b.json"
    content = group(M={"basemessage": f"{address}#{M}", "datacontenttype": "a/b"}, N={"xref": f"{address}#{M}2"})
    endpoint = {"messagegroups": [f"{address}#/messagegroups/X"]}
    source = write(tmp_path / "a.json", {**content, "endpoints": {"e": endpoint}})
    catalog = load([source], network=True)
    assert list(catalog.definitions) == [M]
    assert catalog.pending == (address,)
    assert rules(catalog) == ["unreachable-reference"] * 3
    assert web.asked == [("/b.json", 503)]
    web.routes["/b.json"] = Reply(group(M={}))
    assert load([source], network=True).pending == ()


def test_documents_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "MAX_EXTERNAL_DOCUMENTS", 5)
    for number in range(10):
        write(tmp_path / f"{number}.json", group(M={"basemessage": f"{number + 1}.json#{M}"}))
    fetcher = Fetcher(network=False)
    catalog = load([tmp_path / "0.json"], fetcher=fetcher)
    assert len(catalog.definitions[M].base) == 5
    assert "more than 5 documents" in next(f.message for f in catalog.findings if f.rule == "dangling-base")


def test_findings_of_what_is_used_and_no_others(tmp_path: Path) -> None:
    bad = {"envelopemetadata": "x"}
    write(tmp_path / "b.json", group(M=bad, N=bad))
    catalog = load([write(tmp_path / "a.json", group(M={"basemessage": f"b.json#{M}"}))])
    assert [f.pointer for f in catalog.findings if f.rule == "wrong-shape"] == [f"{M}/envelopemetadata"]


@pytest.mark.parametrize(
    "document", ["x" * 6000, "a\0b", "pipe", "..", "http://[x", "urn:x:y", "C:\\x", "%ff", "//h/x"]
)
def test_addresses_that_lead_nowhere(tmp_path: Path, document: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    content = group(M={"basemessage": f"{document}#{M}"}, N={"uri": f"{document}/messagegroups/G/messages/X"})
    endpoint = {"messagegroups": [f"{document}#/messagegroups/X", f"{document}/messagegroups/X", f"{document}.json"]}
    catalog = load([write(tmp_path / "a.json", {**content, "endpoints": {"e": endpoint}})])
    assert list(catalog.definitions) == [M]
    assert sorted(rules(catalog)) == ["dangling-base", "dangling-borrow", *["dangling-group"] * 3]
