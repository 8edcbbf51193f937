"""``xrouter catalog show``: one thing of a catalog, with where every value of it comes from."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from catalog.declared import Declarations
from catalog.explaining.entities import entity_to_json, known_xids
from catalog.load import load
from catalog.model import Catalog
from router.commands.arguments import OutputFormat, Sources
from router.commands.registries import LoginsOption, fetcher
from router.errors import RouterError
from router.terminal import say_json, say_row, shown_value, terminal

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
