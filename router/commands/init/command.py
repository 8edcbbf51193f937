"""``xrouter init``: settings, a catalog and brokers to start from, in a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from catalog.convert import json_text
from router.commands.arguments import schema_option
from router.commands.documents import write_text
from router.commands.init.protocols import PROTOCOLS, First, catalog_of
from router.commands.init.texts import (
    CATALOG_NAME,
    COMPOSE_NAME,
    SCHEMA_COPY,
    SETTINGS_NAME,
    compose_text,
    settings_text,
)
from router.errors import RouterError
from router.terminal import say


def _settings_schema() -> bytes:
    from router.settings.json_schema import packaged_schema

    return packaged_schema()


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go; it is made.")] = Path(),
    http: Annotated[
        bool, typer.Option("--http", help="Take messages over HTTP; also when no protocol is named.")
    ] = False,
    kafka: Annotated[bool, typer.Option("--kafka", help="Read a Kafka topic.")] = False,
    mqtt: Annotated[bool, typer.Option("--mqtt", help="Subscribe to MQTT topics.")] = False,
    amqp: Annotated[bool, typer.Option("--amqp", help="Receive from an AMQP 1.0 node.")] = False,
    nats: Annotated[bool, typer.Option("--nats", help="Subscribe to NATS subjects.")] = False,
    _schema: Annotated[bool, schema_option("settings files", _settings_schema)] = False,
) -> None:
    """Write commented settings, a first catalog and a compose file of the brokers, and say what to do next.

    Nothing is written over. What is written passes `xrouter check`, and runs.

    Example: xrouter init garden --mqtt --http
    """
    asked = {"http": http, "kafka": kafka, "mqtt": mqtt, "amqp": amqp, "nats": nats}
    chosen = [each for each in PROTOCOLS if asked[each.name]] or [each for each in PROTOCOLS if each.name == "http"]
    written = _files(chosen)
    taken = [name for name in written if (folder / name).exists()]
    if taken:
        hint = "name another folder, or move them away: nothing is written over"
        raise RouterError(f"{folder / taken[0]} is there already", hint=hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RouterError(f"{folder} cannot be made: {error.strerror}", hint="name another folder") from error
    for name, text in written.items():
        write_text(text, folder / name)
    say(_next(folder, chosen, written))


def _files(chosen: list[First]) -> dict[str, str]:
    texts = {
        SETTINGS_NAME: settings_text(chosen),
        CATALOG_NAME: json_text(catalog_of(chosen)),
        COMPOSE_NAME: compose_text(chosen),
        SCHEMA_COPY: _settings_schema().decode("utf-8"),
    }
    return {name: text for name, text in texts.items() if text}


def _next(folder: Path, chosen: list[First], written: dict[str, str]) -> str:
    program = Path(sys.argv[0]).name if Path(sys.argv[0]).name == "xrouter" else "python -m router"
    steps = [(f"cd {folder}", "")] if folder != Path() else []
    if COMPOSE_NAME in written:
        steps.append(("docker compose up -d", "or have brokers of your own in the catalog"))
    steps.append((f"{program} check {CATALOG_NAME} --config {SETTINGS_NAME}", ""))
    steps.append((f"{program} run {SETTINGS_NAME}", "until Ctrl-C, which drains"))
    if any(each.name == "http" for each in chosen):
        sent = "curl -d '{\"percent\": 41}' -H 'Content-Type: application/json' localhost:8080/beds/7/moisture"
        steps.append((sent, ""))
    steps.append((f"{program} dead-letters list {SETTINGS_NAME}", "what no definition took, and why"))
    width = max(len(step) for step, note in steps if note)
    lines = [f"  {step:{width}}   # {note}" if note else f"  {step}" for step, note in steps]
    return "\n".join([f"wrote {', '.join(written)}", "", "next:", *lines])
