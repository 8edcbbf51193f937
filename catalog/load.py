"""Load a catalog: read, detect, declare, inherit, build, lint and hash. The steps are in :func:`build`."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from catalog.definitions.inheritance import InheritanceResolver, add_relations, build_definition
from catalog.dialects import registry
from catalog.documents.connecting import ConnectionPolicy, Logins
from catalog.documents.documents import (
    MAX_SHRINK,
    CatalogSizes,
    Document,
    UnconfirmedCatalog,
    count_candidates,
    count_definitions,
    find_unfinished,
    limit_reasons,
    read_documents,
)
from catalog.documents.fetching import Fetcher, HttpCache, is_url
from catalog.documents.registry_api import own_addresses
from catalog.findings import Declarations, DeclaredEndpoint, DocumentError, Findings, SourceLocation
from catalog.linting import Subject, lint
from catalog.linting.attributes import rejecting_errors
from catalog.model import Catalog, Definition, Endpoint, Finding, Property, Relation
from catalog.parsing.nearest import Suggestions
from catalog.protocols.properties import add_nested_option
from catalog.references import AddressFollower, ExternalDocuments, ReferenceResolver
from catalog.schemas.library import SchemaAddresses
from catalog.schemas.linking import link_schemas

# JSON forms: the lines of ``xrouter catalog list``, and the lossless form stored with pinned plans.

FORMAT: Final = 1
"""Version of the lossless form."""


def listing_to_json(definition: Definition, catalog: Catalog) -> dict[str, Any]:
    """Return one line of ``catalog list``: the effective definition under 1.0 names.

    ``endpoints`` are the xids of the endpoints that offer it, whose defaults are not applied. ``relation`` is left
    out if
    there is none.
    """
    options: dict[str, Any] = {}
    for prop in definition.protocoloptions:
        add_nested_option(options, prop.name, _property_to_json(prop))
    line = {
        "xid": definition.xid,
        "envelope": definition.envelope,
        "protocol": definition.protocol,
        "envelopemetadata": {prop.name: _property_to_json(prop) for prop in definition.envelopemetadata},
        "protocoloptions": options,
        "dataschemaformat": definition.dataschemaformat,
        "dataschemauri": definition.dataschemauri,
        "datacontenttype": definition.datacontenttype,
        "base": list(definition.base),
        "endpoints": [
            xid for xid, endpoint in catalog.endpoints.items() if definition.xid in _candidate_set(endpoint.candidates)
        ],
    }
    relation = definition.relation
    return line if relation is None else {**line, "relation": asdict(relation)}


def definition_to_json(definition: Definition) -> dict[str, Any]:
    """Return a definition as plain JSON, lossless; :func:`definition_from_json` reads it."""
    form = _record_to_json(definition)
    for member in ("envelopemetadata", "protocoloptions"):
        form[member] = [_list_entry(prop) for prop in getattr(definition, member)]
    relation = form.pop("relation")
    return form if relation is None else {**form, "relation": asdict(relation)}


def definition_from_json(form: Mapping[str, Any]) -> Definition:
    """Read a definition written by :func:`definition_to_json`."""
    read = dict(form)
    for member in ("envelopemetadata", "protocoloptions"):
        read[member] = tuple(Property(*prop) for prop in form[member])
    read["base"] = tuple(form["base"])
    if "relation" in form:
        read["relation"] = Relation(**form["relation"])
    return Definition(**read)


def iter_meaning(catalog: Catalog) -> Iterator[Any]:
    """Yield the meaning of a catalog, without findings, as JSON parts in a fixed order."""
    yield from (definition_to_json(catalog.definitions[xid]) for xid in sorted(catalog.definitions))
    yield from ([xid, *catalog.groups[xid]] for xid in sorted(catalog.groups))
    yield from (_record_to_json(catalog.endpoints[xid]) for xid in sorted(catalog.endpoints))
    yield from ([xid, catalog.schemas[xid]] for xid in sorted(catalog.schemas))


def catalog_to_json(catalog: Catalog) -> dict[str, Any]:
    """Return a whole catalog as plain JSON, lossless; :func:`catalog_from_json` reads it."""
    return {
        "format": FORMAT,
        "definitions": [definition_to_json(each) for each in catalog.definitions.values()],
        "groups": {xid: list(members) for xid, members in catalog.groups.items()},
        "endpoints": [_record_to_json(endpoint) for endpoint in catalog.endpoints.values()],
        "schemas": dict(catalog.schemas),
        "findings": [finding_to_json(finding) for finding in catalog.findings],
        "epoch": catalog.epoch,
        "pending": list(catalog.pending),
        "order": list(catalog.order),
    }


def catalog_from_json(form: Mapping[str, Any]) -> Catalog:
    """Read a catalog written by :func:`catalog_to_json`.

    Raises:
        ValueError: it was written in another format.
    """
    if form.get("format") != FORMAT:
        raise ValueError(f"cannot read a catalog of format {form.get('format')!r}; this version reads format {FORMAT}")
    definitions = map(definition_from_json, form["definitions"])
    endpoints = map(_endpoint_from_json, form["endpoints"])
    return Catalog(
        definitions={each.xid: each for each in definitions},
        groups={xid: tuple(members) for xid, members in form["groups"].items()},
        endpoints={each.xid: each for each in endpoints},
        schemas=dict(form["schemas"]),
        findings=tuple(Finding(**finding) for finding in form["findings"]),
        epoch=form["epoch"],
        pending=tuple(form.get("pending", ())),
        order=tuple(form.get("order", ())),
    )


def finding_to_json(finding: Finding) -> dict[str, str]:
    """Return a finding as in ``check --format json``."""
    return _record_to_json(finding)


def _record_to_json(record: Definition | Endpoint | Finding) -> dict[str, Any]:
    form = ((name, getattr(record, name)) for name in record.__slots__)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in form}


def _endpoint_from_json(form: Mapping[str, Any]) -> Endpoint:
    read: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in form.items()}
    return Endpoint(**read)


def _list_entry(prop: Property) -> list[Any]:
    listed = [prop.name, prop.type, prop.value, prop.required]
    return [*listed, prop.wire] if prop.wire else listed


def _property_to_json(prop: Property) -> dict[str, Any]:
    return {"type": prop.type, "value": prop.value, "required": prop.required}


@lru_cache(maxsize=1024)
def _candidate_set(candidates: tuple[str, ...]) -> frozenset[str]:
    return frozenset(candidates)


# Garbage collection with many long-lived objects.


@contextmanager
def pause_gc() -> Iterator[None]:
    """Pause garbage collection while a catalog or plan is built, where it takes a third of the time for nothing.

    Reference counting still works. Can be used as a function decorator.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def freeze_for_gc() -> None:
    """Collect garbage once, and exclude all current objects from collections until the next call.

    A plan of 10,000 definitions has some 160,000 objects; a collection takes 0.1 to 0.2 s and blocks all threads.
    Call it
    after such objects were created and others released.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


EPOCH_CHARACTERS: Final = 16
MAX_CANDIDATES: Final = 1_000_000
"""Maximum candidates of all endpoints together."""


@pause_gc()
def load(
    sources: Sequence[str | Path],
    *,
    network: bool = False,
    declarations: Declarations | None = None,
    fetcher: Fetcher | None = None,
    allow: Sequence[str] = (),
    base_uri: str = "",
) -> Catalog:
    """Read files, folders and URLs as one catalog, with all findings of lint.

    References across documents work. A definition that cannot be used is left out and reported; the rest works. URLs
    are rejected unless *network* is on; documents may refer to public addresses and to those of *allow*
    (:class:`catalog.documents.connecting.ConnectionPolicy`). *declarations* is filled with what the documents declare.
    *fetcher* replaces
    *network* and *allow*, and records everything that was read. *base_uri* is the address of the
    registry that the sources come from, if they do not state it themselves.

    Raises:
        DocumentError: a source is missing, unreadable, or neither JSON nor YAML (exit code 2 of ``check``).
    """
    findings = Findings()
    given = fetcher if fetcher is not None else Fetcher(network=network, reach=ConnectionPolicy(allow))
    return build_catalog(read_documents(sources, findings, fetcher=given), findings, declarations, given, base_uri)


def build_catalog(
    documents: Iterable[Document],
    findings: Findings,
    into: Declarations | None = None,
    fetcher: Fetcher | None = None,
    base_uri: str = "",
) -> Catalog:
    """Build a catalog from documents; it includes all *findings*, also those passed in.

    *fetcher* reads the references; without it there is no network access. *base_uri* is as for :func:`load`.
    """
    given = fetcher if fetcher is not None else Fetcher(network=False)
    following = AddressFollower(given, findings)
    documents = tuple(following.completed(document) for document in documents)
    declarations = _declare_documents(documents, Declarations() if into is None else into, findings)
    abroad = ExternalDocuments(documents, declarations, given, findings, _declare_documents, following)
    resolver = ReferenceResolver(declarations.messages, declarations.groups, abroad)
    near = Suggestions(declarations.groups)
    listed = {each.xid: _resolve_groups(each, resolver, findings, near) for each in declarations.endpoints.values()}
    effective = InheritanceResolver(declarations, resolver, findings).resolve()
    definitions = dict(sorted((each.message.xid, build_definition(each, findings)) for each in effective))
    definitions = add_relations(definitions, declarations)
    groups = _build_groups(declarations, definitions)
    endpoints = _build_endpoints(declarations, definitions, groups, listed, findings)
    addresses = SchemaAddresses(declarations, abroad, base_uri)
    linked = link_schemas(definitions, declarations, abroad, given, findings, addresses)
    catalog = Catalog(linked.definitions, groups, endpoints, linked.schemas)
    lint(Subject(catalog, declarations, documents, findings))
    order = tuple(each.message.xid for each in effective)
    pending = tuple(sorted({*following.pending, *abroad.pending, *linked.pending}))
    return replace(catalog, findings=findings.sorted(), epoch=compute_epoch(catalog), pending=pending, order=order)


def compute_epoch(catalog: Catalog) -> str:
    """Return the content hash of a catalog: equal for equal meaning, regardless of files, order and format."""
    digest = hashlib.sha256()
    for part in iter_meaning(catalog):  # one at a time: the text of a whole catalog may be large
        digest.update(msgspec.json.encode(part, order="deterministic"))
        digest.update(b"\n")
    return digest.hexdigest()[:EPOCH_CHARACTERS]


def _declare_documents(documents: Iterable[Document], declarations: Declarations, findings: Findings) -> Declarations:
    for document in documents:
        place = SourceLocation(document.file)
        for address in own_addresses(document.tree) or tuple(each for each in document.aliases[:1] if is_url(each)):
            files = (document.file, *(each.file for each in document.mounts.values()))
            declarations.addresses.update(dict.fromkeys(files, address))
        if registry.read(document.tree, document.root, declarations, findings):
            continue
        if document.named:
            hint = "use a catalog with messages; records cannot be matched with other registries"
            findings.error(
                place, "not-a-catalog", "this document has no message groups, endpoints or schema groups", hint
            )
        else:
            findings.info(place, "not-a-catalog", "skipped: no message groups, endpoints or schema groups", "")
    return declarations


def _build_groups(declarations: Declarations, definitions: Mapping[str, Definition]) -> dict[str, tuple[str, ...]]:
    members: dict[str, list[str]] = {xid: [] for xid in sorted(declarations.groups)}
    for definition in definitions.values():
        if definition.group in members:
            members[definition.group].append(definition.xid)
    return {xid: tuple(listed) for xid, listed in members.items()}


def _build_endpoints(
    declarations: Declarations,
    definitions: Mapping[str, Definition],
    groups: Mapping[str, tuple[str, ...]],
    listed: Mapping[str, tuple[str, ...]],
    findings: Findings,
) -> dict[str, Endpoint]:
    inline: dict[str, list[str]] = {}
    for definition in definitions.values():
        if definition.group in declarations.endpoints:
            inline.setdefault(definition.group, []).append(definition.xid)
    endpoints: dict[str, Endpoint] = {}
    left = MAX_CANDIDATES
    for xid in sorted(declarations.endpoints):
        declared = declarations.endpoints[xid]
        size = len(inline.get(xid, ())) + sum(len(groups[group]) for group in listed[xid])
        if size > left:
            text = f"{xid} has {size} candidates; all endpoints together have more than {MAX_CANDIDATES}"
            findings.error(declared.place, "too-many", text, "list fewer groups, or split the catalog")
            continue
        left -= size
        candidates = (*inline.get(xid, ()), *(message for group in listed[xid] for message in groups[group]))
        shared = {
            name: getattr(declared, name) for name in Endpoint.__slots__ if name not in ("candidates", "messagegroups")
        }
        endpoints[xid] = Endpoint(candidates=tuple(dict.fromkeys(candidates)), messagegroups=listed[xid], **shared)
    return endpoints


def _resolve_groups(
    declared: DeclaredEndpoint, resolver: ReferenceResolver, findings: Findings, near: Suggestions
) -> tuple[str, ...]:
    groups: dict[str, None] = {}
    for index, reference in enumerate(declared.messagegroups):
        place = declared.groups_written[index] if declared.groups_written else declared.place / "messagegroups" / index
        group = resolver.resolve_group(reference, place.file)
        if group is not None:
            groups[group] = None
        failure = resolver.failure_of(reference, place.file)
        if failure is not None and failure.transient:
            text = f"the message group {reference} is unavailable at present: {failure}"
            findings.warning(place, "unreachable-reference", text, failure.hint)
        elif group is None:
            text = f"the message group {reference} was not found" + (f" ({failure})" if failure is not None else "")
            # The network is off, so it is unknown what exists.
            unasked = failure is not None and failure.offline
            hint = near.hint(reference, "correct the reference, or add the document")
            findings.add(place, "warning" if unasked else "error", "dangling-group", text, hint)
    return tuple(groups)


# Watching a catalog for changes. The caller decides when to check; there is no thread.
#
# Everything that the last load read is checked: sources, referenced documents, schemas, folders, and every page of a
# registry. URLs are requested conditionally, which costs a 304.

CHECK_SECONDS: Final = 45.0
"""Maximum time that one check waits for the network: less than the timeout of supervisors."""
WAKE_SECONDS: Final = 0.5
"""Minimum interval between the starts of two checks, however often the watcher is woken."""


@dataclass(frozen=True, slots=True)
class RejectedCatalog:
    """A changed catalog that is rejected, with its findings; the last valid one stays in use."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that caused the rejection."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


