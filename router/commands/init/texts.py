"""The texts of the first files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from catalog.convert import yaml_text
from router.commands.init.protocols import First, compose_of

CATALOG_NAME: Final = "catalog.xreg.json"
SETTINGS_NAME: Final = "router.yaml"
SCHEMA_COPY: Final = "router.schema.json"
COMPOSE_NAME: Final = "compose.yaml"
_SETTINGS: Final = """\
# yaml-language-server: $schema=./{schema}
# Settings of `xrouter run {name}`. Unknown keys are errors, secrets are references (`${{NAME}}` or `file:/path`), and
# every key can be set by environment: XROUTER_METRICS__PORT=9000.

# The endpoints and definitions: a file, a folder, a registry's URL, or a list of them. Changes are taken while it runs.
catalog: {{source: ./{catalog}}}

# What is read: without this, every endpoint of the catalog whose usage is consumer. A login is given here:
#   {{endpoint: /endpoints/NAME, username: router, password: "${{PASSWORD}}"}}
# All topics of a Kafka cluster share a query, and so do HTTP, MQTT, AMQP and NATS: a sink that takes nothing of one
# holds all of these. `lane: NAME` gives a topic a query of its own; what is pushed is parted by another router.
sources:
{sources}

# Where events go: tables, files and brokers, several at once.
sinks:
  events: {{type: table, format: delta, path: ./data/events}}
  dead: {{type: table, format: delta, path: ./data/dead_letters}}
  # bus: {{type: kafka, bootstrap_servers: "localhost:9092", topic: "events.{{messagegroup}}"}}
  # show: {{type: jsonl, path: "-"}}

# The first route that takes an event says its sinks.
routes:
  # - {{when: {{message: "*.Moisture"}}, to: [events, show]}}
  - {{to: [events]}}

# Records that no definition takes, whole and with the reason: `xrouter dead-letters list {name}` shows them.
dead_letters: {{sinks: [dead]}}

# Checkpoints, unfinished batches and the inbox of gateways: keep it on a local disk, with what was written.
state: ./state

http: {{port: 8080}}      # where HTTP endpoints listen, on loopback; `host: 0.0.0.0` is for everybody
metrics: {{port: 9464}}   # status page at /, /metrics, /healthz and /readyz
match: {{validate: always}}   # every body must keep to its schema; `ambiguous`: schemas only tell definitions apart
# trigger: 500ms
"""
_COMPOSE: Final = """\
# Brokers to try {settings} with: `docker compose up -d`. Without passwords, on loopback only: for nothing but a try.
"""


def settings_text(chosen: Sequence[First]) -> str:
    """Return the settings of a router that reads the endpoints of these protocols."""
    sources = "\n".join(f"  - {{endpoint: /endpoints/{each.endpoint}}}" for each in chosen)
    return _SETTINGS.format(schema=SCHEMA_COPY, name=SETTINGS_NAME, catalog=CATALOG_NAME, sources=sources)


def compose_text(chosen: Sequence[First]) -> str:
    """Return the compose file; empty where no protocol needs a broker."""
    document = compose_of(chosen)
    return _COMPOSE.format(settings=SETTINGS_NAME) + yaml_text(document) if document else ""
