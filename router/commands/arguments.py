"""Arguments that several commands share, with the errors for what users write wrongly there."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from catalog.declared import Declarations
from catalog.documents.fetching import Fetcher
from catalog.load import load
from catalog.model import Catalog
from router.errors import CatalogUnavailable, RouterError
from router.terminal import write_document


class OutputFormat(StrEnum):
    """How something is written out."""

    text = "text"
    json = "json"


CatalogOption = Annotated[
    list[str], typer.Option("--catalog", metavar="PATH", help="File, folder or URL of the catalog; may be repeated.")
]
MorePaths = Annotated[
    list[str] | None, typer.Argument(metavar="PATH", help="More of --catalog, as shells write them for `*.json`.")
]
Sources = Annotated[list[str], typer.Argument(metavar="PATH", help="Files, folders or URLs of the catalog.")]


AllowAddresses = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-address",
        metavar="HOST",
        help="Host or network that documents may refer to though its addresses are not public; may be repeated.",
    ),
]


BaseUri = Annotated[
    str,
    typer.Option(
        "--base-uri",
        metavar="URL",
        help="Address of the registry that the catalog is of, where it names none: `dataschema` of events is below it.",
    ),
]


def schema_option(files: str, schema: Callable[[], bytes]) -> Any:
    """Return the option ``--schema``, which writes the JSON Schema of a kind of files in place of anything else."""

    def write(wanted: bool) -> None:
        if wanted:
            write_document(schema())
            raise typer.Exit

    text = f"Write the JSON Schema of {files} instead, and end."
    return typer.Option("--schema", callback=write, is_eager=True, help=text)


def usable_catalog(
    sources: list[str], fetcher: Fetcher, *, base_uri: str = "", declarations: Declarations | None = None
) -> Catalog:
    """Load a catalog to work with; the arguments are those of :func:`catalog.load.load`.

    Raises:
        CatalogUnavailable: it has no definition at all.
        DocumentError: a source cannot be read.
    """
    catalog = load(sources, fetcher=fetcher, base_uri=base_uri, declarations=declarations)
    if not catalog.definitions:
        cause = next((f": {each.message}" for each in catalog.findings if each.severity == "error"), "")
        hint = f"`xrouter check {sources[0]}` shows what is wrong"
        raise CatalogUnavailable(f"{', '.join(sources)} holds no usable message definition{cause}", hint=hint)
    return catalog


def pairs_of(given: list[str], option: str) -> dict[str, str]:
    """Read ``name=value`` arguments.

    Raises:
        RouterError: one has no ``=`` or no name.
    """
    pairs: dict[str, str] = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise RouterError(f"{option} {text!r} is no name=value", hint=f"write {option} {name or 'NAME'}=VALUE")
        pairs[name] = value
    return pairs
