"""``xrouter catalog list``, ``show``, ``convert`` and ``diff``."""

from __future__ import annotations

import base64
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote

import msgspec
import typer

from catalog.asyncapi import AsyncApiCatalog, write_asyncapi
from catalog.comparing import CatalogChange, CatalogDiff, compare_catalogs
from catalog.convert import ConvertedCatalog, convert
from catalog.dialects import detect
from catalog.documents.connecting import origin_of
from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.registry_api import NESTED, post_json
from catalog.explaining import entity_to_json, known_xids
from catalog.findings import Declarations, DocumentError, Findings
from catalog.linting.attributes import rejecting_errors
from catalog.load import build_catalog, listing_to_json, load
from catalog.model import Catalog
from catalog.parsing.texts import parse_text
from catalog.references import AddressFollower
from router.commands import arguments
from router.errors import GOOD, USAGE, WRONG, CatalogUnavailable, RouterError
from router.logs import shorten_list
from router.terminal import (
    MAX_LISTED,
    plural,
    print_json,
    print_json_lines,
    print_row,
    print_table,
    print_text,
    terminal,
    to_text,
    value_text,
)

# ``xrouter catalog show``: one entity of a catalog, with the origin of each of its values.

_SHOWN_MEMBERS: Final = ("type", "value", "required")
_SOURCE_NAMES: Final = {"cloudevents": "CloudEvents", "protocol": "protocol table", "default": "default"}
Row = tuple[str, str, str]
"""Name of a value, the value, and its origin."""


def show(
    xid: Annotated[str, typer.Argument(metavar="XID", help="Of a message, endpoint, group, schema or version.")],
    sources: arguments.Sources,
    format: arguments.JsonObject = "text",
    logins: arguments.LoginsOption = None,
) -> None:
    """Show one entity of a catalog; for a message, where each value comes from and what it overrides.

    Example: xrouter catalog show /messagegroups/Garden/messages/Garden.Moisture catalog.xreg.json
    """
    declarations = Declarations()
    catalog = load(sources, fetcher=arguments.make_fetcher(logins), declarations=declarations)
    form = entity_to_json(xid, catalog, declarations)
    if form is None:
        raise _unknown_xid_error(xid, catalog, declarations, sources)
    if format == "json":
        print_json(form)
        return
    rows = list(_iter_message_rows(form) if form["kind"] == "message" else _iter_entity_rows(form))
    heading = (form["kind"], form["xid"], _format_location(form))
    if sys.stdout.isatty():
        print_table(("", "value", "from"), rows, title=" ".join(heading))
    else:
        for row in (heading, *rows):
            print_row(row if any(row[2:]) else row[: 2 if row[1] else 1])


def _unknown_xid_error(xid: str, catalog: Catalog, declarations: Declarations, sources: list[str]) -> RouterError:
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


def _iter_message_rows(form: Mapping[str, Any]) -> Iterator[Row]:
    for name in ("envelope", "protocol"):
        if form[name]:
            suffix = "" if form[name].get("declared", True) else " (a default, which only restricts)"
            yield name, form[name]["value"] + suffix, _describe_origin(form[name])
    for prop in form["properties"]:
        name = f"{prop['section']}.{prop['name']}"
        for member in _SHOWN_MEMBERS:
            origin = prop["from"].get(member)
            if origin is not None and (member != "required" or origin["value"] or origin["source"] != "default"):
                yield f"{name} {member}", value_text(origin["value"]), _describe_origin(origin)
    for section in ("envelopeoptions", "attributes"):
        for name, origin in form[section].items():
            shown = "inline" if name == "dataschema" else value_text(origin["value"])
            yield f"envelopeoptions.{name}" if section == "envelopeoptions" else name, shown, _describe_origin(origin)
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


def _iter_entity_rows(form: Mapping[str, Any]) -> Iterator[Row]:
    for name, value in form.items():
        if name in ("kind", "xid", "file", "pointer") or value in (None, [], {}):
            continue
        if name == "versions":
            for version in value:
                yield from _iter_version_rows(version)
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", value_text(member), "") for key, member in value.items())
        else:
            yield from ((name, value_text(member), "") for member in (value if isinstance(value, list) else [value]))


