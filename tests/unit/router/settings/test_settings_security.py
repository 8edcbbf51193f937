"""Logins and certificates in the settings: what contradicts itself is refused by name, and no secret is told."""

from __future__ import annotations

from pathlib import Path

from router.settings import KafkaSink, load_settings
from router.sources import make_inbox_client

SINK = "sinks: {k: {type: kafka, bootstrap_servers: k, topic: t, %s}, e: {type: jsonl}}\nroutes: [{to: e}]"
INBOX = "inbox: {kafka: {bootstrap_servers: k, topic: t, %s}}"


def test_files_of_logins_are_found_beside_the_settings(tmp_path: Path) -> None:
    login = "username: u, password: '${P}', sasl: oauthbearer, token_endpoint: 'https://i/t', token_ca: i.pem"
    login += ", tls: {ca: c.pem}"
    file = tmp_path / "router.yaml"
    file.write_text(f"{SINK % login}\n{INBOX % login}")
    settings = load_settings(file, {"P": "hush"})
    sink, inbox = settings.sinks["k"], settings.inbox.kafka
    assert isinstance(sink, KafkaSink) and inbox is not None
    for client in (sink.cluster(), make_inbox_client(inbox)):
        assert client.login is not None and client.login.password == "hush"
        assert (client.ca, client.login.token_ca) == (str(tmp_path / "c.pem"), str(tmp_path / "i.pem"))
        assert "hush" not in repr(client)
    assert "hush" not in repr(settings) + str(settings.unresolved)
