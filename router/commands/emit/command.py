"""``xrouter emit``: records that conform to a definition."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.progress import Progress

from bindings.protocols import BINDINGS, binding_of
from catalog.definitions.constraints import target_of
from catalog.model import Catalog, Definition
from router.commands.arguments import BaseUri, CatalogOption, LoginsOption, fetcher, pairs_of, usable_catalog
from router.commands.emit.delivery import opened, protocol_of
from router.commands.emit.producer import MODES, EmitError, Producer, check_matches
from router.errors import RouterError
from router.schemaids.framing import declared_id
from router.terminal import terminal

# What a user calls definitions and endpoints: xids, or as much of a name as only one of them has.

_SHOWN: Final = 5


class UnknownName(RouterError):
    """A name that nothing in the catalog has, or that several have; exit code 1."""


def xid_called(name: str, xids: Iterable[str], what: str) -> str:
    """Return the xid that a name stands for: itself, ``ID``, ``GROUP/ID``, or the last part of an id behind a dot.

    The first of these ways in which any is called so counts; then letter case does not.

    Raises:
        UnknownName: none or several are called so; *what* they are is said.
    """
    known = tuple(xids)
    if name in known:
        return name
    for way in _WAYS:
        for wanted, names in ((name, way), (name.lower(), lambda xid, way=way: [each.lower() for each in way(xid)])):
            called = [xid for xid in known if wanted in names(xid)]
            if len(called) == 1:
                return called[0]
            if called:
                more = f" and {len(called) - _SHOWN} more" if len(called) > _SHOWN else ""
                text = f"several {what}s are called {name}: {', '.join(called[:_SHOWN])}{more}"
                raise UnknownName(text, hint="give more of the name, or the xid")
    near = get_close_matches(name, known, 1) or _near_ids(name, known)
    hint = f"did you mean {near[0]}?" if near else "`xrouter catalog list` shows what there is"
    raise UnknownName(f"the catalog has no {what} {name}", hint=hint)


def only_endpoint(catalog: Catalog, xid: str, protocol: str | None) -> str | None:
    """Return the endpoint that a definition is sent to, when there is one alone; None for none or several.

    *protocol* is what is asked for, None for any. An endpoint that the definition can never match at does not count.
    """
    definition = catalog.definitions[xid]
    endpoints = [
        endpoint.xid
        for endpoint in catalog.endpoints.values()
        if xid in endpoint.candidates and _speaks(endpoint.protocol, definition, protocol)
        if target_of(definition, endpoint) is not None
    ]
    return endpoints[0] if len(endpoints) == 1 else None


def _speaks(spoken: str | None, definition: Definition, asked: str | None) -> bool:
    if asked is None:
        return binding_of(spoken or "") is not None
    return binding_of(spoken or definition.protocol or "") is binding_of(asked)


def _parts(xid: str) -> Sequence[str]:
    return xid.strip("/").split("/")


def _by_id(xid: str) -> Iterable[str]:
    return (_parts(xid)[-1],)


def _by_group(xid: str) -> Iterable[str]:
    parts = _parts(xid)
    return (f"{parts[1]}/{parts[-1]}",) if len(parts) > 2 else ()


def _by_end(xid: str) -> Iterable[str]:
    """Yield what stands behind each dot of the id."""
    parts = _parts(xid)[-1].split(".")
    return (".".join(parts[start:]) for start in range(1, len(parts)))


_WAYS: Final[tuple[Callable[[str], Iterable[str]], ...]] = (_by_id, _by_group, _by_end)


def _near_ids(name: str, xids: Sequence[str]) -> list[str]:
    ids = {end: xid for xid in xids for end in _ends(xid)}
    return [ids[each] for each in get_close_matches(name, ids, 1)]


def _ends(xid: str) -> Iterator[str]:
    yield from _by_id(xid)
    yield from _by_end(xid)


class EmitFraming(StrEnum):
    """The frames that bodies can get."""

    confluent = "confluent"


_PROGRESS_FROM: Final = 100
"""Fewer records are gone before a bar could be read."""


def emit(
    catalog: CatalogOption,
    message: Annotated[
        str, typer.Option(metavar="NAME", help="The definition to produce: its xid, its id, or the end of it.")
    ],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="MORE", help="More of --catalog, or with a `=` more of --context.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The endpoint to produce for: its defaults and address; unset is the only one.",
        ),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(metavar="NAME", help="Protocol, for definitions that leave it open.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="|".join(MODES), help="How a CloudEvent is carried; `native` is none.")
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Value of a placeholder; `{n}` in it is the running number."),
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="How many.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Makes ids and generated values the same each time.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="http(s)://HOST, kafka://HOST:PORT/TOPIC, mqtt(s)://HOST/TOPIC, amqp(s)://HOST/NODE or "
            "nats://HOST/SUBJECT (tls://); what has no path takes each record's own. Without it, standard output.",
        ),
    ] = None,
    framing: Annotated[
        EmitFraming | None,
        typer.Option("--framing", help="Kafka: begin bodies with the id of their schema, as Confluent's serializers."),
    ] = None,
    schema_id: Annotated[
        str | None,
        typer.Option("--schema-id", metavar="N", help="With --framing: the id; unset is the one that is declared."),
    ] = None,
    base_uri: BaseUri = "",
    logins: LoginsOption = None,
) -> None:
    """Produce messages that match a definition: as native records on standard output, or to a target.

    Literals are set, templates expanded, and what is required without a value is made up, valid for its type. Data is
    made up as the schema asks and checked against it; a warning says when it is not known to fit.

    Example: xrouter emit --catalog catalog.xreg.json --message Moisture --context bed=7 --to mqtt://localhost
    """
    values = [*(context or []), *(text for text in more or [] if "=" in text)]
    sources = [*catalog, *(text for text in more or [] if "=" not in text)]
    loaded = usable_catalog(sources, fetcher(logins), base_uri=base_uri)
    message = xid_called(message, loaded.definitions, "message")
    if endpoint is not None:
        endpoint = xid_called(endpoint, loaded.endpoints, "endpoint")
    known = loaded.definitions[message]
    towards = protocol or (None if to is None else _towards(known, protocol_of(to)))
    if endpoint is None and known.group not in loaded.endpoints:
        endpoint = only_endpoint(loaded, message, towards)
    if known.protocol is None and endpoint is None:
        protocol = towards
    producer = Producer(
        loaded,
        message,
        endpoint=endpoint,
        protocol=protocol,
        mode=mode,
        context=pairs_of(values, "--context"),
        seed=seed,
        schema_id=_schema_id(loaded, message, schema_id) if framing is not None else None,
    )
    if framing is None and schema_id is not None:
        raise EmitError("--schema-id has no use without a frame", hint="add --framing confluent")
    shown = count >= _PROGRESS_FROM and sys.stderr.isatty() and (to is not None or not sys.stdout.isatty())
    with (
        Progress(console=terminal(err=True), disable=not shown) as bar,
        opened(to, sys.stdout.buffer, producer.endpoint) as target,
    ):
        task, doubted = bar.add_task("produced", total=count), False
        for number, record in enumerate(producer.records(count), 1):
            if number == 1:
                check_matches(loaded, producer, record)
            if producer.payload_doubt and not doubted:
                doubted = True
                warning = f"warning: the data of {message} is not known to fit: {producer.payload_doubt}"
                bar.console.print(warning, soft_wrap=True)
            target.send(record)
            bar.advance(task)


def _schema_id(catalog: Catalog, message: str, given: str | None) -> str:
    schema_id = given or declared_id(catalog, catalog.definitions[message])
    if schema_id is None:
        hint = "give it with --schema-id, or declare it by the label schemaid of the schema's version"
        raise EmitError(f"no id is known of the schema of {message}", hint=hint)
    return schema_id


def _towards(definition: Definition, protocol: str) -> str:
    """Return the protocol of a target as the definition has it: both versions of MQTT go to the same broker."""
    own = binding_of(definition.protocol or "")
    if own is not None and own.sending.family == BINDINGS[protocol].sending.family:
        return own.protocol
    return protocol