def _iter_version_rows(version: Mapping[str, Any]) -> Iterator[Row]:
    name = f"version {version['versionid']}".rstrip()
    states = [state for state in ("default", "embedded", "loaded") if version[state]]
    document = version["address"] or " ".join(filter(None, (version["format"], ", ".join(states))))
    yield name, document, _format_location(version)
    for definition in version["definitions"]:
        yield f"{name} used by", definition, ""


def _describe_origin(origin: Mapping[str, Any]) -> str:
    """Return where a value comes from, and which other values it overrides."""
    source = _SOURCE_NAMES.get(origin["source"]) or _format_origin(origin)
    other = [each for each in origin.get("overrides", ()) if each["value"] != origin["value"]]
    over = [f"{value_text(each['value'])} of {_format_origin(each)}" for each in other]
    return f"{source}; overrides {', '.join(over)}" if over else source


def _format_origin(origin: Mapping[str, Any]) -> str:
    named = origin["xid"] if origin["source"] in ("base", "group", "endpoint") else "itself"
    place = _format_location(origin)
    return f"{named} ({place})" if place else named


def _format_location(form: Mapping[str, Any]) -> str:
    return f"{form['file']}#{form['pointer']}" if form.get("file") else ""


# ``xrouter catalog list``: the effective definitions.


def list_definitions(
    sources: arguments.Sources,
    format: arguments.JsonLines = "text",
    logins: arguments.LoginsOption = None,
) -> None:
    """List the effective message definitions, after inheritance.

    Example: xrouter catalog list catalog.xreg.json --format json
    """
    catalog = load(sources, fetcher=arguments.make_fetcher(logins))
    if format == "json":
        print_json_lines(listing_to_json(definition, catalog) for definition in catalog.definitions.values())
    else:
        rows = [
            (
                xid,
                definition.envelope or "-",
                definition.protocol or "-",
                ", ".join(each.xid for each in catalog.endpoints.values() if xid in each.candidates) or "-",
            )
            for xid, definition in catalog.definitions.items()
        ]
        columns = ("message", "envelope", "protocol", "endpoints")
        print_table(columns, rows, title=f"{len(rows)} definitions", heading=False)


# ``xrouter catalog convert``: any dialect to one xRegistry 1.0-rc4 document, or to AsyncAPI.


def convert_catalog(
    sources: arguments.Sources,
    to: Annotated[
        Literal["json", "yaml", "asyncapi-3.0"] | None,
        typer.Option("--to", help="By default from the suffix of --output, else json; asyncapi-3.0 is either of them."),
    ] = None,
    output: arguments.OutputFile = None,
    flatten: Annotated[bool, typer.Option("--flatten", help="Write effective messages without base messages.")] = False,
    force: arguments.Force = False,
    logins: arguments.LoginsOption = None,
) -> None:
    """Convert catalogs of any format, AsyncAPI too, to one equivalent xRegistry 1.0-rc4 document, or to AsyncAPI 3.0.

    Relative references are not changed: put the document in the folder of the first source. Entities with errors are
    left out and named on standard error; `xrouter check` shows why. What the other format has no place for is named
    there too. In AsyncAPI it is in the extension `x-xregistry`, so that reading the document gives the same catalog.

    Example: xrouter catalog convert catalog.cereg --output catalog.xreg.json
    """
    arguments.refuse_overwriting(output, force=force)
    declarations = Declarations()
    catalog = load(sources, fetcher=arguments.make_fetcher(logins), declarations=declarations)
    _require_content(declarations, f"{', '.join(sources)} holds nothing to convert", sources[0])
    done: ConvertedCatalog | AsyncApiCatalog
    if to == "asyncapi-3.0":
        done, form = write_asyncapi(catalog, declarations, flatten=flatten), None
    else:
        done, form = convert(catalog, declarations, flatten=flatten), to
    arguments.write_tree(done.document, form, output)
    for xid in done.left_out:
        print_text(f"xrouter: warning: {xid} has an error and is left out", err=True)
    for xid in done.not_flat:
        print_text(f"xrouter: warning: {xid} keeps its base, whose group gives its protocol", err=True)
    losses = [each for each in catalog.findings if each.rule in ("asyncapi-no-place", "asyncapi-protocol")]
    notes = [f"{each.file}{each.pointer}: {each.message}" for each in losses]
    notes.extend(_describe_unsaid(done) if isinstance(done, AsyncApiCatalog) else ())
    if len(notes) > MAX_LISTED:
        notes = [*notes[:MAX_LISTED], f"and {len(notes) - MAX_LISTED} more"]
    for note in notes:
        print_text(f"xrouter: note: {note}", err=True)


