"""``xrouter registry``: serve, pull, push, history, backup, restore, export, import and init."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import msgspec
import typer

from catalog.documents.connecting import Trust, origin_of
from catalog.documents.documents import read_documents
from catalog.documents.fetching import is_url
from catalog.findings import DocumentError, Findings
from registry.backup import back_up, restore_backup
from registry.core import changes
from registry.core.requests import Flags, RegistryRequest, Response, Verb
from registry.core.service import RegistrySession
from registry.http.openapi import HISTORY
from registry.http.server import RegistryServer
from registry.model.attributes import model_source
from registry.replication.peers import PeerExchange
from router.commands.arguments import Force, LoginsOption, OutputFormat, make_fetcher, refuse_overwriting, write_text
from router.commands.registry.settings import (
    ConfigArgument,
    load_registry,
    open_registry,
    report_errors,
    require_access,
)
from router.errors import CatalogUnavailable, RouterError
from router.logs import configure_logs, get_logger
from router.terminal import plural, print_text, write_document

# ``xrouter registry serve``

_TICK = 0.5
_GRACE = 10.0


def serve(config: ConfigArgument) -> None:
    """Serve the registry until SIGTERM or Ctrl-C; requests in flight are completed.

    Example: xrouter registry serve registry.yaml
    """
    given, settings = load_registry(config)
    require_access(given, config)
    configure_logs(given.log)
    log = get_logger()
    server = RegistryServer(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    with report_errors(settings):
        server.start()
    scheme = "https" if settings.tls else "http"
    log.info("registry listening", address=f"{scheme}://{settings.host}:{server.port}")
    try:
        while not stop.wait(_TICK):
            if not server.is_alive:
                raise RouterError("the registry's server stopped unexpectedly", hint="see its log for the cause")
    finally:
        server.stop(_GRACE)
    log.info("stopped")


# ``xrouter registry pull`` and ``push``: one round of replication with the configured peers.

UrlArgument = Annotated[str | None, typer.Argument(metavar="URL", help="One peer of `replication`; default: all.")]


def pull(config: ConfigArgument, url: UrlArgument = None) -> None:
    """Pull changes from other catalogs since the last pull, regardless of `direction`.

    Example: xrouter registry pull registry.yaml
    """
    _replicate(config, url, "pull")


def push(config: ConfigArgument, url: UrlArgument = None) -> None:
    """Push changes to other catalogs since the last push, regardless of `direction`.

    Example: xrouter registry push registry.yaml
    """
    _replicate(config, url, "push")


def _replicate(config: Path, url: str | None, direction: Literal["pull", "push"]) -> None:
    _, settings = load_registry(config)
    peers = [each for each in settings.peers if url in (None, each.url)]
    if not peers:
        named = ", ".join(each.url for each in settings.peers) or "none"
        raise RouterError(f"no such catalog in replication: {url or config}", hint=f"configured are {named}")
    with open_registry(config) as service:
        for peer in peers:
            done = PeerExchange(service).run(peer, direction)
            print_text(f"{direction} {peer.url}: {plural(done.sent, 'change')}, {done.applied} of them new")
            for subject, why in done.reported:
                print_text(f"refused: {subject}: {why}", err=True)
            if done.refused:
                raise RouterError(f"{peer.url}: {plural(done.refused, 'change')} refused", hint="see above")


# ``xrouter registry history``

_PAGE: Final = 500
_PAGE_BYTES: Final = 8 * 2**20
_MAX_VALUE: Final = 200
"""Characters of a value in text output."""
_VOLATILE_MEMBERS: Final = ("/epoch", "/modifiedat", "/createdat")


def history(
    source: Annotated[str, typer.Argument(metavar="CONFIG|URL", help="Settings file or URL of the registry.")],
    xid: Annotated[str, typer.Argument(metavar="XID", help="Entity, such as /endpoints/e; default: all.")] = "",
    below: Annotated[bool, typer.Option("--below", help="Include entities below it.")] = False,
    oldest: Annotated[bool, typer.Option("--oldest", help="Show the oldest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Maximum number of entries.")] = 50,
    form: Annotated[OutputFormat, typer.Option("--format", help="Text, or JSON, one entry a line.")] = "text",
    logins: LoginsOption = None,
) -> None:
    """Show who changed what and when, newest first; names of writers at a URL need credentials.

    Example: xrouter registry history registry.yaml /messagegroups/orders --below
    """
    if xid and not xid.startswith("/"):
        raise RouterError(f"{xid} is not a valid xid", hint="use the path of the entity, such as /endpoints/e")
    query = changes.HistoryQuery(xid, below, oldest, None, limit)
    if is_url(source):
        _print_entries(_fetch_entries(source, query, logins), form)
        return
    with open_registry(Path(source), lint=False) as service, service.session(writing=False) as session:
        connection = session.reader.connection
        _print_entries(_iter_entries(query, lambda each: changes.history_page(connection, each, _PAGE_BYTES)[0]), form)


def _fetch_entries(url: str, query: changes.HistoryQuery, logins: Path | None) -> Iterator[Mapping[str, Any]]:
    reads = make_fetcher(logins)
    url = reads.address(url)
    reads.reach.name(origin_of(url), Trust.OPERATOR)  # the operator names it, so any address is allowed

    def page(each: changes.HistoryQuery) -> list[dict[str, Any]]:
        query = {"limit": str(each.limit), "sort": "number=asc" if each.oldest else "number=desc"}
        query |= {"xid": each.xid} if each.xid else {}
        query |= {"below": ""} if each.below else {}
        query |= {"cursor": str(each.after)} if each.after is not None else {}
        address = f"{url.rstrip('/')}{HISTORY}?{urlencode(query)}"
        try:
            return msgspec.json.decode(reads.fetch(address), type=list[dict[str, Any]])
        except DocumentError as error:
            raise CatalogUnavailable(str(error), hint=error.hint or "check the URL and `--logins`") from error
        except msgspec.MsgspecError as error:
            raise CatalogUnavailable(
                f"{url} has no history: {error}", hint="use the URL of an xrouter registry"
            ) from error

    return _iter_entries(query, page)


def _iter_entries(
    query: changes.HistoryQuery, page: Callable[[changes.HistoryQuery], list[dict[str, Any]]]
) -> Iterator[Mapping[str, Any]]:
    """Yield up to the requested number of entries; a short page need not be the last one."""
    left, after = query.limit, query.after
    while left:
        found = page(changes.HistoryQuery(query.xid, query.below, query.oldest, after, min(left, _PAGE)))
        if not found:
            return
        yield from found
        left -= min(len(found), left)
        after = found[-1]["number"]


def _print_entries(entries: Iterator[Mapping[str, Any]], form: OutputFormat) -> None:
    for entry in entries:
        if form == "json":
            write_document(msgspec.json.encode(entry) + b"\n")
            continue
        print_text(f"{entry['at']}  {entry.get('who') or '-'}  {entry['action']}  {entry['xid']}")
        changed = entry.get("changed")
        if changed is None:
            print_text("    changes unknown: the previous entry was pruned")
            continue
        for pointer, values in changed.items():
            if pointer not in _VOLATILE_MEMBERS:
                print_text(f"    {_format_change(pointer, values)}")


def _format_change(pointer: str, values: Mapping[str, Any]) -> str:
    old, new = (_shorten_value(values[name]) if name in values else "" for name in ("old", "new"))
    if not old:
        return f"+ {pointer}: {new}"
    return f"~ {pointer}: {old} -> {new}" if new else f"- {pointer}: {old}"


def _shorten_value(value: object) -> str:
    text = msgspec.json.encode(value).decode("utf-8")
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."


# ``xrouter registry backup`` and ``restore``: one file with everything, including history and subscriptions.

ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing data.")]


def backup(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: SQLite's, or a dump of pg_dump.")],
    force: ForceOption = False,
) -> None:
    """Back up a registry, even while it is served; the file appears complete or not at all.

    Example: xrouter registry backup registry.yaml registry.backup
    """
    _, settings = load_registry(config)
    refuse_overwriting(file, force=force)
    with report_errors(settings, located=False):
        back_up(settings.store, file)
    print_text(f"backup written to {file}")


def restore(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File written by `backup`.")],
    force: ForceOption = False,
) -> None:
    """Restore a registry from a backup while it is not served; its contents are replaced.

    Example: xrouter registry restore registry.yaml registry.backup --force
    """
    _, settings = load_registry(config)
    with report_errors(settings, located=False):
        restore_backup(settings.store, file, force=force)
    print_text(f"registry restored from {file}")


# ``xrouter registry export``


def export_document(
    config: ConfigArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to write; default: standard output.")
    ] = None,
    force: Force = False,
) -> None:
    """Write the whole registry as one xRegistry document, for `import` and for the router.

    It includes the model and the capabilities if they differ from the defaults. History and subscriptions are only in a
    `backup`.

    Example: xrouter registry export registry.yaml catalog.xreg.json
    """
    refuse_overwriting(file, force=force)
    with open_registry(config, lint=False) as service, service.session(writing=False) as session:
        registry = session.registry
        inline = ["*"]
        inline += ["modelsource"] if registry.modelsource != model_source() else []
        inline += ["capabilities"] if registry.capabilities else []
        flags = Flags(doc=True, inline=inline)
        answer = session.perform(RegistryRequest("read", (), "/", "", flags, details=True, max_answer=2**40))
    text = msgspec.json.format(msgspec.json.encode(answer.body), indent=2).decode("utf-8")
    write_text(f"{text}\n", file)


# ``xrouter registry import``

_CONFIGURED: Final = ("modelsource", "model", "capabilities")
_SERVED: Final = "$schema specversion registryid self shortself xid epoch createdat modifiedat".split()
"""Attributes set by settings and server, and those that identify the document format."""


def import_document(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="xRegistry 1.0 document, JSON or YAML.")],
    model: Annotated[
        bool | None,
        typer.Option("--model/--no-model", help="Use the document's model and capabilities, or keep the registry's."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Keep its epochs and times; only without groups.")] = False,
) -> None:
    """Import a document into the registry, including the registry's attributes, in one transaction.

    A document with another model or other capabilities is refused without --model or --no-model. Its epochs are ignored
    without --exact.

    Example: xrouter registry import registry.yaml catalog.xreg.json
    """
    tree = _read_document(file)
    with open_registry(config) as service, service.session(writing=True) as session:
        if exact and any(next(session.reader.iter_groups(f"/{plural}"), None) for plural in session.model.groups):
            hint = "import without --exact, or into a new registry"
            raise RouterError("epochs and times can only be kept in a registry without groups", hint=hint)
        configured = _choose_config(tree, session, file, model)
        source = configured.get("modelsource")
        more = source.get("groups") if isinstance(source, dict) else None
        known = {**session.model.groups, **(more if isinstance(more, dict) else {})}
        given = {name: tree[name] for name in known if isinstance(tree.get(name), dict)}
        if not given:
            hint = "convert other dialects to xRegistry 1.0 with `xrouter catalog convert`"
            raise CatalogUnavailable(f"{file} has none of {', '.join(sorted(known))}", hint=hint)
        shown = {f"{plural_name}{end}" for plural_name in known for end in ("", "url", "count")}
        # Unknown attributes of the registry are refused on writing.
        own = {name: value for name, value in tree.items() if name not in {*_SERVED, *_CONFIGURED, *shown}}
        if own or configured:
            _send_request(session, "patch", {**own, **configured})
        answer = _send_request(session, "add", given, tree if exact else None)
        counts = {name: len(each) for name, each in (answer.body or {}).items()}
    print_text(f"imported {', '.join(f'{count} {name}' for name, count in counts.items()) or 'nothing'}")
    for finding in answer.findings:
        print_text(f"{finding['severity']}: {finding['place']}: {finding['message']}", err=True)


def _send_request(session: RegistrySession, verb: Verb, body: Any, exact: Mapping[str, Any] | None = None) -> Response:
    flags = Flags(ignore=("epoch,readonly",))
    request = RegistryRequest(verb, (), "/", "", flags, body=body, who="import", administrator=True, max_answer=2**40)
    return session.perform(replace(request, exact=exact))


def _choose_config(tree: Mapping[str, Any], session: RegistrySession, file: Path, model: bool | None) -> dict[str, Any]:
    """Return the model and capabilities of a document to import.

    Raises:
        RouterError: they differ from the registry's, and no option says which to use.
    """
    read = {
        name: session.perform(RegistryRequest("read", (name,), f"/{name}", "")).body
        for name in _CONFIGURED
        if name in tree
    }
    other = {name: tree[name] for name, ours in read.items() if tree[name] is not None and tree[name] != ours}
    if "modelsource" in tree:
        other.pop("model", None)  # derived from it
    elif "model" in other:
        other["modelsource"] = other.pop("model")
    if other and model is None:
        hint = "use the document's with --model, or keep the registry's with --no-model"
        raise RouterError(f"{file} has different {' and '.join(sorted(other))} than this registry", hint=hint)
    return other if model else {}


def _read_document(file: Path) -> dict[str, Any]:
    """Return the document in a file or folder."""
    findings = Findings()
    documents = read_documents([file], findings)
    if len(documents) > 1:
        raise DocumentError(f"{file} contains several documents", file=str(file), hint="import them one by one")
    for each in findings.sorted():
        if each.severity == "error":
            raise DocumentError(each.message, file=str(file), hint=each.hint or "fix it; nothing was imported")
        print_text(f"{each.severity}: {each.message}", err=True)
    tree: dict[str, Any] = documents[0].tree
    return tree


# ``xrouter registry init``


def init(config: ConfigArgument) -> None:
    """Create the store of a registry, or migrate it to this version; `serve` does so too.

    Example: xrouter registry init registry.yaml
    """
    with open_registry(config):
        print_text("the registry is ready")
