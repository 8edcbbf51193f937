"""``xrouter emit``: records that conform to a definition."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from rich.progress import Progress

from router.commands.arguments import BaseUri, CatalogOption, pairs_of, usable_catalog
from router.commands.emit.delivery import opened, protocol_of
from router.commands.emit.producer import MODES, Producer, check_matches
from router.commands.registries import LoginsOption, fetcher
from router.terminal import terminal

_PROGRESS_FROM: Final = 100
"""Fewer records are gone before a bar could be read."""


def emit(
    catalog: CatalogOption,
    message: Annotated[str, typer.Option(metavar="XID", help="The definition to produce.")],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="MORE", help="More of --catalog, or with a `=` more of --context.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="XID", help="The endpoint to produce for: its defaults and address.")
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
        typer.Option(metavar="TARGET", help="http(s)://HOST or kafka://HOST:PORT/TOPIC; without it, standard output."),
    ] = None,
    base_uri: BaseUri = "",
    logins: LoginsOption = None,
) -> None:
    """Produce messages that match a definition: as native records on standard output, or to a target.

    Literals are set, templates expanded, and what is required without a value is made up, valid for its type. Data is
    made up as the schema asks and checked against it; a warning says when it is not known to fit.

    Example: xrouter emit --catalog catalog.xreg.json --message /messagegroups/Garden/messages/Moisture --context bed=7
    """
    values = [*(context or []), *(text for text in more or [] if "=" in text)]
    sources = [*catalog, *(text for text in more or [] if "=" not in text)]
    loaded = usable_catalog(sources, fetcher(logins), base_uri=base_uri)
    known = loaded.definitions.get(message)
    if to is not None and protocol is None and known is not None and known.protocol is None and endpoint is None:
        protocol = protocol_of(to)
    producer = Producer(
        loaded,
        message,
        endpoint=endpoint,
        protocol=protocol,
        mode=mode,
        context=pairs_of(values, "--context"),
        seed=seed,
    )
    shown = count >= _PROGRESS_FROM and sys.stderr.isatty() and (to is not None or not sys.stdout.isatty())
    with Progress(console=terminal(err=True), disable=not shown) as bar, opened(to, sys.stdout.buffer) as target:
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
