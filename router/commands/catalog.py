"""``xrouter catalog list``, ``show``, ``convert`` and ``diff``."""

from __future__ import annotations

import base64
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote

import msgspec
import typer
from rich.table import Table

from catalog.comparing import CatalogChange, CatalogDiff, compare
from catalog.convert import Converted, convert
from catalog.dialects import detect
from catalog.documents.connecting import origin_of
from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.registry_api import NESTED, post
from catalog.explaining import entity_to_json, known_xids
from catalog.findings import Declarations, DocumentError, Findings
from catalog.linting.attributes import rejecting_errors
from catalog.load import build, listing, load
from catalog.model import Catalog
from catalog.parsing.texts import parse_text
from catalog.references import AddressFollower
from router.commands.arguments import (
    AllowAddresses,
    DocumentFormat,
    LoginsOption,
    OutputFormat,
    Sources,
    document_format,
    document_text,
    fetcher,
    require_absent,
    write_text,
)
from router.errors import CatalogUnavailable, RouterError
from router.lazy_commands import lazy_group
from router.terminal import counted, print_json, print_json_lines, print_row, print_text, shown_value, styled, terminal

# ``xrouter catalog show``: one thing of a catalog, with where every value of it comes from.

_MEMBERS: Final = ("type", "value", "required")
_TABLES: Final = {"cloudevents": "CloudEvents", "protocol": "protocol table", "default": "default"}
Row = tuple[str, str, str]
"""What, its value, and where it comes from."""


