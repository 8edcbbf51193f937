"""What commands share: arguments, documents they write, and catalogs read by the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from catalog.convert import json_text, yaml_text
from catalog.documents.connecting import Logins, Reach
from catalog.documents.fetching import Fetcher
from catalog.findings import Declarations
from catalog.load import load
from catalog.model import Catalog
from router.errors import CatalogUnavailable, RouterError
from router.sinks.tables.head import write_atomically
from router.terminal import write_document

# Arguments that several commands share, with the errors for what users write wrongly there.


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


# Documents that commands write for their users: to a file, or to standard output.


class DocumentFormat(StrEnum):
    """What a document is written as."""

    json = "json"
    yaml = "yaml"


def form_of(asked: DocumentFormat | None, output: Path | None) -> DocumentFormat:
    """Return the form that is *asked* for, else the one that the name of the file says, else JSON."""
    if asked is not None:
        return asked
    return (
        DocumentFormat.yaml
        if output is not None and output.suffix.lower() in (".yaml", ".yml")
        else DocumentFormat.json
    )


def text_of(document: Mapping[str, Any], form: DocumentFormat) -> str:
    """Return a document as text.

    Raises:
        CatalogError: it holds what the form cannot write.
    """
    return yaml_text(document) if form is DocumentFormat.yaml else json_text(document)


def check_free(output: Path | None, *, force: bool) -> None:
    """Make sure that nothing is written over, unless by *force*.

    Raises:
        RouterError: the file is there already.
    """
    if output is not None and output.exists() and not force:
        raise RouterError(f"{output} is there already", hint="choose another name, or write over it with --force")


def write_text(text: str, output: Path | None) -> None:
    """Write a document as a whole; None is standard output.

    Raises:
        RouterError: the file cannot be written.
    """
    data = text.encode("utf-8")
    if output is None:
        write_document(data)
        return

    def fill(file: BinaryIO) -> None:
        file.write(data)

    try:
        write_atomically(output, fill)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RouterError(f"cannot write {output}: {reason}", hint="check the path and its rights") from error


# How commands read catalogs by the network: from where, and with which logins.

LoginsOption = Annotated[
    Path | None,
    typer.Option(
        "--logins",
        metavar="CONFIG",
        help="Settings whose `catalog.logins` are shown to registries; XROUTER_CATALOG__LOGINS__... go before them.",
    ),
]

_VARIABLES: Final = "XROUTER_CATALOG__LOGINS"


def fetcher(logins: Path | None, allow: Sequence[str] = ()) -> Fetcher:
    """Return what reads the catalogs of a command; *allow* is as for :class:`catalog.documents.connecting.Reach`.

    Raises:
        ConfigError: the logins are no good.
        ValueError: an entry of *allow* that looks like a network is none.
    """
    return Fetcher(network=True, reach=Reach(allow), logins=_logins(logins))


def _logins(file: Path | None) -> Logins:
    if file is None and not any(name.startswith(_VARIABLES) for name in os.environ):
        return Logins()
    # Most catalogs need no login, and reading settings takes longer than reading most catalogs.
    from router.settings.load import read_logins

    return read_logins(file)
