"""``xrouter init``: write settings, a catalog and a compose file to start from."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from catalog.convert import to_json_text, to_yaml_text
from router.commands.arguments import schema_option, write_text
from router.errors import RouterError
from router.terminal import print_text

# The first catalog per protocol, and the broker to try it with.

GROUP: Final = "Garden"
MOISTURE: Final = "com.example.garden.moisture"


@dataclass(frozen=True, slots=True)
class ProtocolTemplate:
    """One protocol of the generated files, as ``init.protocols.yaml`` describes it."""

    name: str
    protocol: str
    options: Mapping[str, str]
    address: str = ""
    message: Mapping[str, Any] | None = None
    services: Mapping[str, Any] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        """The id of its endpoint."""
        return f"garden-{self.name}"


def _read(name: str) -> str:
    return (files("router.commands") / name).read_text(encoding="utf-8")


PROTOCOLS: Final[Sequence[ProtocolTemplate]] = [
    ProtocolTemplate(name, **form) for name, form in yaml.safe_load(_read("init.protocols.yaml")).items()
]


def make_catalog(chosen: Sequence[ProtocolTemplate]) -> dict[str, Any]:
    """Return a catalog with an endpoint per protocol, and one event that all of them carry."""
    return {
        "specversion": "1.0-rc4",
        "endpoints": {each.endpoint: _make_endpoint(each) for each in chosen},
        "messagegroups": {
            GROUP: {"messages": {f"{GROUP}.Moisture": _make_event()}},
            **{_group_id(each): {"messages": _make_native(each)} for each in chosen if each.message is not None},
        },
    }


def make_compose(chosen: Sequence[ProtocolTemplate]) -> dict[str, Any]:
    """Return a compose file with the brokers of the protocols; empty when none needs a broker."""
    services = {name: service for each in chosen for name, service in each.services.items()}
    return {"services": services} if services else {}


def _make_endpoint(first: ProtocolTemplate) -> dict[str, Any]:
    where = {"endpoints": [{"uri": first.address}]} if first.address else {}
    groups = [GROUP] if first.message is None else [GROUP, _group_id(first)]
    return {
        "usage": ["consumer"],
        "protocol": first.protocol,
        "protocoloptions": {**where, "options": dict(first.options)},
        "messagegroups": [f"/messagegroups/{group}" for group in groups],
    }


def _group_id(first: ProtocolTemplate) -> str:
    return f"{GROUP}.{first.name.capitalize()}"


def _make_event() -> dict[str, Any]:
    schema = {"type": "object", "required": ["percent"], "properties": {"percent": {"type": "number"}}}
    return {
        "description": "How wet a bed is, sent as a CloudEvent.",
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {"type": {"value": MOISTURE}, "source": {"value": "/beds/{bed}", "type": "uritemplate"}},
        "datacontenttype": "application/json",
        "dataschemaformat": "JsonSchema/draft-07",
        "dataschema": schema,
    }


def _make_native(first: ProtocolTemplate) -> dict[str, Any]:
    """Return a definition, by id, that maps plain messages to the same event."""
    return {
        f"{_group_id(first)}.Moisture": {
            "description": f"The same, as a plain {first.name.upper()} message; the placeholder goes into the source.",
            "basemessage": f"/messagegroups/{GROUP}/messages/{GROUP}.Moisture",
            "envelope": "CloudEvents/1.0",
            "protocol": first.protocol,
            "protocoloptions": dict(first.message or {}),
        }
    }


# The texts of the generated files.

CATALOG_NAME: Final = "catalog.xreg.json"
SETTINGS_NAME: Final = "router.yaml"
SCHEMA_COPY: Final = "router.schema.json"
COMPOSE_NAME: Final = "compose.yaml"
_COMPOSE: Final = """\
# Brokers to try {settings} with: `docker compose up -d`. No passwords, loopback only: not for production.
"""


def format_settings(chosen: Sequence[ProtocolTemplate]) -> str:
    """Return the settings of a router that consumes the endpoints of these protocols."""
    sources = "\n".join(f"  - {{endpoint: /endpoints/{each.endpoint}}}" for each in chosen)
    return _read("init.settings.yaml").format(
        schema=SCHEMA_COPY, name=SETTINGS_NAME, catalog=CATALOG_NAME, sources=sources
    )


def format_compose(chosen: Sequence[ProtocolTemplate]) -> str:
    """Return the compose file; empty when no protocol needs a broker."""
    document = make_compose(chosen)
    return _COMPOSE.format(settings=SETTINGS_NAME) + to_yaml_text(document) if document else ""


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
    chosen = [each for each in PROTOCOLS if requested[each.name]] or [each for each in PROTOCOLS if each.name == "http"]
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


def _make_files(chosen: list[ProtocolTemplate]) -> dict[str, str]:
    texts = {
        SETTINGS_NAME: format_settings(chosen),
        CATALOG_NAME: to_json_text(make_catalog(chosen)),
        COMPOSE_NAME: format_compose(chosen),
        SCHEMA_COPY: _read_settings_schema().decode("utf-8"),
    }
    return {name: text for name, text in texts.items() if text}


def _format_next_steps(folder: Path, chosen: list[ProtocolTemplate], written: dict[str, str]) -> str:
    program = Path(sys.argv[0]).name if Path(sys.argv[0]).name == "xrouter" else "python -m xrouter"
    steps = [(f"cd {folder}", "")] if folder != Path() else []
    if COMPOSE_NAME in written:
        steps.append(("docker compose up -d", "or set your own brokers in the catalog"))
    steps.append((f"{program} check {CATALOG_NAME} --config {SETTINGS_NAME}", ""))
    steps.append((f"{program} run {SETTINGS_NAME}", "Ctrl-C finishes the current batch and exits"))
    if any(each.name == "http" for each in chosen):
        sent = "curl -d '{\"percent\": 41}' -H 'Content-Type: application/json' localhost:8080/beds/7/moisture"
        steps.append((sent, ""))
    steps.append((f"{program} dead-letters list {SETTINGS_NAME}", "records that matched no definition, and why"))
    width = max(len(step) for step, note in steps if note)
    lines = [f"  {step:{width}}   # {note}" if note else f"  {step}" for step, note in steps]
    return "\n".join([f"wrote {', '.join(written)}", "", "next:", *lines])
