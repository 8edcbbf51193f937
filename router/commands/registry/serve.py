"""``xrouter registry``: serving, replication, history, copies, import and export."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import msgspec
import typer
from sqlalchemy.exc import SQLAlchemyError

from bindings.gateways import GatewayError
from catalog.documents.connecting import Trust, origin_of
from catalog.documents.documents import read_documents
from catalog.documents.fetching import is_url
from catalog.findings import DocumentError, Findings
from registry.core import changes
from registry.core.requests import Flags, RegistryRequest, Response, Verb
from registry.core.service import RegistrySession
from registry.errors import Refusal
from registry.http.openapi import HISTORY
from registry.http.server import RegistryServer
from registry.model.attributes import model_source
from registry.replication.peers import PeerExchange
from registry.store.engine import StoreError, store_error
from registry.upkeep import back_up, put_back
from router.commands.arguments import LoginsOption, check_free, fetcher, write_text
from router.commands.registry.settings import ConfigArgument, admit, load_registry, opened, refused, unopened
from router.errors import CatalogUnavailable, RouterError, StateError
from router.logs import configure_logs, get_logger
from router.terminal import counted, say, write_document

# ``xrouter registry serve``: the service.

_TICK = 0.5
_GRACE = 10.0


def serve(config: ConfigArgument) -> None:
    """Serve the registry until SIGTERM or Ctrl-C; what is in flight is finished.

    Example: xrouter registry serve registry.yaml
    """
    given, settings = load_registry(config)
    admit(given, config)
    configure_logs(given.log)
    log = get_logger()
    server = RegistryServer(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    try:
        server.start()
    except StoreError as error:
        raise unopened(error) from error
    except SQLAlchemyError as error:
        raise unopened(store_error(settings.store, error)) from error
    except (GatewayError, OSError) as error:
        raise RouterError(str(error)) from error
    except Refusal as refusal:
        raise refused(refusal) from refusal
    scheme = "https" if settings.tls_certificate else "http"
    log.info("registry listening", address=f"{scheme}://{settings.host}:{server.port}")
    try:
        while not stop.wait(_TICK):
            if not server.alive:
                raise RouterError("the registry's server ended by itself", hint="its log says why")
    finally:
        server.stop(_GRACE)
    log.info("stopped")


# ``xrouter registry pull`` and ``push``: one round of replication with the peers of the settings.

UrlArgument = Annotated[
    str | None, typer.Argument(metavar="URL", help="One of `replication`; without it, all of them.")
]


def pull(config: ConfigArgument, url: UrlArgument = None) -> None:
    """Take what other catalogs have changed since the last time, whatever `direction` says.

    Example: xrouter registry pull registry.yaml
    """
    _replicate(config, url, "pull")


def push(config: ConfigArgument, url: UrlArgument = None) -> None:
    """Give other catalogs what has changed here since the last time, whatever `direction` says.

    Example: xrouter registry push registry.yaml
    """
    _replicate(config, url, "push")


def _replicate(config: Path, url: str | None, direction: Literal["pull", "push"]) -> None:
    _, settings = load_registry(config)
    peers = [each for each in settings.peers if url in (None, each.url)]
    if not peers:
        named = ", ".join(each.url for each in settings.peers) or "none"
        raise RouterError(f"there is no such catalog in replication: {url or config}", hint=f"there are {named}")
    with opened(config) as service:
        for peer in peers:
            done = PeerExchange(service).run(peer, direction)
            say(f"{direction} {peer.url}: {counted(done.sent, 'change')}, {done.applied} of them new")
            for subject, why in done.reported:
                say(f"refused: {subject}: {why}", err=True)
            if done.refused:
                raise RouterError(f"{peer.url}: {counted(done.refused, 'change')} refused", hint="the first are above")


# ``xrouter registry history``: who changed what, and when.

_PAGE: Final = 500
_PAGE_BYTES: Final = 8 * 2**20
_LONGEST: Final = 200
"""Characters of a value that are shown as text."""
_SERVED: Final = ("/epoch", "/modifiedat", "/createdat")


class HistoryForm(StrEnum):
    """How entries are written."""

    text = "text"
    json = "json"


def history(
    source: Annotated[str, typer.Argument(metavar="CONFIG|URL", help="Settings file, or URL, of the registry.")],
    xid: Annotated[str, typer.Argument(metavar="XID", help="Entity, such as /endpoints/e; without it, all.")] = "",
    below: Annotated[bool, typer.Option("--below", help="Entities below that one too.")] = False,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Entries at most.")] = 50,
    form: Annotated[HistoryForm, typer.Option("--format", help="Text, or JSON, one entry a line.")] = HistoryForm.text,
    logins: LoginsOption = None,
) -> None:
    """Show who changed what and when, the newest first; `who` of a URL needs credentials there.

    Example: xrouter registry history registry.yaml /messagegroups/orders --below
    """
    if xid and not xid.startswith("/"):
        raise RouterError(f"{xid} is no xid", hint="write the path of the entity, such as /endpoints/e")
    asked = changes.Question(xid, below, oldest, None, limit)
    if is_url(source):
        _write(_of_url(source, asked, logins), form)
        return
    with opened(Path(source), lint=False) as service, service.session(writing=False) as session:
        connection = session.reader.connection
        _write(_pages(asked, lambda each: changes.page(connection, each, _PAGE_BYTES)[0]), form)


def _of_url(url: str, asked: changes.Question, logins: Path | None) -> Iterator[Mapping[str, Any]]:
    reads = fetcher(logins)
    url = reads.address(url)
    reads.reach.name(origin_of(url), Trust.OPERATOR)  # who runs the command names it, wherever it is

    def page(each: changes.Question) -> list[dict[str, Any]]:
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
                f"{url} has no history: {error}", hint="it must be a registry of xrouter"
            ) from error

    return _pages(asked, page)


def _pages(
    asked: changes.Question, page: Callable[[changes.Question], list[dict[str, Any]]]
) -> Iterator[Mapping[str, Any]]:
    """Yield entries until there are none, or as many as are asked for; a page may be short and not the last."""
    left, after = asked.limit, asked.after
    while left:
        found = page(changes.Question(asked.xid, asked.below, asked.oldest, after, min(left, _PAGE)))
        if not found:
            return
        yield from found
        left -= min(len(found), left)
        after = found[-1]["number"]


def _write(entries: Iterator[Mapping[str, Any]], form: HistoryForm) -> None:
    for entry in entries:
        if form is HistoryForm.json:
            write_document(msgspec.json.encode(entry) + b"\n")
            continue
        say(f"{entry['at']}  {entry.get('who') or '-'}  {entry['action']}  {entry['xid']}")
        changed = entry.get("changed")
        if changed is None:
            say("    what it changed is not kept any more")
            continue
        for pointer, values in changed.items():
            if pointer not in _SERVED:
                say(f"    {_line(pointer, values)}")


def _line(pointer: str, values: Mapping[str, Any]) -> str:
    old, new = (_short(values[name]) if name in values else "" for name in ("old", "new"))
    if not old:
        return f"+ {pointer}: {new}"
    return f"~ {pointer}: {old} -> {new}" if new else f"- {pointer}: {old}"


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode("utf-8")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


# ``xrouter registry backup`` and ``restore``: all of a registry in one file, with its history and subscriptions.

ForceOption = Annotated[bool, typer.Option("--force", help="Write over what is there.")]


def backup(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: SQLite's, or a dump of pg_dump.")],
    force: ForceOption = False,
) -> None:
    """Copy all of a registry, while it is served or not; the file is there as a whole or not at all.

    Example: xrouter registry backup registry.yaml registry.backup
    """
    _, settings = load_registry(config)
    check_free(file, force=force)
    with _reported(file):
        back_up(settings.store, file)
    say(f"{file} has all of the registry")


def restore(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `backup` wrote.")],
    force: ForceOption = False,
) -> None:
    """Make a registry what a copy says, while nobody serves it; all that it has is replaced.

    Example: xrouter registry restore registry.yaml registry.backup --force
    """
    _, settings = load_registry(config)
    with _reported(file):
        put_back(settings.store, file, force=force)
    say(f"the registry is as {file} has it")


@contextmanager
def _reported(file: Path) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise StateError(str(error), hint=error.hint) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RouterError(f"{error.filename or file}: {reason}", hint="check the path and its rights") from error


# ``xrouter registry export``: a registry as one document.


def export_document(
    config: ConfigArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to write; without it, standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write the whole registry as one xRegistry document, such as `import` and the router take.

    It has the model and the capabilities where they are not those that every registry begins with. History and
    subscriptions are in a `backup` alone.

    Example: xrouter registry export registry.yaml catalog.xreg.json
    """
    check_free(file, force=force)
    with opened(config, lint=False) as service, service.session(writing=False) as session:
        registry = session.registry
        inline = ["*"]
        inline += ["modelsource"] if registry.modelsource != model_source() else []
        inline += ["capabilities"] if registry.capabilities else []
        flags = Flags(doc=True, inline=inline)
        answer = session.perform(RegistryRequest("read", (), "/", "", flags, details=True, max_answer=2**40))
    text = msgspec.json.format(msgspec.json.encode(answer.body), indent=2).decode("utf-8")
    write_text(f"{text}\n", file)


