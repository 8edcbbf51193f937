"""A shop whose messages end as every kind of dead letter, and the catalog that mends what can be mended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from bindings.inbox import Inbox
from bindings.parts import InboxRow, Part
from tests.support.router import RouterProcess

SHOP: Final = "/endpoints/shop"
EMPTY: Final = "/endpoints/empty"
SENT: Final = 1_767_323_045_123_456
MENDABLE: Final = ("no-candidates", "no-match", "ambiguous", "schema-violation", "unmappable", "sink-rejected")
LASTING: Final = ("invalid-cloudevent", "undecodable", "oversized")
COMMAND_SECONDS: Final = 240.0


def event(kind: str, **more: Any) -> dict[str, Any]:
    """Return a definition of events of one type."""
    return {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": kind}}, **more}


def catalog(*, mended: bool) -> dict[str, Any]:
    """Return the shop's catalog, before or after somebody looked at the dead letters."""
    schema = {"type": "object"} if mended else {"type": "object", "required": ["n", "price"]}
    made: dict[str, Any] = {"type": {"value": "native"}}
    messages = {
        "good": event("good"),
        "picky": event("picky"),
        "twin": event("twin"),
        "checked": event("checked", dataschemaformat="JsonSchema/draft-07", dataschema=schema),
        "native": {
            "envelope": "CloudEvents/1.0",
            "envelopemetadata": made if mended else {**made, "subject": {"value": "{nobody}", "type": "uritemplate"}},
            "protocol": "HTTP",
            "protocoloptions": {"path": {"value": "/native", "type": "string"}},
        },
    }
    messages.update({"late": event("late")} if mended else {"brother": event("twin")})

    def endpoint(path: str, *groups: str) -> dict[str, Any]:
        return {
            "usage": "consumer",
            "protocol": "HTTP",
            "protocoloptions": {"options": {"path": path, "method": "POST"}},
            "messagegroups": [f"/messagegroups/{group}" for group in groups],
        }

    return {
        "messagegroups": {"G": {"messages": messages}},
        "endpoints": {"shop": endpoint("/shop", "G"), "empty": endpoint("/empty", *(["G"] if mended else []))},
    }


def records(reason: str, numbers: Iterable[int]) -> Iterator[InboxRow]:
    """Yield records that end as dead letters for that reason under the first catalog; ``good`` do not."""
    kinds = {"no-match": "late", "ambiguous": "twin", "schema-violation": "checked", "sink-rejected": "picky"}
    for n in numbers:
        endpoint = EMPTY if reason == "no-candidates" else SHOP
        headers = {"ce-specversion": "1.0", "ce-id": f"id-{n}", "ce-source": "/s", "ce-type": kinds.get(reason, "good")}
        headers["content-type"] = "application/json"
        path, body = "/shop", json.dumps({"n": n}).encode()
        if reason == "invalid-cloudevent":
            del headers["ce-source"]
        elif reason == "undecodable":
            headers, body = {"content-type": "application/cloudevents+json"}, b"{no event"
        elif reason == "unmappable":
            headers, path = {"content-type": "application/json"}, "/native"
        parts = [Part("method", b"POST"), Part("path", path.encode())]
        parts += [Part(f"headers.{name}", value.encode()) for name, value in headers.items()]
        if reason == "oversized":
            parts, body = [*parts, Part("oversized", b"9999999")], b""
        yield InboxRow(endpoint, "HTTP", SENT + n, parts, body or None)


def fill(state: Path, rows: Iterable[InboxRow]) -> None:
    """Store records in the inbox of a router that is not running yet."""
    inbox = Inbox(state / "inbox", partitions=4)
    inbox.append_many(list(rows)).result(60)
    inbox.close()


def settings(folder: Path, hook: str, **more: Any) -> dict[str, Any]:
    """Return settings with a table for all events, a webhook for some, and a table of dead letters."""
    return {
        "catalog": {"source": str(folder / "catalog.json"), "poll": "200ms"},
        "sources": [{"endpoint": SHOP}, {"endpoint": EMPTY}],
        "http": {"port": 0},
        "match": {"validate": "always"},
        "sinks": {
            "lake": {"type": "table", "path": str(folder / "lake")},
            "hook": {"type": "http", "url": hook},
            "dead": {"type": "table", "path": str(folder / "dead")},
        },
        "routes": [{"when": {"message": "*/picky"}, "to": ["lake", "hook"]}, {"to": ["lake"]}],
        "dead_letters": {"sinks": ["dead"]},
        **more,
    }


def write_catalog(folder: Path, *, mended: bool) -> None:
    """Write the catalog, as an editor does: at once."""
    fresh = folder / ".catalog.json"
    fresh.write_text(json.dumps(catalog(mended=mended)))
    fresh.replace(folder / "catalog.json")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table; none when there is no table yet."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return found


def command(
    router: RouterProcess, *words: str, module: tuple[str, ...] = ("router",)
) -> subprocess.CompletedProcess[str]:
    """Run ``xrouter WORDS`` and wait for its end; ``CONFIG`` stands for the router's settings file."""
    told = [str(router.config) if word == "CONFIG" else word for word in words]
    return subprocess.run(
        [sys.executable, "-m", *module, *told], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )


def answer(router: RouterProcess, *words: str) -> Any:
    """Run a command that ends well, and return the JSON that it writes."""
    done = command(router, *words, "--format", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def without_none(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that say something."""
    return {name: value for name, value in told.items() if value}