def _describe_unsaid(done: AsyncApiCatalog) -> Iterator[str]:
    """Yield what AsyncAPI has no place for, most frequent first, with an example of each."""
    found: dict[str, list[str]] = {}
    for each in done.unsaid:
        for member in each.members:
            found.setdefault(member, []).append(each.xid)
    for member, xids in sorted(found.items(), key=lambda item: -len(item[1])):
        where = xids[0] if len(xids) == 1 else f"{len(xids)} entities, such as {xids[0]}"
        yield f"AsyncAPI has no place for {member} of {where}; x-xregistry has it"


def _require_content(declarations: Declarations, problem: str, source: str) -> None:
    if not (declarations.messages or declarations.endpoints or declarations.schemas or declarations.groups):
        raise CatalogUnavailable(problem, hint=f"`xrouter check {source}` shows what it is")


# ``xrouter catalog diff``: what changed between two catalogs, and whether the second is compatible.


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="File, folder or URL of the old catalog.")],
    new: Annotated[str, typer.Argument(metavar="B", help="File, folder or URL of the new catalog.")],
    format: arguments.JsonObject = "text",
    logins: arguments.LoginsOption = None,
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
        before, after = (load([each], fetcher=arguments.make_fetcher(logins)) for each in (old, new))
    except DocumentError as error:
        print_text(f"xrouter: error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), err=True)
        raise typer.Exit(USAGE) from error
    difference = compare_catalogs(before, after)
    if format == "json":
        print_json(difference.to_json())
    else:
        write_difference(difference)
    raise typer.Exit(GOOD if difference.compatible else WRONG)


def write_difference(difference: CatalogDiff) -> None:
    """Write what changed for consumers, by definition, and how much of it is incompatible."""
    console = terminal(soft_wrap=True)
    shown = ""
    for change in difference.changes:
        if change.xid != shown:
            shown = change.xid
            console.print(to_text((shown, "bold")))
        colour = "green" if change.compatible else "red"
        console.print(to_text("  ", (change.kind, colour), describe_change(change)))
    wrong = sum(not change.compatible for change in difference.changes)
    changes = plural(len(difference.changes), "change")
    console.print(f"{changes}, {wrong} incompatible" if difference.changes else "nothing changed for consumers")


def describe_change(change: CatalogChange) -> str:
    """Return the name, relation, values and detail of a change as text; its kind and xid are left out."""
    words = [change.name] if change.name else []
    if change.relation is not None:
        words.append(f"({change.relation})")
    if change.before is not None or change.after is not None:
        words.append(f"{value_text(change.before)} -> {value_text(change.after)}")
    text = " ".join(words)
    return f" {text}{': ' if text and change.detail else ''}{change.detail}".rstrip()


# ``xrouter catalog pull``: download a registry's catalog as one equivalent file.

# Reading a whole registry as one self-contained document.


def read_registry(url: str, fetcher: Fetcher) -> Document:
    """Read a registry, including everything that it links to.

    Raises:
        CatalogUnavailable: a part of it cannot be read, or it contains no catalog.
        DocumentError: the registry itself cannot be read.
    """
    findings = Findings()
    (read,) = read_documents([url], findings, fetcher=fetcher)
    follower = AddressFollower(fetcher, findings)
    document = follower.completed(read)
    for finding in findings.sorted():
        if finding.severity == "error" or (finding.rule, finding.severity) == ("unreadable-document", "warning"):
            raise CatalogUnavailable(f"{url} is not read whole: {finding.message}", hint=finding.hint)
    if follower.pending:
        unreachable = ", ".join(follower.pending)
        raise CatalogUnavailable(f"{url} is not read whole: {unreachable} cannot be reached now", hint="try again")
    if not isinstance(document.tree, dict) or detect(document.tree) is None:
        hint = "give the address of a registry, of a part of one, or of a message catalog's API"
        raise CatalogUnavailable(f"{url} holds no catalog", hint=hint)
    return document


# Making a document from a registry self-contained, so that nothing has to be fetched from the registry again.


def inline_collections(document: Document, fetcher: Fetcher) -> dict[str, Any]:
    """Return the tree of a *document* with all collections and the schemas of its registry inline.

    The addresses and counts of inline collections are removed.

    Raises:
        DocumentError: a schema of the registry cannot be read.
    """
    origin = origin_of(document.file)
    tree = _copy(document.tree)
    for name, groups in tree.items():
        if name.lower() == "schemagroups" and isinstance(groups, dict):
            for group in groups.values():
                for _, schema in _iter_members(group, "schemas"):
                    for holder in (schema, *dict(_iter_members(schema, "versions")).values()):
                        _embed_schema(holder, origin, fetcher)
    return tree


def _copy(entity: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Copy an entity and its inline collections, which are nested at most three levels deep."""
    shown = {key.lower() for key, value in entity.items() if key.lower() in NESTED and isinstance(value, dict)}
    plain: dict[str, Any] = {}
    for key, value in entity.items():
        lower = key.lower()
        if any(lower.endswith(end) and lower.removesuffix(end) in shown for end in ("url", "count")):
            continue
        if lower in shown and depth < 3:
            value = {name: _copy(each, depth + 1) if isinstance(each, dict) else each for name, each in value.items()}
        plain[key] = value
    return plain


def _embed_schema(holder: dict[str, Any], origin: str, fetcher: Fetcher) -> None:
    """Replace the address of a schema by its document, if the address is at the same registry."""
    named = next((name for name in ("schemaurl", "schemauri") if isinstance(holder.get(name), str)), None)
    if named is None or any(holder.get(name) is not None for name in ("schema", "schemabase64")):
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
        arguments.DocumentFormat | None, typer.Option("--to", help="By default from the suffix of FILE, else json.")
    ] = None,
    force: arguments.Force = False,
    allow: arguments.AllowAddresses = None,
    logins: arguments.LoginsOption = None,
) -> None:
    """Download the whole catalog of a registry as one document.

    It includes all pages, and definitions and schemas that the registry links to. If any of them cannot be read,
    nothing is written. A warning names definitions that differ in the file because of relative references.

    Example: xrouter catalog pull https://registry.example/ catalog.xreg.json
    """
    if not is_url(url):
        hint = f"`xrouter catalog convert {url}` converts files"
        raise RouterError(f"{url} is not an http or https URL of a registry", hint=hint)
    arguments.refuse_overwriting(file, force=force)
    fetcher = arguments.make_fetcher(logins, allow or ())
    document = read_registry(url, fetcher)
    pulled = inline_collections(document, fetcher)
    arguments.write_tree(pulled, to, file)
    _warn_if_file_differs(
        build_catalog([document], Findings(), fetcher=fetcher),
        build_catalog([Document(str(file or "-"), pulled)], Findings(), fetcher=fetcher),
    )


def _warn_if_file_differs(registry: Catalog, file: Catalog) -> None:
    """Warn if the file differs from the registry; unreferenced schemas that only the file has do not count."""
    before, after = registry.definitions, file.definitions
    differing = [xid for xid in {**before, **after} if before.get(xid) != after.get(xid)]
    rest = (registry.groups, registry.endpoints) != (file.groups, file.endpoints)
    if not differing and not rest and all(file.schemas.get(key) == held for key, held in registry.schemas.items()):
        return
    text = f"the file differs from the registry: {shorten_list(differing) or 'its endpoints or schemas'}"
    print_text(f"xrouter: warning: {text}; relative references resolve differently there", err=True)


# ``xrouter catalog push``: upload a checked catalog to a registry, after showing what changes.

# Merging a catalog into a registry: what is sent, and what the registry contains afterwards.
#
# Entities of the catalog replace those of the registry; all others stay. A resource that already exists in the registry
# keeps the names of its versions: a resource without versions in the catalog becomes its default version.

RESOURCES: Final[Mapping[str, str]] = {"endpoints": "messages", "messagegroups": "messages", "schemagroups": "schemas"}
"""Names of group collections, each with the name of its resource collection."""
Tree = Mapping[str, Any]


def groups_to_send(catalog: Tree, registry: Tree) -> dict[str, Any]:
    """Return the groups of a *catalog* (an xRegistry 1.0 document) as they are sent to a *registry*."""
    overlay: dict[str, Any] = {}
    for plural_name, resources in RESOURCES.items():
        groups = {}
        for name, group in _iter_members(catalog, plural_name):
            there = _find_member(registry, plural_name, name)
            sent = {
                each: _to_send(body, _find_member(there, resources, each))
                for each, body in _iter_members(group, resources)
            }
            groups[name] = {**group, **({resources: sent} if sent else {})}
        if groups:
            overlay[plural_name] = groups
    return overlay


def overlay_groups(registry: Tree, groups: Tree) -> dict[str, Any]:
    """Return the document of a *registry* after *groups* were uploaded to it."""
    tree = dict(registry)
    for plural_name, resources in RESOURCES.items():
        there = dict(_iter_members(registry, plural_name))
        for name, group in _iter_members(groups, plural_name):
            kept = {**dict(_iter_members(there.get(name), resources)), **dict(_iter_members(group, resources))}
            there[name] = {**group, **({resources: kept} if kept else {})}
        if there:
            tree[plural_name] = there
    return tree


def _to_send(body: Tree, there: Tree) -> dict[str, Any]:
    versions = dict(_iter_members(body, "versions"))
    meta = body.get("meta")
    # A resource that refers to another has no version of its own.
    unnamed = there or (isinstance(meta, Mapping) and meta.get("xref") is not None)
    kept = {name: value for name, value in body.items() if name != "versionid" or not unnamed}
    if not versions:
        return kept
    known = there.get("versionid")
    sent = _set_ancestors(versions, {*dict(_iter_members(there, "versions")), known}, known, body.get("versionid"))
    if known is not None and known not in versions:
        # The attributes beside ``versions`` would become those of the version that is the default one until now.
        own = {name: value for name, value in there.items() if name not in ("meta", "versions", "xid", "self")}
        sent[known] = dict(_find_member(there, "versions", known)) or own
    return {**kept, "versions": sent}


def _set_ancestors(versions: Mapping[str, Any], there: Collection[Any], known: Any, default: Any) -> dict[str, Any]:
    """Set the ancestor of each new version to the previous one, unless the catalog sets ancestors itself.

    *there* are the versions in the registry, and *known* is the default one of them. The catalog's default version
    comes last, since the version without descendants becomes the default one.
    """
    chained = dict(versions)
    if any("ancestorid" in each for each in versions.values()):
        return chained
    new = sorted((name for name in versions if name not in there), key=lambda name: (name == default, _to_number(name)))
    for name in new:
        chained[name] = {**versions[name], "ancestorid": known if known is not None else name}
        known = name
    return chained


def _to_number(name: str) -> int:
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 19 else 0


def _iter_members(holder: Any, plural_name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    collection = holder.get(plural_name) if isinstance(holder, dict) else None
    if isinstance(collection, dict):
        yield from ((name, each) for name, each in collection.items() if isinstance(each, dict))


def _find_member(holder: Any, plural_name: str, name: str) -> Tree:
    return next((each for one, each in _iter_members(holder, plural_name) if one == name), {})


FLAGS: Final = "?ignore=epoch,readonly"
"""Query that ignores epochs, which a document has from its own source."""
NOTE: Final = "xRouter-Finding"


def push(
    path: Annotated[str, typer.Argument(metavar="PATH", help="File, folder or URL of the catalog, in any format.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="The root of an xRegistry 1.0 registry.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    yes: arguments.Yes = False,
    allow: arguments.AllowAddresses = None,
    logins: arguments.LoginsOption = None,
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
    fetcher = arguments.make_fetcher(logins, allow or ())
    declarations = Declarations()
    catalog = load([path], fetcher=fetcher, declarations=declarations)
    errors = rejecting_errors(catalog.findings)
    for each in errors:
        print_text(f"error: {each.file}{each.pointer}: {each.message}", err=True)
    if errors:
        hint = f"`xrouter check {path}` shows more"
        raise CatalogUnavailable(f"{path} has {plural(len(errors), 'error')} and is not pushed", hint=hint)
    _require_content(declarations, f"{path} holds nothing to push", path)
    registry = read_registry(url, fetcher)
    tree = inline_collections(registry, fetcher)
    groups = groups_to_send(convert(catalog, declarations).document, tree)
    documents = (Document(registry.file, each) for each in (tree, overlay_groups(tree, groups)))
    before, after = (build_catalog([each], Findings(), fetcher=fetcher) for each in documents)
    write_difference(compare_catalogs(before, after))
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise RouterError("no terminal to ask for confirmation", hint="give --yes, or --dry-run to preview")
        typer.confirm(f"push this to {url}?", abort=True, err=True)
    _send_groups(url, groups, fetcher)
    # Another fetcher: this one remembers what the registry was.
    _warn_if_registry_differs(catalog, load([url], fetcher=arguments.make_fetcher(logins, allow or ())))


def _warn_if_registry_differs(catalog: Catalog, registry: Catalog) -> None:
    """Warn about definitions that differ in the registry, apart from the addresses of their schemas."""
    there = registry.definitions
    differing = [
        xid
        for xid, each in catalog.definitions.items()
        if xid not in there or replace(each, schemauri=None) != replace(there[xid], schemauri=None)
    ]
    if differing:
        text = f"the registry differs from the catalog: {shorten_list(differing)}"
        print_text(f"xrouter: warning: {text}; relative references resolve differently there", err=True)


def _send_groups(url: str, groups: Mapping[str, Any], fetcher: Fetcher) -> None:
    """Upload all groups in one request.

    Raises:
        RouterError: the registry rejects it.
        DocumentError: the result is unknown.
    """
    receipt = post_json(url.partition("?")[0].rstrip("/") + "/" + FLAGS, msgspec.json.encode(groups), fetcher)
    if not 200 <= receipt.status < 300:
        raise _rejection_error(fetcher.address(url), receipt.status, receipt.data)
    for note in receipt.headers.get_list(NOTE):
        print_text(f"the registry notes: {unquote(note)}", err=True)
    numbers = ", ".join(plural(len(each), plural_name.removesuffix("s")) for plural_name, each in groups.items())
    print_text(f"pushed {numbers}")


def _rejection_error(url: str, status: int, data: bytes) -> RouterError:
    try:
        problem = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError:
        problem = {}
    title = str(problem.get("title") or f"it answers {status}")
    hint = {
        401: "configure a login (catalog.logins in the settings of --logins)",
        403: "configure a login with write permission (catalog.logins)",
        404: "give the root of an xRegistry 1.0 registry",
        405: "give the root of a writable xRegistry 1.0 registry",
        413: "push the catalog in parts, a file at a time",
    }.get(status, "")
    if status >= 500:
        return RouterError(f"{url} failed to store the catalog: {title}", hint="check its contents, then retry")
    return RouterError(
        f"{url} rejected the catalog and changed nothing: {title}", hint=str(problem.get("detail") or "") or hint
    )