def show(
    xid: Annotated[str, typer.Argument(metavar="XID", help="Of a message, endpoint, group, schema or version.")],
    sources: Sources,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` prints one object.")] = OutputFormat.text,
    logins: LoginsOption = None,
) -> None:
    """Show one entity of a catalog; for a message, where each value comes from and what it overrides.

    Example: xrouter catalog show /messagegroups/Garden/messages/Garden.Moisture catalog.xreg.json
    """
    declarations = Declarations()
    catalog = load(sources, fetcher=fetcher(logins), declarations=declarations)
    form = entity_to_json(xid, catalog, declarations)
    if form is None:
        raise _unknown(xid, catalog, declarations, sources)
    if format is OutputFormat.json:
        print_json(form)
        return
    rows = list(_message_rows(form) if form["kind"] == "message" else _rows(form))
    if sys.stdout.isatty():
        terminal().print(_table(form, rows))
    else:
        for row in ((form["kind"], form["xid"], _place(form)), *rows):
            print_row(row if any(row[2:]) else row[: 2 if row[1] else 1])


def _unknown(xid: str, catalog: Catalog, declarations: Declarations, sources: list[str]) -> RouterError:
    """Return the error for an unknown xid, or for one of an entity with an error."""
    declared = declarations.messages.get(xid)
    if declared is not None:
        at = (declared.place.file, declared.place.pointer)
        cause = next((each.message for each in catalog.findings if (each.file, each.pointer) == at), "it is a version")
        hint = f"`xrouter check {sources[0]}` shows its errors"
        return RouterError(f"{xid} is not a usable definition: {cause}", hint=hint)
    known = list(known_xids(catalog, declarations))
    near = get_close_matches(xid, known, 3) or [each for each in known if each.rsplit("/", 1)[-1] == xid][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"`xrouter catalog list {sources[0]}` shows what there is"
    return RouterError(f"the catalog has no {xid}", hint=hint)


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
    """Return where a value comes from, and which other values it overrides."""
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
    format: Annotated[
        OutputFormat, typer.Option("--format", help="`json` prints one object per line.")
    ] = OutputFormat.text,
    logins: LoginsOption = None,
) -> None:
    """List the effective message definitions, after inheritance.

    Example: xrouter catalog list catalog.xreg.json --format json
    """
    catalog = load(sources, fetcher=fetcher(logins))
    if format is OutputFormat.json:
        print_json_lines(listing(definition, catalog) for definition in catalog.definitions.values())
    elif sys.stdout.isatty():
        terminal().print(_definition_table(catalog))
    else:
        for xid, row in _definition_rows(catalog).items():
            print_row((xid, *row))


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
        DocumentFormat | None, typer.Option("--to", help="By default from the suffix of --output, else json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Output file; standard output by default.")
    ] = None,
    flatten: Annotated[bool, typer.Option("--flatten", help="Write effective messages without base messages.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    logins: LoginsOption = None,
) -> None:
    """Convert catalogs of any format to one equivalent xRegistry 1.0-rc4 document.

    Relative references are not changed: put the document in the folder of the first source. Entities with errors are
    left out and named on standard error; `xrouter check` shows why.

    Example: xrouter catalog convert catalog.cereg --output catalog.xreg.json
    """
    require_absent(output, force=force)
    declarations = Declarations()
    catalog = load(sources, fetcher=fetcher(logins), declarations=declarations)
    if not (declarations.messages or declarations.endpoints or declarations.schemas or declarations.groups):
        hint = f"`xrouter check {sources[0]}` shows what it is"
        raise CatalogUnavailable(f"{', '.join(sources)} holds nothing to convert", hint=hint)
    done = convert(catalog, declarations, flatten=flatten)
    write_text(document_text(done.document, document_format(to, output)), output)
    _warn(done)


def _warn(done: Converted) -> None:
    for xid in done.left_out:
        print_text(f"xrouter: warning: {xid} has an error and is left out", err=True)
    for xid in done.not_flat:
        print_text(f"xrouter: warning: {xid} keeps its base, whose group gives its protocol", err=True)


# ``xrouter catalog diff``: what changed between two catalogs, and whether one can go on with the second.

COMPATIBLE: Final = 0
INCOMPATIBLE: Final = 1
UNREADABLE: Final = 2


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="File, folder or URL of the old catalog.")],
    new: Annotated[str, typer.Argument(metavar="B", help="File, folder or URL of the new catalog.")],
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` prints one object.")] = OutputFormat.text,
    logins: LoginsOption = None,
) -> None:
    """Show what changed for consumers from catalog A to B, and whether it is compatible.

    Exit codes: 0 no change or only compatible ones, 1 an incompatible change, 2 a catalog cannot be read.
    Compatible: every record still matches its definition and loses nothing, so definitions that match the same records
    or more (`same`, `wider`), and additions. Incompatible: definitions removed, renamed, or matching fewer or other
    records (`narrower`, `different`), placeholders removed, attributes of mapped events changed, new ambiguity, and
    schemas that are not known to be compatible (`unknown`).

    Example: xrouter catalog diff old.xreg.json new.xreg.json
    """
    try:
        before, after = _loaded(old, logins), _loaded(new, logins)
    except DocumentError as error:
        print_text(f"xrouter: error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), err=True)
        raise typer.Exit(UNREADABLE) from error
    difference = compare(before, after)
    if format is OutputFormat.json:
        print_json(difference.to_json())
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
    "list": "router.commands.catalog:list_definitions",
    "show": "router.commands.catalog:show",
    "convert": "router.commands.catalog:convert_catalog",
    "pull": "router.commands.catalog:pull",
    "push": "router.commands.catalog:push",
    "diff": "router.commands.catalog:diff",
}
catalog_app = typer.Typer(
    add_completion=False, cls=lazy_group(COMMANDS), help="Inspect, convert, diff and sync catalogs."
)


@catalog_app.callback()
def _catalog() -> None:
    """Inspect, convert, diff and sync catalogs."""


# ``xrouter catalog pull``: a registry's catalog as one file, which means what the registry means.

# A registry read whole, as one document that stands by itself.

NAMED: Final = 5
"""Definitions that a warning names."""


def read_registry(url: str, by: Fetcher) -> Document:
    """Read a registry with everything that it links to.

    Raises:
        CatalogUnavailable: something of it cannot be read, or nothing of it is a catalog.
        DocumentError: the registry itself cannot be read.
    """
    findings = Findings()
    (read,) = read_documents([url], findings, fetcher=by)
    following = AddressFollower(by, findings)
    document = following.completed(read)
    for finding in findings.sorted():
        if finding.severity == "error" or (finding.rule, finding.severity) == ("unreadable-document", "warning"):
            raise CatalogUnavailable(f"{url} is not read whole: {finding.message}", hint=finding.hint)
    if following.pending:
        away = ", ".join(following.pending)
        raise CatalogUnavailable(f"{url} is not read whole: {away} cannot be reached now", hint="try again")
    if not isinstance(document.tree, dict) or detect(document.tree) is None:
        hint = "give the address of a registry, of a part of one, or of a message catalog's API"
        raise CatalogUnavailable(f"{url} holds no catalog", hint=hint)
    return document