# ``xrouter registry import``: a document into a registry.

_CONFIGURED: Final = ("modelsource", "model", "capabilities")
_SERVED_HINT: Final = (
    "$schema",
    "specversion",
    "registryid",
    "self",
    "shortself",
    "xid",
    "epoch",
    "createdat",
    "modifiedat",
)
"""What a registry says of itself, and what names the document's form: settings and the server give those."""


def import_document(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="xRegistry 1.0 document, JSON or YAML.")],
    model: Annotated[
        bool | None,
        typer.Option("--model/--no-model", help="Take the document's model and capabilities, or leave ours."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Keep its epochs and times; for a registry without groups.")
    ] = False,
) -> None:
    """Write a document into the registry, its own attributes too, in one transaction: all of it, or none.

    A document whose model or capabilities are not ours is refused unless an option says whose are to be in force.
    Epochs in it do not count, but with --exact.

    Example: xrouter registry import registry.yaml catalog.xreg.json
    """
    tree = _read(file)
    with opened(config) as service, service.session(writing=True) as session:
        if exact and any(next(session.reader.groups(f"/{plural}"), None) for plural in session.model.groups):
            hint = "import without --exact, or into a new registry"
            raise RouterError("epochs and times are kept in a registry without groups alone", hint=hint)
        configured = _configured(tree, session, file, model)
        known = {**session.model.groups, **_groups_of(configured)}
        given = {name: tree[name] for name in known if isinstance(tree.get(name), dict)}
        if not given:
            hint = "`xrouter catalog convert` makes xRegistry 1.0 of other dialects"
            raise CatalogUnavailable(f"{file} has none of {', '.join(sorted(known))}", hint=hint)
        own = _own(tree, known)
        if own or configured:
            _perform(session, "patch", {**own, **configured})
        answer = _perform(session, "add", given, tree if exact else None)
        counts = {name: len(each) for name, each in (answer.body or {}).items()}
    say(f"imported {', '.join(f'{count} {name}' for name, count in counts.items()) or 'nothing'}")
    for finding in answer.findings:
        say(f"{finding['severity']}: {finding['place']}: {finding['message']}", err=True)


