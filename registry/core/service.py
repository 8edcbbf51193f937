"""The registry service: each request is one transaction; a write is durable before its response is returned."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import msgspec
from sqlalchemy import Connection

from registry.core.ancestry import Linter, Options
from registry.core.changes import log_of, mark
from registry.core.operations import Operation, WrittenEntity, change_model, keep_exact
from registry.core.requests import (
    ABSENT,
    RegistryRequest,
    ResourcePath,
    Response,
    check_id,
    place_of,
    shows_more,
    tag_of,
    tag_of_body,
)
from registry.core.responses import (
    CONFIGURED,
    OPENAPI,
    Answerer,
    capabilities_of,
    check_specversion,
    chosen_of,
    counting,
    ignorable,
)
from registry.core.writing import EntityWriter
from registry.errors import Refusal
from registry.model.attributes import Model, later, model_source, now
from registry.model.compiler import read_model
from registry.store.engine import Database
from registry.store.entities import EntityReader, Registry, WriteTransaction, create_registry

_logger = logging.getLogger(__name__)
_MODELS: Final = 4
Change = tuple[int, str]
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
        """The registry entity, current."""
        return registry_of(self.reader)

    @property
    def model(self) -> Model:
        """The current model."""
        return self._service.model_of(self.registry)

    @property
    def change(self) -> Change:
        """The last change of the registry; while it is unchanged, so are all responses to reads."""
        return self.reader.last_change()

    def find(self, segments: tuple[str, ...], path: str) -> ResourcePath | str:
        """Return the place at a path, or the name of what is configured there.

        Raises:
            Refusal: there is no such path.
        """
        return self._service.find_over(self.reader, segments, path)

    def perform(self, request: RegistryRequest) -> Response:
        """Carry out a request; each write has its own interaction, history and events.

        Raises:
            Refusal: it is refused; earlier requests stand unless the error leaves the block.
        """
        return self._service.perform_over(self._connection, request)


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
        self._linter = linter
        self._describe = describe
        self._models: dict[bytes, Model] = {}
        self._compiled: tuple[Mapping[str, Any], Model] | None = None
        self._current: tuple[Change, Registry, Model] | None = None

    def prepare(self, registryid: str) -> bool:
        """Create the registry if the database has none; return whether it was created.

        Raises:
            Refusal: the id is not valid.
        """
        with self._database.writing() as connection:
            if EntityReader(connection).registry() is not None:
                return False
            moment = now()
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

    def perform_over(self, connection: Connection, request: RegistryRequest) -> Response:
        """Carry out a request within a transaction; for :class:`RegistrySession`."""
        if request.verb != "read":
            work = WriteTransaction(connection)
            return self._write(work, counting(request, work.registry.capabilities))
        reader = EntityReader(connection)
        registry, model = self._present(reader)
        request = counting(request, registry.capabilities)
        place = self._place(model, request)
        tag = tag_of(reader, request) if shows_more(place, request.flags) else ""
        if tag and tag in request.known:
            return Response(None, etag=tag)
        answerer = Answerer(reader, model, registry, request)
        if place == OPENAPI:
            described = self._describe(model, capabilities_of(registry.capabilities), request.base)
            answer = Response(described, etag=tag_of_body(described))
        else:
            answer = answerer.configured(place) if isinstance(place, str) else answerer.read(place)
        return replace(answer, etag=tag) if tag else answer

    def group_types(self) -> set[str]:
        """Return the plural names of all group types."""
        with self._database.reading() as connection:
            _, model = self._present(EntityReader(connection))
        return set(model.groups)

    def find(self, segments: tuple[str, ...], path: str) -> ResourcePath | str:
        """Return the place at a path, or the name of what is configured there.

        Raises:
            Refusal: there is no such path.
        """
        with self.session(writing=False) as session:
            return session.find(segments, path)

    def find_over(self, reader: EntityReader, segments: tuple[str, ...], path: str) -> ResourcePath | str:
        """Return the result of :meth:`find` within a transaction; for :class:`RegistrySession`."""
        if len(segments) == 1 and segments[0] in CONFIGURED:
            return segments[0]
        return place_of(self._present(reader)[1], segments, path)

    def _present(self, reader: EntityReader) -> tuple[Registry, Model]:
        """Return the registry entity (read-only) and its model; both are cached until something changes."""
        change, kept = reader.last_change(), self._current
        if kept is None or kept[0] != change:
            registry = registry_of(reader)
            kept = self._current = change, registry, self.model_of(registry)
        return kept[1], kept[2]

    def model_of(self, registry: Registry) -> Model:
        """Return the compiled model of a registry; compiled models are cached by source."""
        source, compiled = registry.modelsource, self._compiled
        if compiled is not None and compiled[0] is source:
            return compiled[1]
        key = msgspec.json.encode(source, order="deterministic")
        model = self._models.get(key)
        if model is None:
            model = read_model(source)
            self._models = {**dict(list(self._models.items())[1 - _MODELS :]), key: model}
        self._compiled = source, model
        return model

    def _place(self, model: Model, request: RegistryRequest) -> ResourcePath | str:
        segments = request.segments
        configured = len(segments) == 1 and segments[0] in CONFIGURED
        place: ResourcePath | str = segments[0] if configured else place_of(model, segments, request.path)
        if request.verb not in METHODS[kind_of(place)]:
            raise Refusal("action_not_supported", request.path, action=request.verb)
        return place

    def _write(self, work: WriteTransaction, request: RegistryRequest) -> Response:
        model = self.model_of(work.registry)
        check_specversion(request.flags, request.path)
        place = self._place(model, request)
        moment = later(now(), work.reader.last_moment())
        options = _options(request, place, ignorable(request, work.registry.capabilities), moment)
        self._permit(place, request)
        before = Answerer(work.reader, model, work.registry, request)
        _check_conditions(request, place, before)
        writer = EntityWriter(work, model, options)
        names: Any = None
        if isinstance(place, str):
            self._configure(writer, place, request)
        else:
            self._remodel(writer, place, request)
            names = Operation(writer, place, request).run()
        writer.finish()
        model = writer.model
        self._authorize(work, request)
        if request.exact is not None:
            keep_exact(work, model, request.exact)
        work.flush()
        findings: tuple[Mapping[str, str], ...] = ()
        if not request.replicated:
            mark(work)
            findings = self._linter.look(work, model, request.path)
        interaction = uuid.uuid4().hex
        log = log_of(work)
        history, events = log.history(interaction, options.now, request.who), log.events(interaction, options.now)
        work.record(history, events)
        answer = self._shown(work, model, place, request, names)
        return replace(answer, interaction=interaction, findings=findings)

    def _permit(self, place: ResourcePath | str, request: RegistryRequest) -> None:
        """Raise early if the writer may not write to the requested group."""
        if isinstance(place, str) or (place.kind == "registry" and request.verb != "add"):
            if not request.administrator:
                raise Refusal("forbidden", request.path, error_detail="only administrators may change this")
        elif place.gid:
            group = ResourcePath("group", place.group, place.gid).xid
            if not request.may_write(group):
                raise Refusal("forbidden", place.xid, error_detail=f"these credentials do not allow writes to {group}")

    def _authorize(self, work: WriteTransaction, request: RegistryRequest) -> None:
        """Raise if the writer may not write to a changed group."""
        touched = {
            "/".join(xid.split("/")[:3])
            for each in (work.groups, work.resources, work.versions)
            for xid in each.touched
        }
        for group in sorted(touched):
            if not request.may_write(group):
                raise Refusal("forbidden", group, error_detail=f"these credentials do not allow writes to {group}")

    def _configure(self, writer: EntityWriter, name: str, request: RegistryRequest) -> None:
        if request.body is ABSENT:
            raise Refusal("missing_body", request.path)
        if name == "capabilities":
            if not isinstance(request.body, Mapping):
                raise Refusal("capability_error", "/capabilities", error_detail="the capabilities must be an object")
            _choose(writer.work, request.body, request)
        else:
            change_model(writer, request.body)
            writer.write_registry({}, patch=True)
        writer.touch(writer.work.registry)

    def _remodel(self, writer: EntityWriter, place: ResourcePath, request: RegistryRequest) -> None:
        """Apply capabilities and model source first, if a write to the registry has them."""
        body, ignore = request.body, writer.options.ignore
        if place.kind != "registry" or request.verb == "add" or not isinstance(body, Mapping):
            return
        if "capabilities" in body and "capabilities" not in ignore:
            _choose(writer.work, body["capabilities"], request)
        source = body.get("modelsource", writer.work.registry.modelsource)
        if "modelsource" not in ignore and source != writer.work.registry.modelsource:
            change_model(writer, source)

    def _shown(
        self, work: WriteTransaction, model: Model, place: ResourcePath | str, request: RegistryRequest, names: Any
    ) -> Response:
        answerer = Answerer(work.reader, model, work.registry, request)
        if isinstance(place, str):
            return answerer.configured(place)
        if request.verb == "delete":
            return Response(None)
        if isinstance(names, WrittenEntity):
            answer = answerer.entity(names.place, answerer.view(names.place))
            answer = replace(answer, version=answer.version if names.version else "")
            has_document = names.place.kind in ("resource", "version") and names.place.resource.hasdocument
            details = "$details" if has_document and answer.document is None else ""
            return replace(answer, location=f"{request.base}{names.place.xid}{details}" if names.created else "")
        if place.is_collection:
            return Response(answerer.entities(place, names))
        return Response({plural: answerer.entities(where, ids) for plural, (where, ids) in names.items()})


def registry_of(reader: EntityReader) -> Registry:
    """Return the registry.

    Raises:
        Refusal: the database has none.
    """
    registry = reader.registry()
    if registry is None:
        raise Refusal("server_error", "/", detail="the registry was not created")
    return registry


def _choose(work: WriteTransaction, given: object, request: RegistryRequest) -> None:
    """Store the capabilities of a body; they take effect with the next request."""
    registry = work.registry
    registry.capabilities = chosen_of(given, registry.capabilities, patch=request.verb == "patch")


def _check_conditions(request: RegistryRequest, place: ResourcePath | str, answerer: Answerer) -> None:
    """Evaluate ``If-Match`` and ``If-None-Match``; a collection always exists, and has no tag."""
    if request.matches is None and not request.known:
        return
    if isinstance(place, str):
        tags = {"*", answerer.configured(place).etag}
    else:
        tags = {"*"} if place.is_collection else answerer.tags(place)
    if (request.matches is not None and not tags & set(request.matches)) or tags & set(request.known):
        raise Refusal("precondition_failed", f"/{place}" if isinstance(place, str) else place.xid)


def kind_of(place: ResourcePath | str) -> str:
    """Return the key of a path in :data:`METHODS`."""
    return place if isinstance(place, str) else place.kind


def _options(request: RegistryRequest, place: ResourcePath | str, known: Sequence[str], moment: str) -> Options:
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
        _check_default(flags.setdefaultversionid, request, place)
    return Options(moment, frozenset(ignore), flags.setdefaultversionid, request.contenttype, request.administrator)


def _check_default(value: str, request: RegistryRequest, place: ResourcePath | str) -> None:
    single = not isinstance(place, str) and place.kind in ("resource", "meta", "versions", "version")
    adding = not isinstance(place, str) and place.kind == "resource" and request.verb == "add"
    several = not isinstance(place, str) and place.kind == "versions" and request.verb == "add"
    if not single or (value == "request" and not adding and not several):
        raise Refusal("bad_flag", request.path, flag="setdefaultversionid")
    if not value:
        raise Refusal("bad_defaultversionid", request.path, value=value, error_detail="the value is empty")
