"""``xrouter init``: write settings, a catalog and a compose file to start from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from catalog.convert import to_json_text, to_yaml_text
from catalog.parsing.texts import read_table
from router.commands.arguments import schema_option, write_text
from router.errors import RouterError
from router.terminal import print_text

# The first catalog per protocol, and the broker to try it with.

GROUP: Final = "Garden"
Protocols = Mapping[str, Mapping[str, Any]]
"""Protocols of the generated files by name, as ``init.protocols.yaml`` describes them."""


def _read(name: str) -> str:
    return (files("router.commands") / name).read_text(encoding="utf-8")


PROTOCOLS: Final[Protocols] = read_table(__package__, "init.protocols.yaml", dict[str, dict[str, Any]])


def make_catalog(chosen: Protocols) -> dict[str, Any]:
    """Return a catalog with an endpoint per protocol, and one event that all of them carry."""
    event = read_table(__package__, "init.event.yaml", dict[str, Any])
    endpoints, groups = {}, {GROUP: {"messages": {f"{GROUP}.Moisture": event}}}
    for name, form in chosen.items():
        own = f"{GROUP}.{name.capitalize()}"
        where = {"endpoints": [{"uri": form["address"]}]} if "address" in form else {}
        endpoints[f"garden-{name}"] = {
            "usage": ["consumer"],
            "protocol": form["protocol"],
            "protocoloptions": {**where, "options": form["options"]},
            "messagegroups": [f"/messagegroups/{group}" for group in (GROUP, *([own] if "message" in form else []))],
        }
        if "message" in form:
            # It maps plain messages to the same event.
            message = {
                "description": f"The same, as a plain {name.upper()} message; the placeholder goes into the source.",
                "basemessage": f"/messagegroups/{GROUP}/messages/{GROUP}.Moisture",
                "envelope": "CloudEvents/1.0",
                "protocol": form["protocol"],
                "protocoloptions": form["message"],
            }
            groups[own] = {"messages": {f"{own}.Moisture": message}}
    return {"specversion": "1.0-rc4", "endpoints": endpoints, "messagegroups": groups}


def make_compose(chosen: Protocols) -> dict[str, Any]:
    """Return a compose file with the brokers of the protocols; empty when none needs a broker."""
    services = {name: service for form in chosen.values() for name, service in form.get("services", {}).items()}
    return {"services": services} if services else {}


# The texts of the generated files.

CATALOG_NAME: Final = "catalog.xreg.json"
SETTINGS_NAME: Final = "router.yaml"
SCHEMA_COPY: Final = "router.schema.json"
COMPOSE_NAME: Final = "compose.yaml"
_COMPOSE: Final = """\
# Brokers to try {settings} with: `docker compose up -d`. No passwords, loopback only: not for production.
"""


def _read_settings_schema() -> bytes:
    from router.settings.load import read_packaged_schema

    return read_packaged_schema()


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write to; created if missing.")] = Path(),
    http: Annotated[bool, typer.Option("--http", help="Receive messages over HTTP; the default.")] = False,
    kafka: Annotated[bool, typer.Option("--kafka", help="Consume a Kafka topic.")] = False,
    mqtt: Annotated[bool, typer.Option("--mqtt", help="Subscribe to MQTT topics.")] = False,
    amqp: Annotated[bool, typer.Option("--amqp", help="Receive from an AMQP 1.0 node.")] = False,
    nats: Annotated[bool, typer.Option("--nats", help="Subscribe to NATS subjects.")] = False,
    _schema: Annotated[bool, schema_option("settings files", _read_settings_schema)] = False,
) -> None:
    """Create settings, a first catalog and a compose file with the brokers, and print the next steps.

    No file is overwritten. The files pass `xrouter check` and are ready to run.

    Example: xrouter init garden --mqtt --http
    """
    requested = {"http": http, "kafka": kafka, "mqtt": mqtt, "amqp": amqp, "nats": nats}
    names = [name for name in PROTOCOLS if requested[name]] or ["http"]
    chosen = {name: PROTOCOLS[name] for name in names}
    written = _make_files(chosen)
    existing = [name for name in written if (folder / name).exists()]
    if existing:
        hint = "use another folder, or move the file away: no file is overwritten"
        raise RouterError(f"{folder / existing[0]} already exists", hint=hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RouterError(f"{folder} cannot be created: {error.strerror}", hint="use another folder") from error
    for name, text in written.items():
        write_text(text, folder / name)
    print_text(_format_next_steps(folder, chosen, written))


def _make_files(chosen: Protocols) -> dict[str, str]:
    sources = "\n".join(f"  - {{endpoint: /endpoints/garden-{name}}}" for name in chosen)
    names = {"schema": SCHEMA_COPY, "name": SETTINGS_NAME, "catalog": CATALOG_NAME}
    compose = make_compose(chosen)
    texts = {
        SETTINGS_NAME: _read("init.settings.yaml").format(**names, sources=sources),
        CATALOG_NAME: to_json_text(make_catalog(chosen)),
        COMPOSE_NAME: _COMPOSE.format(settings=SETTINGS_NAME) + to_yaml_text(compose) if compose else "",
        SCHEMA_COPY: _read_settings_schema().decode("utf-8"),
    }
    return {name: text for name, text in texts.items() if text}


def _format_next_steps(folder: Path, chosen: Protocols, written: Mapping[str, str]) -> str:
    program = Path(sys.argv[0]).name if Path(sys.argv[0]).name == "xrouter" else "python -m xrouter"
    steps = [(f"cd {folder}", "")] if folder != Path() else []
    if COMPOSE_NAME in written:
        steps.append(("docker compose up -d", "or set your own brokers in the catalog"))
    steps.append((f"{program} check {CATALOG_NAME} --config {SETTINGS_NAME}", ""))
    steps.append((f"{program} run {SETTINGS_NAME}", "Ctrl-C finishes the current batch and exits"))
    if "http" in chosen:
        sent = "curl -d '{\"percent\": 41}' -H 'Content-Type: application/json' localhost:8080/beds/7/moisture"
        steps.append((sent, ""))
    steps.append((f"{program} dead-letters list {SETTINGS_NAME}", "records that matched no definition, and why"))
    width = max(len(step) for step, note in steps if note)
    lines = [f"  {step:{width}}   # {note}" if note else f"  {step}" for step, note in steps]
    return "\n".join([f"wrote {', '.join(written)}", "", "next:", *lines])
