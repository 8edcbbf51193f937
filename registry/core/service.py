"""The registry service: each request is one transaction; a write is durable before its response is returned."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection

from registry.core.ancestry import Linter, WriteOptions, parse_given_time
from registry.core.changes import mark_changes, store_changes
from registry.core.requests import (
    ABSENT,
    RegistryRequest,
    ResourcePath,
    Response,
    body_etag,
    check_conditions,
    check_id,
    check_may_write,
    has_several_entities,
    parse_resource_path,
    response_etag,
)
from registry.core.responses import (
    CONFIGURATION_PATHS,
    OPENAPI,
    ResponseBuilder,
    check_specversion,
    effective_capabilities,
    ignorable_values,
    parse_capabilities,
    without_disabled_flags,
)
from registry.core.transaction import Transaction, WrittenEntity
from registry.errors import Refusal
from registry.model.attributes import (
    Model,
    ModelAttribute,
    ResourceType,
    check_values,
    current_time,
    later_time,
    model_source,
)
from registry.model.compiler import compile_model
from registry.store.engine import Database
from registry.store.entities import Entity, EntityReader, Registry, WriteTransaction, create_registry, level_of

# Exact epochs and times, of an import.


def set_exact_values(work: WriteTransaction, tree: Mapping[str, Any]) -> None:
    """Set the epochs and times of the written entities to those in a document of the whole registry."""
    work.record_changed(work.registry)
    for xid in work.touched:
        names = [] if xid == "/" else xid.split("/")[1:]
        body: Any = tree
        for name in (*names, "meta") if level_of(xid) == 2 else names:
            body = body.get(name) if isinstance(body, Mapping) else None
        _set_exact(work.now[xid], body)


def _set_exact(entity: Entity | None, body: object) -> None:
    if entity is None or not isinstance(body, Mapping):
        return
    epoch = body.get("epoch")
    if isinstance(epoch, int) and not isinstance(epoch, bool) and epoch > 0:
        entity.epoch = epoch
    entity.createdat = parse_given_time(body.get("createdat"), "createdat", entity.xid) or entity.createdat
    entity.modifiedat = parse_given_time(body.get("modifiedat"), "modifiedat", entity.xid) or entity.modifiedat


# A new model: compile it, and check all entities against it (``model.md``, Creating or Updating).
#
# New defaults are filled in, and versions are reordered and pruned by ``versionmode`` and ``maxversions``. Any other
# entity that does not comply refuses the model.

_MAX_SHOWN_FAULTS: Final = 20


def change_model(transaction: Transaction, source: object) -> None:
    """Replace the registry's model by the one of a source; the registry counts as updated.

    The transaction uses it from then on, and its :meth:`~Transaction.finish` checks the affected resources.

    Raises:
        Refusal: the source is not a valid model, or entities do not comply with it.
    """
    given: Mapping[str, Any] = source if isinstance(source, Mapping) else {}
    before, model = transaction.model, compile_model({} if source is None else source)
    _check_names_kept(before, model)
    if broken := list(islice(_iter_faults(transaction.work.reader, model), _MAX_SHOWN_FAULTS)):
        raise Refusal("model_compliance_error", "/model", detail="; ".join(broken))
    transaction.model = model
    transaction.work.registry.modelsource = dict(given)
    transaction.work.record_changed(transaction.work.registry)
    _migrate(transaction, before)


def _migrate(transaction: Transaction, before: Model) -> None:
    """Adapt existing entities to a new model, for each type that differs."""
    work = transaction.work
    for plural, kind in transaction.model.groups.items():
        was = before.groups.get(plural)
        if was is None or was == kind:
            continue
        for each in list(work.reader.iter_groups(f"/{plural}")):
            group = work.group(each.xid)
            assert group is not None
            if was.attributes != kind.attributes:
                _fill_defaults(transaction, group, kind.attributes)
            for name, resources in kind.resources.items():
                if was.constraints != kind.constraints or was.resources.get(name) != resources:
                    _recheck_resources(transaction, ResourcePath("resources", kind, group.id, resources))


def _recheck_resources(transaction: Transaction, place: ResourcePath) -> None:
    work = transaction.work
    for each in list(work.reader.iter_resources(place.xid)):
        resource = work.resource(each.xid)
        assert resource is not None
        transaction.pending_of(place.child(resource.id), resource)
        if resource.xref is None:
            _fill_defaults(transaction, resource, place.resource.meta)
            for version in work.versions_of(resource).values():
                _fill_defaults(transaction, version, place.resource.attributes)


def _fill_defaults(transaction: Transaction, entity: Entity, attributes: Mapping[str, ModelAttribute]) -> None:
    """Fill in missing defaults of an entity."""
    kept = {name: value for name, value in entity.attributes.items() if name == "readonly"}
    own = {name: value for name, value in entity.attributes.items() if name not in kept}
    values = {**check_values(entity.xid, own, attributes), **kept}
    if values != entity.attributes:
        entity.attributes = values
        entity.modifiedat = transaction.options.now
        transaction.raise_epoch(entity)
        transaction.work.record_changed(entity)


def _check_names_kept(before: Model, model: Model) -> None:
    for plural, kind in model.groups.items():
        was = before.groups.get(plural)
        if was is None:
            continue
        pairs = [(plural, was.singular, kind.singular)]
        pairs += [
            (f"{plural}.{name}", was.resources[name].singular, each.singular)
            for name, each in kind.resources.items()
            if name in was.resources
        ]
        for name, old, new in pairs:
            if old != new:
                detail = f"the singular name of {name} is {old} and cannot be changed to {new}"
                raise Refusal("model_error", "/model", error_detail=detail)


def _iter_faults(reader: EntityReader, model: Model) -> Iterator[str]:
    for plural in sorted(reader.group_types() - model.groups.keys()):
        yield f"there are {plural}"
    for plural, kind in model.groups.items():
        for group in reader.iter_groups(f"/{plural}"):
            yield from _iter_entity_faults(group.xid, group.attributes, kind.attributes)
            for name in sorted(reader.resource_types(group.xid) - kind.resources.keys()):
                yield f"there are {group.xid}/{name}"
            for name, resource_kind in kind.resources.items():
                yield from _iter_resource_faults(reader, resource_kind, f"{group.xid}/{name}")


def _iter_resource_faults(reader: EntityReader, kind: ResourceType, parent: str) -> Iterator[str]:
    served = {name for name, each in kind.attributes.items() if each.served}
    for resource in reader.iter_resources(parent):
        yield from _iter_entity_faults(f"{resource.xid}/meta", resource.attributes, kind.meta)
        if resource.sticky and kind.maxversions == 1:
            raise Refusal("setdefaultversionsticky_false", resource.xid)
        for version in reader.iter_versions(resource.versions):
            kept = {name: value for name, value in version.attributes.items() if name not in served}
            yield from _iter_entity_faults(version.xid, kept, kind.attributes)
            if not kind.hasdocument and reader.document(version.xid):
                raise Refusal("hasdocument_violation", version.xid, plural=kind.plural)


def _iter_entity_faults(xid: str, values: Mapping[str, Any], attributes: Any) -> Iterator[str]:
    try:
        check_values(xid, {name: value for name, value in values.items() if name != "readonly"}, attributes)
    except Refusal as error:
        yield error.title


_logger = logging.getLogger(__name__)
ChangeId = tuple[int, str]
"""Number and interaction of a change of the registry."""
METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "registry": ("read", "replace", "patch", "add"),
    "groups": ("read", "patch", "add", "delete"),
    "group": ("read", "replace", "patch", "add", "delete"),
    "resources": ("read", "patch", "add", "delete"),
    "resource": ("read", "replace", "patch", "add", "delete"),
    "meta": ("read", "replace", "patch"),
    "versions": ("read", "patch", "add", "delete"),
    "version": ("read", "replace", "patch", "delete"),
    "capabilities": ("read", "replace", "patch"),
    "capabilitiesoffered": ("read",),
    "model": ("read",),
    "modelsource": ("read", "replace"),
    "export": ("read",),
    OPENAPI: ("read",),
}
"""Allowed verbs by kind of path."""


class RegistrySession:
    """Requests within one transaction of :meth:`RegistryService.session`; each sees the writes of earlier ones."""

    def __init__(self, service: RegistryService, connection: Connection) -> None:
        self._service = service
        self._connection = connection
        self.reader: Final = EntityReader(connection)

    @property
    def registry(self) -> Registry:
        """The current registry entity."""
        return read_registry(self.reader)

    @property
    def model(self) -> Model:
        """The current model."""
        return self._service.compiled_model(self.registry)

    @property
    def last_change(self) -> ChangeId:
        """The last change of the registry; while it is unchanged, so are all responses to reads."""
        return self.reader.last_change()

    def parse_path(self, segments: tuple[str, ...], path: str) -> ResourcePath | str:
        """Return the place at a path, or the name of what is configured there.

        Raises:
            Refusal: there is no such path.
        """
        return _parse_path(self._service.registry_and_model(self.reader)[1], segments, path)

    def perform(self, request: RegistryRequest) -> Response:
        """Carry out a request; each write has its own interaction, history and events.

        Raises:
            Refusal: it is refused; earlier requests stay in effect unless the error leaves the block.
        """
        if request.verb != "read":
            work = WriteTransaction(self._connection)
            return self._write(work, without_disabled_flags(request, work.registry.capabilities))
        reader, service = self.reader, self._service
        registry, model = service.registry_and_model(reader)
        request = without_disabled_flags(request, registry.capabilities)
        place = self._parse_target(model, request)
        tag = response_etag(reader, request) if has_several_entities(place, request.flags) else ""
        if tag and tag in request.known:
            return Response(None, etag=tag)
        answerer = ResponseBuilder(reader, model, registry, request)
        if place == OPENAPI:
            described = service.describe(model, effective_capabilities(registry.capabilities), request.base)
            answer = Response(described, etag=body_etag(described))
        else:
            answer = answerer.configuration(place) if isinstance(place, str) else answerer.read_response(place)
        return replace(answer, etag=tag) if tag else answer

    def _parse_target(self, model: Model, request: RegistryRequest) -> ResourcePath | str:
        place = _parse_path(model, request.segments, request.path)
        if request.verb not in METHODS[methods_key(place)]:
            raise Refusal("action_not_supported", request.path, action=request.verb)
        return place

    def _write(self, work: WriteTransaction, request: RegistryRequest) -> Response:
        model = self._service.compiled_model(work.registry)
        check_specversion(request.flags, request.path)
        place = self._parse_target(model, request)
        moment = later_time(current_time(), work.reader.last_change_time())
        options = _options_of(request, place, ignorable_values(request, work.registry.capabilities), moment)
        self._check_group_permission(place, request)
        before = ResponseBuilder(work.reader, model, work.registry, request)
        _check_conditions(request, place, before)
        transaction = Transaction(work, model, request, options)
        names: Any = None
        if isinstance(place, str):
            self._write_configuration(transaction, place)
        else:
            self._apply_model(transaction, place)
            names = transaction.run(place)
        transaction.finish()
        model = transaction.model
        for group in sorted({"/".join(xid.split("/")[:3]) for xid in work.touched if xid != "/"}):
            check_may_write(request.may_write, group)
        if request.exact is not None:
            set_exact_values(work, request.exact)
        work.flush()
        findings: tuple[Mapping[str, str], ...] = ()
        if not request.replicated:
            mark_changes(work)
            findings = self._service.linter.lint_write(work, model, request.path)
        interaction = uuid.uuid4().hex
        store_changes(work, interaction, options.now, request.who)
        answer = self._response_to_write(work, model, place, request, names)
        return replace(answer, interaction=interaction, findings=findings)

    def _check_group_permission(self, place: ResourcePath | str, request: RegistryRequest) -> None:
        """Raise early if the writer may not write to the requested group."""
        if isinstance(place, str) or (place.kind == "registry" and request.verb != "add"):
            if not request.administrator:
                raise Refusal("forbidden", request.path, error_detail="only administrators may change this")
        elif place.gid:
            check_may_write(request.may_write, ResourcePath("group", place.group, place.gid).xid, place.xid)

    def _write_configuration(self, transaction: Transaction, name: str) -> None:
        request, work = transaction.request, transaction.work
        if request.body is ABSENT:
            raise Refusal("missing_body", request.path)
        if name == "capabilities":
            if not isinstance(request.body, Mapping):
                raise Refusal("capability_error", "/capabilities", error_detail="the capabilities must be an object")
            _store_capabilities(work, request.body, request)
        else:
            change_model(transaction, request.body)
            transaction.patch = True
            transaction.write_registry({})
        transaction.mark_modified(work.registry)

    def _apply_model(self, transaction: Transaction, place: ResourcePath) -> None:
        """Apply capabilities and model source first, if a write to the registry has them."""
        request, registry, ignore = transaction.request, transaction.work.registry, transaction.options.ignore
        body = request.body
        if place.kind != "registry" or request.verb == "add" or not isinstance(body, Mapping):
            return
        if "capabilities" in body and "capabilities" not in ignore:
            _store_capabilities(transaction.work, body["capabilities"], request)
        source = body.get("modelsource", registry.modelsource)
        if "modelsource" not in ignore and source != registry.modelsource:
            change_model(transaction, source)

    def _response_to_write(
        self, work: WriteTransaction, model: Model, place: ResourcePath | str, request: RegistryRequest, names: Any
    ) -> Response:
        answerer = ResponseBuilder(work.reader, model, work.registry, request)
        if isinstance(place, str):
            return answerer.configuration(place)
        if request.verb == "delete":
            return Response(None)
        if isinstance(names, WrittenEntity):
            answer = answerer.show_entity(names.place, answerer.view_options(names.place))
            answer = replace(answer, version=answer.version if names.version else "")
            has_document = names.place.kind in ("resource", "version") and names.place.resource.hasdocument
            details = "$details" if has_document and answer.document is None else ""
            return replace(answer, location=f"{request.base}{names.place.xid}{details}" if names.created else "")
        if place.is_collection:
            return Response(answerer.show_entities(place, names))
        return Response({plural: answerer.show_entities(where, ids) for plural, (where, ids) in names.items()})


class RegistryService:
    """A registry over a database. Thread-safe; writes are serialized.

    *describe* returns the OpenAPI document for a model, capabilities and the registry's URL. ``authority`` is the
    authority (a URI) of messages written here that name none; '' is the URL of the message catalog.
    """

    def __init__(
        self,
        database: Database,
        linter: Linter,
        describe: Callable[[Model, Mapping[str, Any], str], Mapping[str, Any]],
        authority: str = "",
    ) -> None:
        self.authority: Final = authority
        self._database = database
        self.linter: Final = linter
        self.describe: Final = describe
        self._compiled: tuple[Mapping[str, Any], Model] | None = None
        self._current: tuple[ChangeId, Registry, Model] | None = None

    def prepare(self, registryid: str) -> bool:
        """Create the registry if the database has none; return whether it was created.

        Raises:
            Refusal: the id is not valid.
        """
        with self._database.writing() as connection:
            if EntityReader(connection).registry() is not None:
                return False
            moment = current_time()
            given = Registry("", check_id(registryid, "/"), 1, moment, moment, {}, model_source())
            create_registry(connection, given)
            return True

    def perform(self, request: RegistryRequest) -> Response:
        """Carry out a request.

        Raises:
            Refusal: it is refused, and nothing has changed.
        """
        with self.session(writing=request.verb != "read") as session:
            return session.perform(request)

    @contextmanager
    def session(self, *, writing: bool) -> Iterator[RegistrySession]:
        """Run several requests in one transaction, which is rolled back if the block raises."""
        with self._database.writing() if writing else self._database.reading() as connection:
            yield RegistrySession(self, connection)

    def parse_path(self, segments: tuple[str, ...], path: str) -> ResourcePath | str:
        """Return the place at a path, or the name of what is configured there.

        Raises:
            Refusal: there is no such path.
        """
        with self.session(writing=False) as session:
            return session.parse_path(segments, path)

    def registry_and_model(self, reader: EntityReader) -> tuple[Registry, Model]:
        """Return the registry entity (read-only) and its model; both are cached until something changes."""
        change, kept = reader.last_change(), self._current
        if kept is None or kept[0] != change:
            registry = read_registry(reader)
            kept = self._current = change, registry, self.compiled_model(registry)
        return kept[1], kept[2]

    def compiled_model(self, registry: Registry) -> Model:
        """Return the compiled model of a registry; the last one is cached."""
        source, compiled = registry.modelsource, self._compiled
        if compiled is not None and compiled[0] is source:
            return compiled[1]
        model = compile_model(source)
        self._compiled = source, model
        return model


def read_registry(reader: EntityReader) -> Registry:
    """Return the registry.

    Raises:
        Refusal: the database has none.
    """
    registry = reader.registry()
    if registry is None:
        raise Refusal("server_error", "/", detail="the registry was not created")
    return registry


def _parse_path(model: Model, segments: tuple[str, ...], path: str) -> ResourcePath | str:
    if len(segments) == 1 and segments[0] in CONFIGURATION_PATHS:
        return segments[0]
    return parse_resource_path(model, segments, path)


def _store_capabilities(work: WriteTransaction, given: object, request: RegistryRequest) -> None:
    """Store the capabilities of a body; they take effect with the next request."""
    registry = work.registry
    registry.capabilities = parse_capabilities(given, registry.capabilities, patch=request.verb == "patch")


def _check_conditions(request: RegistryRequest, place: ResourcePath | str, builder: ResponseBuilder) -> None:
    """Evaluate ``If-Match`` and ``If-None-Match``; a collection always exists, and has no tag."""
    if request.matches is None and not request.known:
        return
    if isinstance(place, str):
        tags = {"*", builder.configuration(place).etag}
    else:
        tags = {"*"} if place.is_collection else builder.current_etags(place)
    check_conditions(tags, request.matches, request.known, f"/{place}" if isinstance(place, str) else place.xid)


def methods_key(place: ResourcePath | str) -> str:
    """Return the key of a path in :data:`METHODS`."""
    return place if isinstance(place, str) else place.kind


def _options_of(request: RegistryRequest, place: ResourcePath | str, known: Sequence[str], moment: str) -> WriteOptions:
    flags = request.flags
    ignore: set[str] = set()
    for each in flags.ignore:
        for value in each.split(",") if each else ["*"]:
            name = value.strip().lower()
            if name == "*":
                ignore.update(known)
            elif name in known:
                ignore.add(name)
            else:
                raise Refusal("bad_ignore", request.path, value=value, error_detail="the value is unknown")
    if flags.setdefaultversionid is not None:
        _check_default_flag(flags.setdefaultversionid, request, place)
    return WriteOptions(moment, frozenset(ignore), flags.setdefaultversionid)


def _check_default_flag(value: str, request: RegistryRequest, place: ResourcePath | str) -> None:
    kind = methods_key(place)
    adding = request.verb == "add" and kind in ("resource", "versions")
    if kind not in ("resource", "meta", "versions", "version") or (value == "request" and not adding):
        raise Refusal("bad_flag", request.path, flag="setdefaultversionid")
    if not value:
        raise Refusal("bad_defaultversionid", request.path, value=value, error_detail="the value is empty")