def named(xids: Sequence[str]) -> str:
    """Name the first definitions of many in a warning."""
    return ", ".join(xids[:NAMED]) + (f" and {len(xids) - NAMED} more" if len(xids) > NAMED else "")


# A document that was read from a registry, made to stand by itself: nothing in it has to be fetched there again.

_ENDS: Final = ("url", "count")
_SCHEMA_GROUPS: Final = "schemagroups"
_HELD: Final = ("schema", "schemabase64")
_ELSEWHERE: Final = ("schemaurl", "schemauri")


def standalone(document: Document, fetcher: Fetcher) -> dict[str, Any]:
    """Return the tree of a *document* whose collections are all shown, with the schemas of its registry in it.

    Addresses and counts of collections that it shows are left out, since they are the registry's to say.

    Raises:
        DocumentError: a schema of the registry cannot be read.
    """
    origin = origin_of(document.file)
    tree = _plain(document.tree)
    for name, groups in tree.items():
        if name.lower() == _SCHEMA_GROUPS and isinstance(groups, dict):
            for group in groups.values():
                for schema in _members(group, "schemas"):
                    for holder in (schema, *_members(schema, "versions")):
                        _embed(holder, origin, fetcher)
    return tree


def _plain(entity: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Copy an entity; its collections are at even depths, and a registry has no more than three levels of them."""
    shown = {key.lower() for key, value in entity.items() if key.lower() in NESTED and isinstance(value, dict)}
    plain: dict[str, Any] = {}
    for key, value in entity.items():
        lower = key.lower()
        if any(lower.endswith(end) and lower.removesuffix(end) in shown for end in _ENDS):
            continue
        if lower in shown and depth < 3:
            value = {name: _plain(each, depth + 1) if isinstance(each, dict) else each for name, each in value.items()}
        plain[key] = value
    return plain


def _members(holder: Any, name: str) -> list[dict[str, Any]]:
    collection = holder.get(name) if isinstance(holder, dict) else None
    return [each for each in collection.values() if isinstance(each, dict)] if isinstance(collection, dict) else []


def _embed(holder: dict[str, Any], origin: str, fetcher: Fetcher) -> None:
    """Put the document of a schema in the place of its address, when that is the registry's own."""
    named = next((name for name in _ELSEWHERE if isinstance(holder.get(name), str)), None)
    if named is None or any(holder.get(name) is not None for name in _HELD):
        return
    address = holder[named]
    if not is_url(address) or "#" in address or origin_of(address) != origin:
        return
    data = fetcher.fetch(address)
    del holder[named]
    try:
        holder["schema"] = parse_text("", data).tree if data.lstrip()[:1] in (b"{", b"[") else data.decode("utf-8")
    except (DocumentError, UnicodeDecodeError):
        holder["schemabase64"] = base64.b64encode(data).decode("ascii")


def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="A registry, a part of one, or a message catalog API.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Output file; standard output by default.")
    ] = None,
    to: Annotated[
        DocumentFormat | None, typer.Option("--to", help="By default from the suffix of FILE, else json.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    allow: AllowAddresses = None,
    logins: LoginsOption = None,
) -> None:
    """Download the whole catalog of a registry as one document.

    It includes all pages, and definitions and schemas that the registry links to. If any of them cannot be read,
    nothing is written. A warning names definitions that differ in the file because of relative references.

    Example: xrouter catalog pull https://registry.example/ catalog.xreg.json
    """
    if not is_url(url):
        hint = f"`xrouter catalog convert {url}` converts files"
        raise RouterError(f"{url} is not an http or https URL of a registry", hint=hint)
    require_absent(file, force=force)
    by = fetcher(logins, allow or ())
    document = read_registry(url, by)
    pulled = standalone(document, by)
    write_text(document_text(pulled, document_format(to, file)), file)
    _compare(
        build([document], Findings(), fetcher=by),
        build([Document(str(file or "-"), pulled)], Findings(), fetcher=by),
    )


def _compare(registry: Catalog, file: Catalog) -> None:
    """Warn when the file means something else; schemas that only the file has, unreferenced, do not count."""
    before, after = registry.definitions, file.definitions
    other = [xid for xid in {**before, **after} if before.get(xid) != after.get(xid)]
    rest = (registry.groups, registry.endpoints) != (file.groups, file.endpoints)
    if not other and not rest and all(file.schemas.get(key) == held for key, held in registry.schemas.items()):
        return
    text = f"the file differs from the registry: {named(other) or 'its endpoints or schemas'}"
    print_text(f"xrouter: warning: {text}; relative references resolve differently there", err=True)


# ``xrouter catalog push``: a checked catalog into a registry, after a look at what that changes.

# A catalog laid over what a registry has: what is sent to it, and what it has then.
#
# Entities of the catalog become what the catalog says, with all that it says; all others stay. A resource that the
# registry has already keeps the names of its versions: what the catalog gives without versions is its default version.

RESOURCES: Final[Mapping[str, str]] = {"endpoints": "messages", "messagegroups": "messages", "schemagroups": "schemas"}
"""Collections of a registry's groups, each with that of their resources."""
Tree = Mapping[str, Any]


def groups_of(catalog: Tree, registry: Tree) -> dict[str, Any]:
    """Return the groups of a *catalog*, which is an xRegistry 1.0 document, as they are sent to a *registry*."""
    overlay: dict[str, Any] = {}
    for plural, resources in RESOURCES.items():
        groups = {}
        for name, group in _push_members(catalog, plural):
            there = _member(registry, plural, name)
            sent = {
                each: _sent(body, _member(there, resources, each)) for each, body in _push_members(group, resources)
            }
            groups[name] = {**group, **({resources: sent} if sent else {})}
        if groups:
            overlay[plural] = groups
    return overlay


def overlay(registry: Tree, groups: Tree) -> dict[str, Any]:
    """Return the document of a *registry* that has taken in *groups*."""
    tree = dict(registry)
    for plural, resources in RESOURCES.items():
        there = dict(_push_members(registry, plural))
        for name, group in _push_members(groups, plural):
            kept = {**dict(_push_members(there.get(name), resources)), **dict(_push_members(group, resources))}
            there[name] = {**group, **({resources: kept} if kept else {})}
        if there:
            tree[plural] = there
    return tree


def _sent(body: Tree, there: Tree) -> dict[str, Any]:
    versions = dict(_push_members(body, "versions"))
    meta = body.get("meta")
    # What refers to another has no version of its own.
    unnamed = there or (isinstance(meta, Mapping) and meta.get("xref") is not None)
    kept = {name: value for name, value in body.items() if name != "versionid" or not unnamed}
    if not versions:
        return kept
    known = there.get("versionid")
    sent = _chained(versions, {*dict(_push_members(there, "versions")), known}, known, body.get("versionid"))
    if known is not None and known not in versions:
        # The attributes beside ``versions`` would become those of the version that is the default one until now.
        sent[known] = dict(_member(there, "versions", known)) or _alone(there)
    return {**kept, "versions": sent}


def _alone(resource: Tree) -> dict[str, Any]:
    """Return the default version of a resource that is shown without its versions."""
    return {name: value for name, value in resource.items() if name not in ("meta", "versions", "xid", "self")}


def _chained(versions: Mapping[str, Any], there: Collection[Any], known: Any, default: Any) -> dict[str, Any]:
    """Let each new version descend from the one before it, unless the catalog says itself from which.

    *there* are the versions that the registry has, of which *known* is the default one. The default one of the catalog
    comes last, since what nothing descends from becomes the default one.
    """
    chained = dict(versions)
    if any("ancestorid" in each for each in versions.values()):
        return chained
    new = sorted((name for name in versions if name not in there), key=lambda name: (name == default, _number(name)))
    for name in new:
        chained[name] = {**versions[name], "ancestorid": known if known is not None else name}
        known = name
    return chained


def _number(name: str) -> int:
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 19 else 0


def _push_members(holder: Any, plural: str) -> Iterator[tuple[str, Tree]]:
    collection = holder.get(plural) if isinstance(holder, Mapping) else None
    if isinstance(collection, Mapping):
        yield from ((name, each) for name, each in collection.items() if isinstance(each, Mapping))


def _member(holder: Any, plural: str, name: str) -> Tree:
    return next((each for one, each in _push_members(holder, plural) if one == name), {})


FLAGS: Final = "?ignore=epoch,readonly"
"""Epochs in a document are those of where it came from."""
NOTE: Final = "xRouter-Finding"


def push(
    path: Annotated[str, typer.Argument(metavar="PATH", help="File, folder or URL of the catalog, in any format.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="The root of an xRegistry 1.0 registry.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    allow: AllowAddresses = None,
    logins: LoginsOption = None,
) -> None:
    """Upload a catalog to a registry in one request, all or nothing.

    The catalog must have no lint errors. Changes for consumers are shown first, as by `catalog diff`. Groups, messages
    and schemas of the catalog replace those of the registry; others stay. Afterwards the registry is read again, and a
    warning names definitions that differ there.

    Example: xrouter catalog push catalog.xreg.json https://registry.example/ --dry-run
    """
    if not is_url(url):
        hint = f"`xrouter catalog convert {path}` writes files"
        raise RouterError(f"{url} is not an http or https URL of a registry", hint=hint)
    by = fetcher(logins, allow or ())
    catalog, document = _checked(path, by)
    registry = read_registry(url, by)
    tree = standalone(registry, by)
    groups = groups_of(document, tree)
    before, after = (_built(Document(registry.file, each), by) for each in (tree, overlay(tree, groups)))
    write_difference(compare(before, after))
    if dry_run:
        return
    _ask(url, yes=yes)
    _send(url, groups, by)
    # Another fetcher: this one remembers what the registry was.
    _push_compare(catalog, load([url], fetcher=fetcher(logins, allow or ())))


def _push_compare(catalog: Catalog, registry: Catalog) -> None:
    """Warn when definitions mean something else in the registry, but for where their schemas are."""
    there = registry.definitions
    other = [
        xid
        for xid, each in catalog.definitions.items()
        if xid not in there or replace(each, schemauri=None) != replace(there[xid], schemauri=None)
    ]
    if other:
        text = f"the registry differs from the catalog: {named(other)}"
        print_text(f"xrouter: warning: {text}; relative references resolve differently there", err=True)


def _checked(path: str, by: Fetcher) -> tuple[Catalog, Mapping[str, Any]]:
    """Return a catalog, and the same as an xRegistry 1.0 document.

    Raises:
        CatalogUnavailable: it has errors, or nothing to push.
        DocumentError: it cannot be read.
    """
    declarations = Declarations()
    catalog = load([path], fetcher=by, declarations=declarations)
    errors = rejecting_errors(catalog.findings)
    for each in errors:
        print_text(f"error: {each.file}{each.pointer}: {each.message}", err=True)
    hint = f"`xrouter check {path}` shows more"
    if errors:
        raise CatalogUnavailable(f"{path} has {counted(len(errors), 'error')} and is not pushed", hint=hint)
    if not (declarations.messages or declarations.endpoints or declarations.schemas or declarations.groups):
        raise CatalogUnavailable(f"{path} holds nothing to push", hint=hint)
    return catalog, convert(catalog, declarations).document


def _built(document: Document, by: Fetcher) -> Catalog:
    return build([document], Findings(), fetcher=by)


def _ask(url: str, *, yes: bool) -> None:
    """Go on only when the user says so.

    Raises:
        RouterError: there is nobody to ask.
        typer.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise RouterError("no terminal to ask for confirmation", hint="give --yes, or --dry-run to preview")
    typer.confirm(f"push this to {url}?", abort=True, err=True)


def _send(url: str, groups: Mapping[str, Any], by: Fetcher) -> None:
    """Write all groups by one request.

    Raises:
        RouterError: the registry refuses it.
        DocumentError: it is not known what came of it.
    """
    receipt = post(url.partition("?")[0].rstrip("/") + "/" + FLAGS, msgspec.json.encode(groups), by, note=NOTE)
    if not 200 <= receipt.status < 300:
        raise _refused(by.address(url), receipt.status, receipt.data)
    for note in receipt.notes:
        print_text(f"the registry notes: {unquote(note)}", err=True)
    numbers = ", ".join(counted(len(each), plural.removesuffix("s")) for plural, each in groups.items())
    print_text(f"pushed {numbers}")


def _refused(url: str, status: int, data: bytes) -> RouterError:
    try:
        problem = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError:
        problem = {}
    title = str(problem.get("title") or f"it answers {status}")
    detail = str(problem.get("detail") or "")
    hint = {
        401: "configure a login (catalog.logins in the settings of --logins)",
        403: "configure a login with write permission (catalog.logins)",
        404: "give the root of an xRegistry 1.0 registry",
        405: "give the root of a writable xRegistry 1.0 registry",
        413: "push the catalog in parts, a file at a time",
    }.get(status, "")
    if status >= 500:
        return RouterError(f"{url} failed to store the catalog: {title}", hint="check its contents, then retry")
    return RouterError(f"{url} rejected the catalog and changed nothing: {title}", hint=detail or hint)