@dataclass(frozen=True, slots=True)
class PendingCatalog:
    """A catalog that is, or refers to something, unavailable at present; the last valid one stays in use.

    ``uris`` are the unavailable addresses.
    """

    uris: tuple[str, ...]


def new_errors(catalog: Catalog, known: Sequence[Finding], *, elsewhere: bool = False) -> tuple[Finding, ...]:
    """Return the rejecting errors that are not in *known*, so were caused by a change.

    With *elsewhere*, *known* are findings of other files.
    """
    old = {("" if elsewhere else finding.file, finding.rule, finding.message) for finding in known}
    return tuple(
        finding
        for finding in rejecting_errors(catalog.findings)
        if ("" if elsewhere else finding.file, finding.rule, finding.message) not in old
    )


class CatalogWatcher:
    """Checks whether anything that the last load read has changed, at most once per *interval* seconds.

    A catalog is rejected for errors that the current one does not have, and pending while it refers to something that
    is unavailable (MATCHING.md#epochs-and-reloads); both only while another is in use.

    A change that looks unfinished (:mod:`catalog.documents.documents`) is accepted if the next check finds the same.
    One that is *unfit* for its user is rejected like one with errors.

    A change is reported once, as a catalog, a rejection or a wait. Unreadable sources are rejected once (or pending
    if only unavailable) and read
    again at each check. A change that does not alter the meaning (the epoch) returns None, except for the first valid
    catalog after a rejection or a wait.
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        interval: float,
        *,
        network: bool = False,
        allow: Sequence[str] = (),
        logins: Logins | None = None,
        base_uri: str = "",
        max_shrink: float = MAX_SHRINK,
        current: Catalog | None = None,
        elsewhere: bool = False,
        unfit: Callable[[Catalog], tuple[Finding, ...]] = lambda catalog: (),
        unread: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch *sources*; *current* is the catalog in use, so that an unchanged first check reports nothing.

        With *elsewhere* it was read from other sources, which these must not replace. With *unread* the sources
        could not be read at that time: the first valid check is reported, changed or not.

        *allow* and *base_uri* are as for :func:`catalog.load.load`, *logins* are credentials for registries.
        If a catalog, document or endpoint loses more than *max_shrink* of its definitions (0 to 1), the catalog must be
        confirmed by a second check. *unfit* returns further reasons to reject a changed catalog.
        """
        self._sources = tuple(sources)
        self._interval = interval
        self._network = network
        self._base_uri = base_uri
        self._clock = clock
        self._cache = HttpCache(clock=clock)
        self._reach = ConnectionPolicy(allow)
        self._logins = logins if logins is not None else Logins()
        self._epoch = current.epoch if current is not None else None
        self._tolerated: Sequence[Finding] = current.findings if current is not None else ()
        self._seen: Mapping[str, str] | None = None
        self._trouble = ""
        self._refused = unread
        self._awaited: tuple[str, ...] = ()
        self._elsewhere = elsewhere
        self._unfit = unfit
        self._max_shrink = max_shrink
        self._sizes = CatalogSizes()
        if current is not None:
            self._sizes = CatalogSizes(len(current.definitions), {}, count_candidates(current))
        self._held: tuple[Catalog, CatalogSizes] | None = None
        self._doubts: tuple[str, ...] = ()
        self._due = clock()
        self._began = self._due - WAKE_SECONDS

    @property
    def due(self) -> bool:
        """Whether a poll would check; before that it returns None."""
        return self._clock() >= self._due

    def wake(self) -> None:
        """Make the next check due at once, after a notification of a change; callable from any thread.

        Frequent calls cause one check each ``WAKE_SECONDS``. A call during a check causes another one after it.
        """
        self._due = min(self._due, max(self._clock(), self._began + WAKE_SECONDS))

    @property
    def awaited(self) -> tuple[str, ...]:
        """The addresses that the latest catalog waits for; empty if it does not wait."""
        return self._awaited

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the latest catalog needs a second check; empty if it does not."""
        return self._doubts

    def poll(self) -> Catalog | RejectedCatalog | PendingCatalog | UnconfirmedCatalog | None:
        """Check if due: return a new catalog, a rejection, a pending or unconfirmed change, or None.

        None if nothing changed, if it is too early, and while a file is being written.
        """
        if not self.due:
            return None
        self._began = self._clock()
        self._due = self._began + self._interval
        fetcher = self._make_fetcher()
        if self._seen is not None and not fetcher.has_changed(self._seen):
            return self._confirm()
        before, declarations = self._seen or {}, Declarations()
        self._held, self._doubts = None, ()
        try:
            catalog = load(self._sources, fetcher=fetcher, declarations=declarations, base_uri=self._base_uri)
        except DocumentError as error:
            self._seen = fetcher.seen
            return self._handle_unreadable(error)
        if self._make_fetcher().has_changed(fetcher.seen, local=True):
            return None  # it is being written; the next check decides
        self._seen = fetcher.seen
        self._trouble = ""
        sizes = count_definitions(catalog, declarations)
        self._doubts = self._doubts_of(catalog, sizes, fetcher, before)
        if self._doubts:
            self._held = (catalog, sizes)
            return UnconfirmedCatalog(self._doubts)
        return self._decide(catalog, sizes)

    def _doubts_of(
        self, catalog: Catalog, sizes: CatalogSizes, fetcher: Fetcher, before: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Return the reasons why a changed catalog needs confirmation by a second check."""
        if self._epoch in (None, catalog.epoch) or catalog.pending or self._new_errors(catalog):
            return ()
        doubts = (*sizes.find_lost_definitions(self._sizes, self._max_shrink), *find_unfinished(fetcher, before))
        # A rejection is reported at once.
        emptied = () if doubts or self._unfit(catalog) else sizes.find_lost_candidates(self._sizes, self._max_shrink)
        return limit_reasons((*doubts, *emptied))

    def _confirm(self) -> Catalog | RejectedCatalog | PendingCatalog | None:
        """Accept the catalog that needed confirmation, since it is unchanged."""
        if self._held is None:
            return None
        held, self._held, self._doubts = self._held, None, ()
        return self._decide(*held)

    def _decide(self, catalog: Catalog, sizes: CatalogSizes) -> Catalog | RejectedCatalog | PendingCatalog | None:
        errors = self._new_errors(catalog)
        if errors:
            return self._reject(errors)
        if catalog.epoch == self._epoch and not self._refused:
            self._awaited = ()
            self._sizes = sizes
            return None
        if catalog.pending and self._epoch not in (None, catalog.epoch):
            reported, self._awaited = self._awaited, catalog.pending
            return PendingCatalog(catalog.pending) if reported != catalog.pending else None
        if not catalog.definitions:
            # This is a mistake or an outage far more often than intended, and all records would become dead letters.
            return self._reject((Finding("", "", "error", "no-definitions", "the catalog has no usable definition"),))
        unfit = self._unfit(catalog) if self._epoch not in (None, catalog.epoch) else ()
        if unfit:
            return self._reject(unfit)
        self._refused = False
        self._awaited = ()
        self._epoch = catalog.epoch
        if not self._elsewhere:
            self._tolerated = catalog.findings
        self._sizes = sizes
        return catalog

    def _new_errors(self, catalog: Catalog) -> tuple[Finding, ...]:
        return new_errors(catalog, self._tolerated, elsewhere=self._elsewhere)

    def _make_fetcher(self) -> Fetcher:
        return Fetcher(
            network=self._network, cache=self._cache, reach=self._reach, logins=self._logins, load_seconds=CHECK_SECONDS
        )

    def _handle_unreadable(self, error: DocumentError) -> RejectedCatalog | PendingCatalog | None:
        if self._trouble == str(error):
            return None
        self._trouble = str(error)
        if error.transient and self._epoch is not None:
            self._refused = True
            reported, self._awaited = self._awaited, (error.file,)
            return PendingCatalog(self._awaited) if reported != self._awaited else None
        findings = Findings()
        findings.error(SourceLocation(error.file, error.pointer), "unreadable-document", str(error), error.hint)
        return self._reject(findings.sorted())

    def _reject(self, findings: tuple[Finding, ...]) -> RejectedCatalog:
        """Return a rejection, and remember to report the next valid catalog."""
        self._refused = True
        self._awaited = ()
        return RejectedCatalog(findings)
