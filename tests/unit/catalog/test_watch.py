"""The watcher: each change once, good, refused or waiting, and never before its time."""

from __future__ import annotations

import json
from pathlib import Path

from catalog.documents.documents import UnconfirmedCatalog
from catalog.load import CatalogWatcher, PendingCatalog, RejectedCatalog, load
from catalog.model import Catalog
from tests.support.registry import Registry
from tests.support.web import Reply, serving

M = "/messagegroups/g/messages/m"


def write(path: Path, content_type: str, base: str | None = None) -> None:
    message = {"datacontenttype": content_type, "basemessage": base}
    path.write_text(json.dumps({"messagegroups": {"g": {"messages": {"m": message}}}}))


class Looks:
    """A watcher whose next look is due, unless it follows sooner than 5 seconds."""

    def __init__(self, source: Path | str, current: Catalog | None = None) -> None:
        self._now = 0.0
        self._watcher = CatalogWatcher([source], 5.0, network=True, current=current, clock=lambda: self._now)

    def next(self, after: float = 5.0) -> Catalog | RejectedCatalog | PendingCatalog | UnconfirmedCatalog | None:
        self._now += after
        return self._watcher.poll()

    def catalog(self) -> Catalog:
        found = self.next()
        assert isinstance(found, Catalog)
        return found

    @property
    def awaited(self) -> tuple[str, ...]:
        return self._watcher.awaited

    @property
    def doubts(self) -> tuple[str, ...]:
        return self._watcher.doubts


def test_each_change_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write(path, "a/b")
    looks = Looks(path, load([path]))
    assert looks.next() is None
    write(path, "c/d")
    assert looks.next(0.0) is None, "it is not due"
    assert looks.catalog().definitions[M].datacontenttype == "c/d"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    assert looks.next() is None
    write(path, "e/f", base=M)
    refused = looks.next()
    assert isinstance(refused, RejectedCatalog) and [finding.rule for finding in refused.errors] == ["base-cycle"]
    assert looks.next() is None
    path.unlink()
    assert isinstance(looks.next(), RejectedCatalog)
    assert looks.next() is None
    write(path, "g/h")
    looks.catalog()


def test_a_catalog_without_definitions_is_refused_and_what_it_was_before_is_told(tmp_path: Path) -> None:
    source = tmp_path / "c.json"
    write(source, "a/b")
    looks = Looks(source, load([source]))
    assert looks.next() is None
    source.write_text(json.dumps({"messagegroups": {"g": {"messages": {}}}}))
    assert isinstance(looks.next(), UnconfirmedCatalog)
    refused = looks.next()
    assert isinstance(refused, RejectedCatalog) and [each.rule for each in refused.errors] == ["no-definitions"]
    assert looks.next() is None
    write(source, "a/b")
    looks.catalog()


def test_waking_looks_at_once_and_a_flood_of_it_twice_a_second(tmp_path: Path) -> None:
    source, now = tmp_path / "c.json", [0.0]
    write(source, "a/b")
    watcher = CatalogWatcher([source], 3600.0, current=load([source]), clock=lambda: now[0])
    assert (watcher.poll(), watcher.due) == (None, False)
    now[0], looks = 100.0, []
    for step in range(100):
        now[0] = 100.0 + step / 50
        write(source, f"c/v{step}")
        watcher.wake()
        if isinstance(watcher.poll(), Catalog):
            looks.append(now[0])
    assert looks == [100.0, 100.5, 101.0, 101.5]
    now[0] += 0.5
    last = watcher.poll()
    assert isinstance(last, Catalog) and last.definitions[M].datacontenttype == "c/v99"
    assert not watcher.due
    now[0] += 3600.0
    assert watcher.due


def test_what_the_sources_refer_to_is_watched(tmp_path: Path) -> None:
    source, base = tmp_path / "cat" / "c.json", tmp_path / "base.json"
    source.parent.mkdir()
    write(source, "a/b", base=f"../base.json#{M}")
    looks = Looks(source, load([source]))
    assert looks.next() is None
    base.write_text(json.dumps({"messagegroups": {"g": {"envelope": "CloudEvents/1.0", "messages": {"m": {}}}}}))
    found = looks.catalog()
    assert found.definitions[M].envelope == "CloudEvents/1.0"
    assert looks.next() is None
    base.unlink()
    looks.catalog()


def test_folders_are_watched(tmp_path: Path) -> None:
    write(tmp_path / "c.json", "a/b")
    looks = Looks(tmp_path, load([tmp_path]))
    assert looks.next() is None
    part = tmp_path / "messagegroups" / "g" / "messages" / "n" / "index.json"
    part.parent.mkdir(parents=True)
    part.write_text(json.dumps({"datacontenttype": "c/d"}))
    found = looks.catalog()
    assert set(found.definitions) == {M, "/messagegroups/g/messages/n"}


def test_a_registry_is_watched_at_the_cost_of_a_304() -> None:
    with serving() as web:
        tree = {"messagegroups": {"g": {"messages": {"m": {"datacontenttype": "a/b"}}}}}
        registry = Registry(web, tree).open()
        looks = Looks(registry.url, load([registry.url], network=True))
        assert looks.next() is None
        web.statuses()
        assert looks.next() is None
        assert set(web.statuses()) == {304}
        tree["messagegroups"]["g"]["messages"]["m"]["datacontenttype"] = "c/d"
        found = looks.catalog()
        assert found.definitions[M].datacontenttype == "c/d"
        good, web.routes["/reg"] = web.routes["/reg"], Reply("", 503)
        assert looks.next() == PendingCatalog((registry.url,)) and looks.awaited == (registry.url,)
        assert looks.next() is None
        web.routes["/reg"] = Reply("{", 200)
        assert isinstance(looks.next(), RejectedCatalog) and not looks.awaited
        web.routes["/reg"] = good
        assert looks.next() == found, "what is good again is told once"
        assert looks.next() is None


