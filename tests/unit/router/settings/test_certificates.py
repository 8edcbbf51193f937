"""The certificates that the settings name, by their keys."""

from __future__ import annotations

from pathlib import Path

from router.settings import settings_from_dict
from router.settings.model import find_certificates


def test_all_that_are_ours_are_found(tmp_path: Path) -> None:
    ours = {"cert": "c.pem", "key": "k.pem"}
    kafka = {"type": "kafka", "bootstrap_servers": "SSL://h:1", "topic": "t"}
    told = {
        "catalog": {"source": "c.json", "logins": [{"url": "https://h", "tls": ours}]},
        "sources": [{"endpoint": "/endpoints/a"}, {"endpoint": "/endpoints/b", "tls": {**ours, "ca": "ca.pem"}}],
        "sinks": {"bus": {**kafka, "tls": ours}, "dead": {**kafka, "tls": {"ca": "ca.pem"}}},
        "routes": [{"to": ["bus"]}],
        "dead_letters": {"sinks": ["dead"]},
        "http": {"tls": {**ours, "cert": "http.pem"}},
    }
    found = find_certificates(settings_from_dict(told, {}, tmp_path))
    assert found == {
        "catalog.logins.0.tls": tmp_path / "c.pem",
        "sources.1.tls": tmp_path / "c.pem",
        "sinks.bus.tls": tmp_path / "c.pem",
        "http.tls": tmp_path / "http.pem",
    }
