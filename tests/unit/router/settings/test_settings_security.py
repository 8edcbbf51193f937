"""Logins and certificates in the settings: what contradicts itself is refused by name, and no secret is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.commands.check.command import collect_findings
from router.errors import ConfigError
from router.settings import KafkaSink, load_settings
from router.sources import make_inbox_client

KAFKA = "sources: [{endpoint: /endpoints/a, username: u, password: '${P}', %s}]"
SINK = "sinks: {k: {type: kafka, bootstrap_servers: k, topic: t, %s}, e: {type: jsonl}}\nroutes: [{to: e}]"
LOGIN = "catalog: {logins: [%s]}"
REGISTRY = "schema_registries: {lake: {url: 'https://r/apis', %s}}"
INBOX = "inbox: {kafka: {bootstrap_servers: k, topic: t, %s}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KAFKA % "sasl: scram", "sources.0.sasl: input should be 'plain', 'scram-sha-256', 'scram-sha-512' or"),
        (KAFKA % "sasl: oauthbearer", "sources.0.token_endpoint: is required with sasl: oauthbearer"),
        (KAFKA % "token_scope: s", "sources.0.token_scope: is for sasl: oauthbearer only"),
        (KAFKA % "sasl: plain, token_endpoint: 'https://i'", "sources.0.token_endpoint: is for sasl: oauthbearer only"),
        (KAFKA % "sasl: oauthbearer, token_endpoint: idp", "sources.0.token_endpoint: string should match pattern"),
        (KAFKA % "kafka: {sasl.mechanism: PLAIN}", "sources.0.kafka.sasl.mechanism: is known to only one"),
        (KAFKA % "kafka: {ssl.endpoint.identification.algorithm: ''}", "host names are always verified"),
        (SINK % "sasl: plain", "sinks.k.sasl: requires username and password"),
        (INBOX % "username: u", "inbox.kafka.password: is required with username"),
        (INBOX % "password: hush", "inbox.kafka.password: a secret must not be in plain text"),
        (INBOX % "options: {sasl.jaas.config: hush}", "a secret must not be in plain text"),
        (INBOX % "options: {group.id: g}", "inbox.kafka.options.group.id: is set by the router"),
        (KAFKA % "uris: 'amqp://h', tls: {}", "sources.0.uris: has an address without TLS, but tls is set"),
        (LOGIN % "{url: 'https://r', bearer: hush}", "catalog.logins.0.bearer: a secret must not be in plain text"),
        (LOGIN % "{url: 'https://r', username: u}", "catalog.logins.0.password: is required with username"),
        (LOGIN % "{url: 'https://r'}", "catalog.logins.0: has no credentials"),
        (
            LOGIN % "{url: 'https://r', bearer: '${P}', bearer_file: f}",
            "catalog.logins.0.bearer_file: and bearer are two ways to log in",
        ),
        (LOGIN % "{url: 'https://r', bearer: '${P}', token_scope: s}", "0.token_scope: requires token_endpoint"),
        (
            LOGIN % "{url: 'https://r', bearer: '${P}', token_endpoint: 'https://i'}",
            "0.username: is required with token",
        ),
        (REGISTRY % "bearer: hush", "schema_registries.lake.bearer: a secret must not be in plain text"),
        (REGISTRY % "password: '${P}'", "schema_registries.lake.username: is required with password"),
        (REGISTRY % "bearer: '${P}', bearer_file: f", "lake.bearer_file: and bearer are two ways to log in"),
        (
            "schema_registries: {lake: {url: 'http://r', username: u, password: '${P}'}}",
            "schema_registries.lake.allow_plaintext_password: http://r would receive a secret in plain text",
        ),
        ("schema_registries: {lake: {url: 'https://u:p@r'}}", "schema_registries.lake.url: string should match"),
        ("schema_registries: {'a/b': {url: 'https://r'}}", "schema_registries.a/b: is not a valid name"),
        (
            "schema_registries: {a: {url: 'https://a'}, b: {url: 'https://b'}}",
            "none of several has default: true",
        ),
        (
            "schema_registries: {a: {url: 'https://a', default: true}, b: {url: 'https://b', default: true}}",
            "schema_registries.b.default: a is the default, too",
        ),
        (
            REGISTRY % "" + "\nsources: [{endpoint: /endpoints/a, schema_registry: sea}]",
            "sources.0.schema_registry: schema registry sea not found; known: lake",
        ),
        (
            "sources: [{endpoint: /endpoints/a, schema_registry: sea}]",
            "sources.0.schema_registry: schema registry sea not found; none are configured; add schema_registries",
        ),
        (LOGIN % "{url: 'https://r/reg', bearer: '${P}'}", "catalog.logins.0.url: string should match pattern"),
        (LOGIN % "{url: 'https://u@r', bearer: '${P}'}", "catalog.logins.0.url: string should match pattern"),
        (LOGIN % "{url: 'https://r', tls: {key: k}}", "catalog.logins.0.tls.cert: is required with key"),
        (LOGIN % "{url: 'http://r', tls: {}}", "catalog.logins.0.tls: has no effect with http://"),
        (LOGIN % "{url: 'https://r:443', tls: {}}, {url: 'https://R/', tls: {}}", "https://r already has a login"),
        (
            LOGIN % "{url: 'http://r', bearer: '${P}'}",
            "http://r would receive a secret in plain text; use an address with",
        ),
        (
            LOGIN % "{url: 'https://r', username: u, password: '${P}', token_endpoint: 'http://i/t'}",
            "http://i would receive the client secret in plain text",
        ),
        (
            "catalog: {source: 'https://u:p@r/c', logins: [{url: 'https://r', bearer: '${P}'}]}",
            "catalog.source: has a user in its URL, and catalog.logins has a login for it",
        ),
        ("sinks: {a: {type: amqp, uri: 'AMQP://h', node: n, tls: {}}}", "sinks.a.uri: has an address without TLS"),
        ("http: {auth: {basic: {u: hush}}}", "http.auth.basic.u: a secret must not be in plain text"),
        ("metrics: {token: hush}", "metrics.token: a secret must not be in plain text"),
        ("telemetry: {otlp: {endpoint: 'https://o', headers: {cookie: hush}}}", "headers.cookie: a secret must not be"),
        ("sinks: {h: {type: http, url: 'https://h', api_key: hush}}", "sinks.h.api_key: a secret must not be in plain"),
        (
            "sources: [{endpoint: /endpoints/a, subscription: {sink: 'https://u', token: hush}}]",
            "sources.0.subscription.token: a secret must not be in plain text",
        ),
    ],
)
def test_faults_name_key_and_remedy(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file, {"P": "hush"})
    assert any(expected in line for line in (*caught.value.problems, str(caught.value))), caught.value.problems
    assert "hush" not in str(caught.value)


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


def test_credentials_in_plain_text_are_a_finding(tmp_path: Path) -> None:
    catalog, file = tmp_path / "catalog.json", tmp_path / "router.yaml"
    catalog.write_text('{"endpoints": {"a": {"usage": ["consumer"], "protocol": "HTTP"}}}')
    file.write_text(
        "sources: [{endpoint: /endpoints/a}]\nhttp: {host: 10.0.0.1, auth: {basic: {u: 'file:router.yaml'}}}"
    )
    (found,) = (each for each in collect_findings([str(catalog)], file)[0] if each.rule == "plain-text-credentials")
    assert (found.severity, found.pointer) == ("warning", "/http/tls")
    assert "10.0.0.1" in found.message