def test_a_catalog_that_could_not_be_read_when_it_was_taken_is_told_when_it_can(tmp_path: Path) -> None:
    source = tmp_path / "c.json"
    write(source, "a/b")
    watcher = CatalogWatcher([source], 0.0, current=load([source]), unread=True)
    assert watcher.poll() == load([source])
    assert watcher.poll() is None


def test_a_catalog_waits_for_what_cannot_be_reached(tmp_path: Path) -> None:
    source = tmp_path / "c.json"
    write(source, "a/b")
    with serving() as web:
        address = f"{web.url}/base.json"
        web.routes["/base.json"] = Reply("", 503)
        looks = Looks(source, load([source]))
        assert looks.next() is None
        write(source, "c/d", base=f"{address}#/messagegroups/g/messages/x")
        assert looks.next() == PendingCatalog((address,))
        assert looks.next() is None
        assert looks.awaited == (address,)
        source.write_text("{")
        assert isinstance(looks.next(), RejectedCatalog)
        assert not looks.awaited
        write(source, "c/d", base=f"{address}#/messagegroups/g/messages/x")
        assert looks.next() == PendingCatalog((address,))
        web.routes["/base.json"] = Reply({"messagegroups": {"g": {"protocol": "KAFKA", "messages": {"x": {}}}}})
        found = looks.catalog()
        assert (found.pending, found.definitions[M].protocol) == ((), "KAFKA")
        assert not looks.awaited


def test_waiting_ends_with_what_is_known_never_to_come(tmp_path: Path) -> None:
    source = tmp_path / "c.json"
    write(source, "a/b")
    with serving() as web:
        web.routes["/base.json"] = Reply("", 503)
        looks = Looks(source, load([source]))
        write(source, "c/d", base=f"{web.url}/base.json#/messagegroups/g/messages/x")
        assert isinstance(looks.next(), PendingCatalog)
        del web.routes["/base.json"]
        found = looks.catalog()
        assert found.definitions[M].datacontenttype == "c/d"


def test_a_first_catalog_does_not_wait(tmp_path: Path) -> None:
    with serving() as web:
        web.routes["/base.json"] = Reply("", 503)
        write(tmp_path / "c.json", "a/b", base=f"{web.url}/base.json#/messagegroups/g/messages/x")
        found = Looks(tmp_path / "c.json").catalog()
        assert found.pending == (f"{web.url}/base.json",)


def messages(path: Path, *names: str) -> None:
    told = {name: {"envelope": "CloudEvents/1.0", "datacontenttype": f"a/{len(names)}"} for name in names}
    path.write_text(json.dumps({"messagegroups": {path.stem: {"messages": told}}}))


def test_a_source_that_lost_most_of_its_definitions_waits_for_a_second_look(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    messages(one, *"abcdefgh")
    messages(other, "a", "b")
    looks = Looks(tmp_path, load([tmp_path]))
    assert looks.next() is None
    messages(other, "a")  # half of one document, which is not more than half
    looks.catalog()
    messages(one, *"abc")
    doubted = looks.next()
    assert isinstance(doubted, UnconfirmedCatalog) and f"{one} has 3 definitions, down from 8" in doubted.reasons
    assert looks.doubts == doubted.reasons
    messages(one, *"abcdefgh")
    assert looks.next() is None and looks.doubts == (), "the rest was written meanwhile"
    messages(one, *"ab")
    assert isinstance(looks.next(), UnconfirmedCatalog)
    taken = looks.catalog()
    assert len(taken.definitions) == 3 and looks.doubts == ()
    assert looks.next() is None


def test_a_first_look_compares_with_the_catalog_in_use(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    messages(path, *"abcdefgh")
    active = load([path])
    messages(path, "a")
    looks = Looks(path, active)
    assert isinstance(looks.next(), UnconfirmedCatalog) and isinstance(looks.next(), Catalog)


def test_a_yaml_file_cut_off_in_mid_line_is_not_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    whole = "messagegroups:\n  g:\n    messages:\n" + "".join(
        f"      m{number}: {{envelope: CloudEvents/1.0}}\n" for number in range(4)
    )
    path.write_text(whole)
    looks = Looks(path, load([path]))
    assert looks.next() is None
    longer = whole + "      m4: {datacontenttype: a/b}\n      m5:\n        datacontenttype: text/plain\n"
    path.write_text(longer[:-6])  # good YAML that means something else
    doubted = looks.next()
    assert doubted == UnconfirmedCatalog((f"{path} does not end with a complete line",))
    path.write_text(longer)
    taken = looks.catalog()
    assert taken.definitions["/messagegroups/g/messages/m5"].datacontenttype == "text/plain"
    path.write_text(longer[:-1])  # meant so: some editors write no newline at the end
    assert looks.next() is None, "the meaning is the same"
    path.write_text(longer + "      m6: {envelope: CloudEvents/1.0}")
    assert isinstance(looks.next(), UnconfirmedCatalog) and isinstance(looks.next(), Catalog)