def _perform(session: RegistrySession, verb: Verb, body: Any, exact: Mapping[str, Any] | None = None) -> Response:
    flags = Flags(ignore=("epoch,readonly",))
    request = RegistryRequest(verb, (), "/", "", flags, body=body, who="import", administrator=True, max_answer=2**40)
    return session.perform(replace(request, exact=exact))


def _configured(tree: Mapping[str, Any], session: RegistrySession, file: Path, model: bool | None) -> dict[str, Any]:
    """Return what of a document's model and capabilities is to be taken.

    Raises:
        RouterError: they are not ours, and nobody said whose count.
    """
    read = {
        name: session.perform(RegistryRequest("read", (name,), f"/{name}", "")).body
        for name in _CONFIGURED
        if name in tree
    }
    other = {name: tree[name] for name, ours in read.items() if tree[name] is not None and tree[name] != ours}
    if "modelsource" in tree:
        other.pop("model", None)  # which follows from it
    elif "model" in other:
        other["modelsource"] = other.pop("model")
    if other and model is None:
        hint = "take those of the document with --model, or leave ours with --no-model"
        raise RouterError(f"{file} has other {' and '.join(sorted(other))} than this registry", hint=hint)
    return other if model else {}


def _groups_of(configured: Mapping[str, Any]) -> dict[str, Any]:
    source = configured.get("modelsource")
    groups = source.get("groups") if isinstance(source, Mapping) else None
    return dict(groups) if isinstance(groups, Mapping) else {}


def _own(tree: Mapping[str, Any], groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the registry's own attributes; names that the model does not have are refused when they are written."""
    shown = {f"{plural}{end}" for plural in groups for end in ("", "url", "count")}
    passed = {*_SERVED_HINT, *_CONFIGURED, *shown}
    return {name: value for name, value in tree.items() if name not in passed}


def _read(file: Path) -> dict[str, Any]:
    """Return the document of a file, or of a folder that is one."""
    findings = Findings()
    documents = read_documents([file], findings)
    if len(documents) > 1:
        raise DocumentError(f"{file} holds several documents", file=str(file), hint="import one after the other")
    for each in findings.sorted():
        if each.severity == "error":
            raise DocumentError(each.message, file=str(file), hint=each.hint or "correct it; nothing was imported")
        say(f"{each.severity}: {each.message}", err=True)
    tree: dict[str, Any] = documents[0].tree
    return tree


# ``xrouter registry init``: the store of a registry.


def init(config: ConfigArgument) -> None:
    """Make the store of a registry, or bring it to the form of this version; `serve` does so too.

    Example: xrouter registry init registry.yaml
    """
    with opened(config):
        say("the registry is ready")
