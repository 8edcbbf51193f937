"""What a registry has of message groups, as far as replication keeps it alike in two of them."""

from __future__ import annotations

from typing import Any, Final

import httpx

_OWN: Final = ("self", "xid", "epoch", "createdat", "modifiedat", "messagesurl", "messagescount", "ancestorid")


def state_of(client: httpx.Client) -> dict[str, Any]:
    """Return all groups, definitions and versions, without what each registry has by itself: URLs, epochs and times."""
    answer = client.get("/messagegroups", params={"inline": "messages.versions", "limit": "1000"})
    answer.raise_for_status()
    found: dict[str, Any] = {}
    for name, group in answer.json().items():
        messages = group.pop("messages")
        versions = {
            f"{message}/{version}": {key: value for key, value in body.items() if key not in _OWN}
            for message, each in messages.items()
            for version, body in each["versions"].items()
        }
        found[name] = {**{key: value for key, value in group.items() if key not in _OWN}, "versions": versions}
    return found
