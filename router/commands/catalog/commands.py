"""``xrouter catalog list``, ``show``, ``convert`` and ``diff``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from catalog.comparing import CatalogChange, CatalogDiff, compare
from catalog.convert import Converted, convert
from catalog.errors import DocumentError
from catalog.explaining import entity_to_json, known_xids
from catalog.findings import Declarations
from catalog.listing import listing
from catalog.load import load
from catalog.model import Catalog
from router.commands.arguments import (
    DocumentFormat,
    LoginsOption,
    OutputFormat,
    Sources,
    check_free,
    fetcher,
    form_of,
    text_of,
    write_text,
)
from router.errors import CatalogUnavailable, RouterError
from router.lazy import lazy_group
from router.terminal import counted, say, say_json, say_json_lines, say_row, shown_value, styled, terminal

# ``xrouter catalog show``: one thing of a catalog, with where every value of it comes from.

_MEMBERS: Final = ("type", "value", "required")
_TABLES: Final = {"cloudevents": "CloudEvents", "protocol": "protocol table", "default": "default"}
Row = tuple[str, str, str]
"""What, its value, and where it comes from."""


def show(
    xid: Annotated[str, typer.Argument(metavar="XID", help="Of a message, endpoint, group, schema or version.")],
    sources: Sources,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object.")] = OutputFormat.text,
    logins: LoginsOption = None,
) -> None:
    """Show one thing of a catalog in effect; of a message, where each value comes from and what it overrides.

    Example: xrouter catalog show /messagegroups/Garden/messages/Garden.Moisture catalog.xreg.json
    """
    declarations = Declarations()
    catalog = load(sources, fetcher=fetcher(logins), declarations=declarations)
    form = entity_to_json(xid, catalog, declarations)
    if form is None:
        raise _unknown(xid, catalog, declarations, sources)
    if format is OutputFormat.json:
        say_json(form)
        return
    rows = list(_message_rows(form) if form["kind"] == "message" else _rows(form))
    if sys.stdout.isatty():
        terminal().print(_table(form, rows))
    else:
        for row in ((form["kind"], form["xid"], _place(form)), *rows):
            say_row(row if any(row[2:]) else row[: 2 if row[1] else 1])


def _unknown(xid: str, catalog: Catalog, declarations: Declarations, sources: list[str]) -> RouterError:
    """Return the error for an xid of nothing, or of something that has an error itself."""
    declared = declarations.messages.get(xid)
    if declared is not None:
        at = (declared.place.file, declared.place.pointer)
        cause = next((each.message for each in catalog.findings if (each.file, each.pointer) == at), "it is a version")
        hint = f"`xrouter check {sources[0]}` shows all that is wrong"
        return RouterError(f"{xid} is no definition that can be used: {cause}", hint=hint)
    known = list(known_xids(catalog, declarations))
    near = get_close_matches(xid, known, 3) or [each for each in known if each.rsplit("/", 1)[-1] == xid][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"`xrouter catalog list {sources[0]}` shows what there is"
    return RouterError(f"the catalog has nothing called {xid}", hint=hint)


def _message_rows(form: Mapping[str, Any]) -> Iterator[Row]:
    for name in ("envelope", "protocol"):
        if form[name]:
            suffix = "" if form[name].get("declared", True) else " (a default, which only restricts)"
            yield name, form[name]["value"] + suffix, _origin(form[name])
    for prop in form["properties"]:
        name = f"{prop['section']}.{prop['name']}"
        for member in _MEMBERS:
            origin = prop["from"].get(member)
            if origin is not None and (member != "required" or origin["value"] or origin["source"] != "default"):
                yield f"{name} {member}", shown_value(origin["value"]), _origin(origin)
    for section in ("envelopeoptions", "attributes"):
        for name, origin in form[section].items():
            shown = "inline" if name == "dataschema" else shown_value(origin["value"])
            yield f"envelopeoptions.{name}" if section == "envelopeoptions" else name, shown, _origin(origin)
    schema = form["schema"]
    if schema is not None:
        yield "schema", schema["key"] or schema["reference"] or "inline", "" if schema["resolved"] else "not loaded"
    for base in form["base"]:
        yield "base", base, ""
    for endpoint in form["endpoints"]:
        defaults = [
            f"{name} {endpoint[name]['value']} by its default"
            for name in ("envelope", "protocol")
            if endpoint[name] and endpoint[name]["source"] == "endpoint"
        ]
        yield "expected by", endpoint["xid"], ", ".join(defaults)


def _rows(form: Mapping[str, Any]) -> Iterator[Row]:
    for name, value in form.items():
        if name in ("kind", "xid", "file", "pointer") or value in (None, [], {}):
            continue
        if name == "versions":
            for version in value:
                yield from _version_rows(version)
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", shown_value(member), "") for key, member in value.items())
        else:
            yield from ((name, shown_value(member), "") for member in (value if isinstance(value, list) else [value]))


def _version_rows(version: Mapping[str, Any]) -> Iterator[Row]:
    name = f"version {version['versionid']}".rstrip()
    states = [state for state in ("default", "embedded", "loaded") if version[state]]
    document = version["address"] or " ".join(filter(None, (version["format"], ", ".join(states))))
    yield name, document, _place(version)
    for definition in version["definitions"]:
        yield f"{name} used by", definition, ""


def _origin(origin: Mapping[str, Any]) -> str:
    """Say where a value comes from, and which other values it overrides."""
    source = _TABLES.get(origin["source"]) or _where(origin)
    other = [each for each in origin.get("overrides", ()) if each["value"] != origin["value"]]
    over = [f"{shown_value(each['value'])} of {_where(each)}" for each in other]
    return f"{source}; overrides {', '.join(over)}" if over else source


def _where(origin: Mapping[str, Any]) -> str:
    named = origin["xid"] if origin["source"] in ("base", "group", "endpoint") else "itself"
    place = _place(origin)
    return f"{named} ({place})" if place else named


def _place(form: Mapping[str, Any]) -> str:
    return f"{form['file']}#{form['pointer']}" if form.get("file") else ""


def _table(form: Mapping[str, Any], rows: list[Row]) -> Table:
    table = Table("", "value", "from", title=f"{form['kind']} {form['xid']}", caption=_place(form))
    for row in rows:
        table.add_row(*row)
    return table


# ``xrouter catalog list``: the effective definitions.


def list_definitions(
    sources: Sources,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object a line.")] = OutputFormat.text,
    logins: LoginsOption = None,
) -> None:
    """List the effective message definitions, after inheritance.

    Example: xrouter catalog list catalog.xreg.json --format json
    """
    catalog = load(sources, fetcher=fetcher(logins))
    if format is OutputFormat.json:
        say_json_lines(listing(definition, catalog) for definition in catalog.definitions.values())
    elif sys.stdout.isatty():
        terminal().print(_definition_table(catalog))
    else:
        for xid, row in _definition_rows(catalog).items():
            say_row((xid, *row))


def _definition_rows(catalog: Catalog) -> dict[str, tuple[str, str, str]]:
    rows = {}
    for xid, definition in catalog.definitions.items():
        endpoints = [each.xid for each in catalog.endpoints.values() if xid in each.candidates]
        rows[xid] = (definition.envelope or "-", definition.protocol or "-", ", ".join(endpoints) or "-")
    return rows


def _definition_table(catalog: Catalog) -> Table:
    table = Table("message", "envelope", "protocol", "endpoints", title=f"{len(catalog.definitions)} definitions")
    for xid, row in _definition_rows(catalog).items():
        table.add_row(xid, *row)
    return table


# ``xrouter catalog convert``: any dialect to one xRegistry 1.0-rc4 document.


def convert_catalog(
    sources: Sources,
    to: Annotated[
        DocumentFormat | None, typer.Option("--to", help="By default what the name of --output says, else json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write; without it, standard output.")
    ] = None,
    flatten: Annotated[
        bool, typer.Option("--flatten", help="Write effective messages without bases; ties with a base are lost.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    logins: LoginsOption = None,
) -> None:
    """Write catalogs of any dialect as one xRegistry 1.0-rc4 document that means the same.

    Relative references stay as they are written: put the document beside the first source, or they lead elsewhere.
    What has an error is left out and named on standard error; `xrouter check` says why.

    Example: xrouter catalog convert catalog.cereg --output catalog.xreg.json
    """
    check_free(output, force=force)
    declarations = Declarations()
    catalog = load(sources, fetcher=fetcher(logins), declarations=declarations)
    if not (declarations.messages or declarations.endpoints or declarations.schemas or declarations.groups):
        hint = f"`xrouter check {sources[0]}` shows what it is"
        raise CatalogUnavailable(f"{', '.join(sources)} holds nothing to convert", hint=hint)
    done = convert(catalog, declarations, flatten=flatten)
    write_text(text_of(done.document, form_of(to, output)), output)
    _warn(done)


def _warn(done: Converted) -> None:
    for xid in done.left_out:
        say(f"xrouter: warning: {xid} has an error and is left out", err=True)
    for xid in done.not_flat:
        say(f"xrouter: warning: {xid} keeps its base, whose group gives its protocol", err=True)


# ``xrouter catalog diff``: what changed between two catalogs, and whether one can go on with the second.

COMPATIBLE: Final = 0
INCOMPATIBLE: Final = 1
UNREADABLE: Final = 2


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="File, folder or URL of the catalog as it was.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The same of the catalog as it is to be.")],
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object.")] = OutputFormat.text,
    logins: LoginsOption = None,
) -> None:
    """Show what changed for consumers from catalog A to B, and whether it is compatible.

    Ends with 0 when nothing changed or all changes are compatible, 1 when one is not, 2 when a catalog cannot be read.
    Compatible is a change after which every record still reaches its definition and nothing of it is lost: definitions
    that match the same records or more (`same`, `wider`), and what is merely added. Incompatible are definitions
    removed, renamed, or matching fewer records or others (`narrower`, `different`), placeholders lost, attributes of
    mapped events changed, what has become ambiguous, and schemas that are not plainly compatible (`unknown`).

    Example: xrouter catalog diff old.xreg.json new.xreg.json
    """
    try:
        before, after = _loaded(old, logins), _loaded(new, logins)
    except DocumentError as error:
        say(f"xrouter: error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), err=True)
        raise typer.Exit(UNREADABLE) from error
    difference = compare(before, after)
    if format is OutputFormat.json:
        say_json(difference.to_json())
    else:
        write_difference(difference)
    raise typer.Exit(COMPATIBLE if difference.compatible else INCOMPATIBLE)


def _loaded(source: str, logins: Path | None) -> Catalog:
    return load([source], fetcher=fetcher(logins))


def write_difference(difference: CatalogDiff) -> None:
    """Write what changed for consumers, by definition, and how much of it is incompatible."""
    console = terminal(soft_wrap=True)
    shown = ""
    for change in difference.changes:
        if change.xid != shown:
            shown = change.xid
            console.print(styled((shown, "bold")))
        colour = "green" if change.compatible else "red"
        console.print(styled("  ", (change.kind, colour), description(change)))
    wrong = sum(not change.compatible for change in difference.changes)
    changes = counted(len(difference.changes), "change")
    console.print(f"{changes}, {wrong} incompatible" if difference.changes else "nothing changed for consumers")


def description(change: CatalogChange) -> str:
    """Write all of a change but kind and xid: name, relation, values and detail."""
    words = [change.name] if change.name else []
    if change.relation is not None:
        words.append(f"({change.relation})")
    if change.before is not None or change.after is not None:
        words.append(f"{shown_value(change.before)} -> {shown_value(change.after)}")
    text = " ".join(words)
    return f" {text}{': ' if text and change.detail else ''}{change.detail}".rstrip()


# ``xrouter catalog``: looking into catalogs; each command has a module of its own.

COMMANDS: Final = {
    "list": "router.commands.catalog.commands:list_definitions",
    "show": "router.commands.catalog.commands:show",
    "convert": "router.commands.catalog.commands:convert_catalog",
    "pull": "router.commands.catalog.pull:pull",
    "push": "router.commands.catalog.push:push",
    "diff": "router.commands.catalog.commands:diff",
}
catalog_app = typer.Typer(add_completion=False, cls=lazy_group(COMMANDS), help="Look into catalogs.")


@catalog_app.callback()
def _catalog() -> None:
    """Look into catalogs."""
