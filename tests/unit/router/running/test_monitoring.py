"""A start while the registry is away goes by the catalog that was in force last, and says so until it was read."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from catalog.model import Catalog
from router.errors import CatalogUnavailable
from router.evaluation.plan import Plan
from router.overview.overview import Overview
from router.running.monitoring import Monitoring, SavedCatalog, load_startup_catalog
from router.running.reload import Reloader
from router.settings import Settings, settings_from_dict
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.waiting import wait_until
from tests.support.web import Reply, serving

LIMIT = 60.0


def document(*names: str, base: str | None = None) -> dict[str, Any]:
    message = {"envelope": "CloudEvents/1.0", **({} if base is None else {"basemessage": base})}
    return {"messagegroups": {"g": {"messages": {name: message for name in names}}}}


def settings_of(folder: Path, *sources: str, poll: str = "10ms") -> Settings:
    told = {
        "catalog": {"source": list(sources), "poll": poll, "allow_addresses": ["*"]},
        "sinks": {"lake": {"type": "table", "path": "lake"}, "dead": {"type": "table", "path": "dead"}},
        "routes": [{"to": ["lake"]}],
        "dead_letters": {"sinks": ["dead"]},
        "state": str(folder / "state"),
    }
    return settings_from_dict(told, {}, folder)


class Watched:
    """What watchers see of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metrics, self.status = settings, Metrics(), RouterStatus(routes=False)
        overview = Overview(settings, self.metrics, self.status, None)
        self.monitored = Monitoring(self.metrics, self.status, 0, overview, SavedCatalog(settings))

    def started(self) -> tuple[Catalog, str]:
        loaded = load_startup_catalog(self.settings, threading.Event(), self.monitored)
        assert loaded is not None
        self.monitored.show_plan(Plan(loaded[0], self.settings), [], stale=loaded[1])
        return loaded

    @property
    def reasons(self) -> list[str]:
        found: list[str] = self.status.check_readiness()[1]["reasons"]
        return found


@pytest.mark.parametrize("poll", ["10ms", "0"])
def test_the_last_good_catalog_is_taken_while_the_registry_is_away(tmp_path: Path, poll: str) -> None:
    with serving() as web:
        url = f"{web.url}/c.json"
        settings = settings_of(tmp_path, url, poll=poll)
        web.routes["/c.json"] = Reply("", 503)
        with pytest.raises(CatalogUnavailable):
            Watched(settings).started()  # nothing was in force before

        web.routes["/c.json"] = Reply(document("a"))
        first = Watched(settings)
        before, stale = first.started()
        assert (stale, first.reasons) == ("", [])

        web.routes["/c.json"] = Reply("", 503)
        again = Watched(settings)
        catalog, stale = again.started()
        assert catalog == before
        assert again.reasons == [stale] and url in stale and "the last valid one, saved 20" in stale
        assert again.status.check_readiness()[1]["catalog"]["awaited"] == [url]

        reloader = Reloader(settings, Plan(catalog, settings), again.metrics, again.status, unread=True)
        reloader.poll()
        assert again.reasons == [stale] and again.status.check_readiness()[1]["catalog"]["awaited"] == [url]
        web.routes["/c.json"] = Reply(document("a"))
        if poll != "0":
            wait_until(lambda: reloader.poll() is None and not again.reasons, LIMIT, "the catalog to be read")
            assert again.status.count_pending()["awaited"] == 0
        else:
            assert not reloader.is_due and reloader._interval > 0


def test_a_catalog_that_refers_to_what_is_away_gives_way_to_the_last_good_one(tmp_path: Path) -> None:
    source = tmp_path / "c.json"
    with serving() as web:
        settings = settings_of(tmp_path, str(source))
        source.write_text(json.dumps(document("a")))
        before, _ = Watched(settings).started()
        web.routes["/b.json"] = Reply("", 503)
        source.write_text(json.dumps(document("a", "b", base=f"{web.url}/b.json#/messagegroups/g/messages/x")))
        again = Watched(settings)
        catalog, stale = again.started()
        assert catalog == before and f"{web.url}/b.json" in stale


@pytest.mark.parametrize("what", ["gone", "others", "damaged", "version"])
def test_what_waiting_does_not_mend_ends_a_start(tmp_path: Path, what: str) -> None:
    with serving() as web:
        web.routes["/c.json"] = Reply(document("a"))
        settings = settings_of(tmp_path, f"{web.url}/c.json")
        Watched(settings).started()
        kept = tmp_path / "state" / "catalog.json"
        web.routes["/c.json"] = Reply("", 503)
        if what == "gone":
            del web.routes["/c.json"]
        elif what == "others":
            web.routes["/d.json"] = Reply("", 503)
            settings = settings_of(tmp_path, f"{web.url}/d.json")
        elif what == "damaged":
            kept.write_bytes(kept.read_bytes()[:100])
        else:
            kept.write_text(json.dumps({**json.loads(kept.read_text()), "version": "0"}))
        with pytest.raises(CatalogUnavailable):
            Watched(settings).started()


def test_a_users_password_is_not_written_down(tmp_path: Path) -> None:
    with serving() as web:
        web.routes["/c.json"] = Reply(document("a"))
        url = web.url.replace("//", "//user:secret-of-mine@")
        Watched(settings_of(tmp_path, f"{url}/c.json")).started()
        assert "secret-of-mine" not in (tmp_path / "state" / "catalog.json").read_text()
