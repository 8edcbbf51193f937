"""Shared parts of commands: arguments, writing documents, and reading catalogs over the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal

import typer

from bindings.private_files import write_atomically
from catalog.convert import to_json_text, to_yaml_text
from catalog.documents.connecting import ConnectionPolicy, Logins
from catalog.documents.fetching import Fetcher
from catalog.findings import Declarations
from catalog.load import load
from catalog.model import Catalog
from router.errors import CatalogUnavailable, RouterError
from router.terminal import write_document

if TYPE_CHECKING:
    from router.settings import Settings

# Arguments that several commands share, and their errors.


OutputFormat = Literal["text", "json"]
ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")]
JsonObject = Annotated[OutputFormat, typer.Option("--format", help="`json` prints one object.")]
JsonLines = Annotated[OutputFormat, typer.Option("--format", help="`json` prints one object per line.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show what is marked as sensitive.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Output file; standard output by default.")
]
CatalogOption = Annotated[
    list[str], typer.Option("--catalog", metavar="PATH", help="File, folder or URL of the catalog; repeatable.")
]
MorePaths = Annotated[
    list[str] | None, typer.Argument(metavar="PATH", help="More --catalog paths, for example a shell's `*.json`.")
]
Sources = Annotated[list[str], typer.Argument(metavar="PATH", help="Files, folders or URLs of the catalog.")]


AllowAddresses = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-address", metavar="HOST", help="Private host or network that documents may refer to; repeatable."
    ),
]


BaseUri = Annotated[
    str,
    typer.Option(
        "--base-uri",
        metavar="URL",
        help="Base URL of the registry, for `dataschema` of events when the catalog does not name its registry.",
    ),
]


def schema_option(files: str, schema: Callable[[], bytes]) -> Any:
    """Return the option ``--schema``, which prints the JSON Schema of a kind of file and exits."""

    def write(wanted: bool) -> None:
        if wanted:
            write_document(schema())
            raise typer.Exit

    text = f"Print the JSON Schema of {files} and exit."
    return typer.Option("--schema", callback=write, is_eager=True, help=text)


def load_usable(
    sources: list[str], fetcher: Fetcher, *, base_uri: str = "", declarations: Declarations | None = None
) -> Catalog:
    """Load a catalog to work with; the arguments are those of :func:`catalog.load.load`.

    Raises:
        CatalogUnavailable: it has no usable definition.
        DocumentError: a source cannot be read.
    """
    catalog = load(sources, fetcher=fetcher, base_uri=base_uri, declarations=declarations)
    if not catalog.definitions:
        cause = next((f": {each.message}" for each in catalog.findings if each.severity == "error"), "")
        hint = f"`xrouter check {sources[0]}` shows its errors"
        raise CatalogUnavailable(f"{', '.join(sources)} has no usable message definition{cause}", hint=hint)
    return catalog


def load_catalog_of(
    settings: Settings, sources: Sequence[str] = (), *, base_uri: str = "", declarations: Declarations | None = None
) -> Catalog:
    """Load the catalog of settings, or other *sources*, as the router does.

    Raises:
        CatalogUnavailable, DocumentError: as :func:`load_usable`.
    """
    from router.settings.catalogs import make_catalog_fetcher  # settings are slow to load, and most catalogs need none

    read, fetcher = settings.catalog, make_catalog_fetcher(settings)
    return load_usable(
        list(sources or read.source), fetcher, base_uri=base_uri or read.base_uri, declarations=declarations
    )


def parse_name_values(given: list[str], option: str) -> dict[str, str]:
    """Return ``name=value`` arguments as a dict.

    Raises:
        RouterError: an argument has no ``=`` or no name.
    """
    pairs: dict[str, str] = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise RouterError(f"{option} {text!r} is not NAME=VALUE", hint=f"write {option} {name or 'NAME'}=VALUE")
        pairs[name] = value
    return pairs


# Documents that commands write to a file or to standard output.


DocumentFormat = Literal["json", "yaml"]


def write_tree(
    tree: Mapping[str, Any], requested: DocumentFormat | None, output: Path | None, otherwise: DocumentFormat = "json"
) -> None:
    """Write a document in the requested format, else that of the file's suffix, else *otherwise*.

    Raises:
        CatalogError: it has a value that the format cannot represent.
        RouterError: the file cannot be written.
    """
    suffixes = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}
    form = requested or suffixes.get("" if output is None else output.suffix.lower(), otherwise)
    write_text(to_yaml_text(tree) if form == "yaml" else to_json_text(tree), output)


def refuse_overwriting(output: Path | None, *, force: bool) -> None:
    """Raise if *output* exists, unless *force* allows overwriting it.

    Raises:
        RouterError: the file exists.
    """
    if output is not None and output.exists() and not force:
        raise RouterError(f"{output} already exists", hint="choose another name, or overwrite it with --force")


def write_text(text: str, output: Path | None) -> None:
    """Write a document atomically to a file, or to standard output when *output* is None.

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
        raise RouterError(f"cannot write {output}: {reason}", hint="check the path and its permissions") from error


# How commands read catalogs over the network, and with which logins.

LoginsOption = Annotated[
    Path | None,
    typer.Option(
        "--logins",
        metavar="CONFIG",
        help="Settings with `catalog.logins` for registries; XROUTER_CATALOG__LOGINS__... override them.",
    ),
]

_VARIABLES: Final = "XROUTER_CATALOG__LOGINS"


def make_fetcher(logins: Path | None, allow: Sequence[str] = ()) -> Fetcher:
    """Return the fetcher of a command; *allow* is passed to :class:`catalog.documents.connecting.ConnectionPolicy`.

    Raises:
        ConfigError: the logins are invalid.
        ValueError: a network in *allow* is invalid.
    """
    known = Logins()
    if logins is not None or any(name.startswith(_VARIABLES) for name in os.environ):
        # Imported here: most catalogs need no login, and loading settings is slow.
        from router.settings.load import read_logins

        known = read_logins(logins)
    return Fetcher(network=True, reach=ConnectionPolicy(allow), logins=known)
