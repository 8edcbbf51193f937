"""Load a catalog and match records against it, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import msgspec

from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher, is_url
from catalog.findings import Findings, RecordError
from catalog.load import build_catalog
from catalog.model import Catalog, Definition, Endpoint, Finding
from catalog.parsing.nearest import find_nearest
from catalog.record import Record, text_or_base64
from router.matching.explanation import Explainer
from router.matching.records import RecordMatcher, read_line
from xrouter.clients import data_members, to_record

if TYPE_CHECKING:
    import pyarrow as pa

    from xrouter.columns import ColumnMatcher

CatalogSource = str | PathLike[str] | Mapping[str, Any]
"""A file, a folder, the URL of a document or of a registry, or a document as a dict."""
_GIVEN: Final = "catalog"
"""The name of a document that was given as a dict, in findings."""
_ROWS_SHOWN: Final = 20


def load(*sources: CatalogSource, network: bool = False) -> LoadedCatalog:
    """Read files, folders, URLs and dicts as one catalog.

    A definition that cannot be used is left out, and :meth:`LoadedCatalog.check` says why. A URL among the *sources*
    may be fetched; *network* allows references of documents to be fetched as well.

    Raises:
        catalog.findings.DocumentError: a source is missing, unreadable, or neither JSON nor YAML.
        TypeError: a dict has values that JSON has not.
    """
    given = [each for each in sources if isinstance(each, Mapping)]
    places = [str(each) for each in sources if not isinstance(each, Mapping)]
    findings = Findings()
    fetcher = Fetcher(network=network or any(map(is_url, places)))
    # As if it were read from a file: names are texts, and a later change of the dict changes no catalog.
    documents = [Document(_GIVEN, json.loads(json.dumps(dict(each)))) for each in given]
    if places or not given:
        documents.extend(read_documents(places, findings, fetcher=fetcher))
    return LoadedCatalog(build_catalog(documents, findings, fetcher=fetcher))


@dataclass(frozen=True)
class MatchOutcome:
    """What becomes of one record.

    ``outcome`` is ``routed``, ``dead-letter``, or ``batch`` for a batch of CloudEvents, whose ``events`` have an
    outcome each. A routed record has the xid of its ``message`` definition, the values of the placeholders as
    ``context``, and the event's ``attributes`` by name, values as in CloudEvents JSON. A dead letter has a ``reason``,
    a ``detail``, and the ``nearest`` definitions with what did not match (section "Outcomes" of MATCHING.md).
    """

    record: Record | None = field(repr=False)
    outcome: str
    message: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""
    nearest: Sequence[Mapping[str, Any]] = ()
    events: Sequence[MatchOutcome] = ()

    @property
    def is_routed(self) -> bool:
        """Whether the record matches a definition."""
        return self.outcome == "routed"

    def to_cloudevent(self) -> dict[str, Any]:
        """Return the event in the JSON form of CloudEvents, with the record's body as data.

        Raises:
            ValueError: the record is not a single event that is routed.
        """
        if not self.is_routed or self.record is None:
            raise ValueError(f"a record with the outcome {self.outcome!r} is not an event: {self.detail}".rstrip(": "))
        return {**self.attributes, **data_members(self.record.body, self.attributes)}

    def explain(self) -> str:
        """Return a line that says what became of the record, and why."""
        if self.is_routed:
            context = ", ".join(f"{name}={value}" for name, value in self.context.items())
            return f"routed: {self.message}{f' ({context})' if context else ''}"
        if self.outcome == "batch":
            return "\n".join(f"event {number}: {each.explain()}" for number, each in enumerate(self.events))
        return f"dead letter, {self.reason}: {self.detail}"

    def _repr_html_(self) -> str:
        rows = {"outcome": self.outcome, "message": self.message, "reason": self.reason, "detail": self.detail}
        values = {**rows, **{f"context.{name}": value for name, value in self.context.items()}, **self.attributes}
        return _html_table((name, str(value)) for name, value in values.items() if value)


class LoadedCatalog:
    """A catalog, ready for matching. It does not change, and threads may not share it."""

    def __init__(self, catalog: Catalog) -> None:
        """Use :func:`load`."""
        self._catalog = catalog
        self._matchers: dict[str | None, RecordMatcher] = {}
        self._columns: dict[str | None, ColumnMatcher] = {}

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """The effective message definitions, by xid."""
        return self._catalog.definitions

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The endpoints, by xid."""
        return self._catalog.endpoints

    @property
    def epoch(self) -> str:
        """A hash of the catalog's meaning: equal for equal meaning, whatever its files look like."""
        return self._catalog.epoch

    @property
    def catalog(self) -> Catalog:
        """The catalog as the router's own modules have it."""
        return self._catalog

    def check(self) -> tuple[Finding, ...]:
        """Return what is wrong or doubtful in the catalog, as ``xrouter check`` does: errors first."""
        return self._catalog.findings

    def match(self, record: Any, *, endpoint: str | None = None) -> MatchOutcome:
        """Match one record; see :meth:`match_many`."""
        return self.match_many([record], endpoint=endpoint)[0]

    def match_many(self, records: Iterable[Any], *, endpoint: str | None = None) -> list[MatchOutcome]:
        """Match records together; return one outcome each, in order.

        A record is a dict in the form of MATCHING.md#records, its text as JSON, a CloudEvent of the SDK, or a message
        of confluent-kafka, paho, proton or nats-py (:func:`xrouter.clients.to_record`). The definitions of the
        *endpoint* are its candidates, or else those of the endpoint that it names, or else all.

        Raises:
            KeyError: the catalog has no such endpoint.
            TypeError: one of the *records* is none, or they are one record in place of several.
        """
        if isinstance(records, bytes | str | Mapping):
            raise TypeError("match_many takes a list of records; match takes one")
        given = [read_line(_to_line(each)) for each in records]
        outcomes = self._matcher(endpoint).decide_records(given)
        return [
            _to_outcome(None if isinstance(record, RecordError) else record, outcome)
            for record, outcome in zip(given, outcomes, strict=True)
        ]

    def explain(self, record: Any, *, endpoint: str | None = None) -> dict[str, Any]:
        """Return how each candidate compares with a record, as ``xrouter match --explain --format json`` does."""
        return Explainer(self._matcher(endpoint)).explain(0, _to_line(record)).to_json()

    def match_arrow(self, table: pa.Table, *, endpoint: str | None = None) -> pa.Table:
        """Match Kafka records in Arrow columns; return a row for each outcome (:data:`xrouter.columns.OUTCOMES`).

        The columns are those of Spark's Kafka source: ``value``, and if they are there ``key``, ``topic``,
        ``partition``, ``offset``, ``timestamp`` (milliseconds or an Arrow timestamp) and ``headers``.

        Raises:
            KeyError: the catalog has no such endpoint.
            ValueError: a column is missing, or of another type.
        """
        return self.column_matcher(endpoint).match_table(table)

    def column_matcher(self, endpoint: str | None = None) -> ColumnMatcher:
        """Return what matches columns of records; it can be pickled for workers."""
        from xrouter.columns import ColumnMatcher

        if endpoint not in self._columns:
            self._columns[endpoint] = ColumnMatcher.compile(self._catalog, self._known_endpoint(endpoint))
        return self._columns[endpoint]

    def emit(
        self,
        message: str,
        *,
        endpoint: str | None = None,
        protocol: str | None = None,
        seed: int | None = None,
        **context: Any,
    ) -> dict[str, Any]:
        """Return a sample record of a definition, in the form of MATCHING.md#records.

        *message* is an xid or, if only one definition has it, the last part of one; *protocol* is for a definition that
        leaves it open. *context* has the values of placeholders. Equal seeds give equal records but for times.

        Raises:
            KeyError: there is no such definition, or several.
            router.commands.emit.producer.EmitError: no record can match it, it needs a protocol, or a placeholder has
                no value.
        """
        from router.commands.emit.producer import MessageProducer

        given = {name: str(value) for name, value in context.items()}
        xid = self.find_definition(message)
        producer = MessageProducer(self._catalog, xid, endpoint=endpoint, protocol=protocol, context=given, seed=seed)
        return producer.make_record().to_json()

    def find_definition(self, message: str) -> str:
        """Return the xid of a definition from its xid or its last part.

        Raises:
            KeyError: there is no such definition, or several.
        """
        if message in self._catalog.definitions:
            return message
        found = [xid for xid, each in self._catalog.definitions.items() if each.messageid == message]
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(f"several definitions are called {message!r}: {', '.join(found[:5])}")
        near = find_nearest(message, (each.messageid for each in self._catalog.definitions.values()))
        raise KeyError(f"the catalog has no definition {message!r}{f'; did you mean {near}?' if near else ''}")

    def _matcher(self, endpoint: str | None) -> RecordMatcher:
        if endpoint not in self._matchers:
            self._matchers[endpoint] = RecordMatcher(self._catalog, endpoint=self._known_endpoint(endpoint))
        return self._matchers[endpoint]

    def _known_endpoint(self, endpoint: str | None) -> str | None:
        if endpoint is None or endpoint in self._catalog.endpoints:
            return endpoint
        raise KeyError(f"the catalog has no endpoint {endpoint!r}, but {', '.join(self._catalog.endpoints) or 'none'}")

    def __repr__(self) -> str:
        counts = f"{len(self.definitions)} definitions, {len(self.endpoints)} endpoints"
        return f"<xrouter catalog {self.epoch}: {counts}, {len(self.check())} findings>"

    def _repr_html_(self) -> str:
        rows = [(xid, each.protocol or "any protocol") for xid, each in self.definitions.items()]
        more = len(rows) - _ROWS_SHOWN
        return _html_table([*rows[:_ROWS_SHOWN], *([(f"and {more} more", "")] if more > 0 else [])])


def _to_line(record: Any) -> bytes:
    """Return a record as its JSON text."""
    if isinstance(record, bytes | str):
        return record.encode("utf-8", "surrogatepass") if isinstance(record, str) else record
    form = dict(record) if isinstance(record, Mapping) else to_record(record).to_json()
    if isinstance(body := form.get("body"), bytes | bytearray):
        form |= {"body": None, **text_or_base64("body", bytes(body))}
    return msgspec.json.encode(form)


def _to_outcome(record: Record | None, form: Mapping[str, Any]) -> MatchOutcome:
    return MatchOutcome(
        record,
        form["outcome"],
        form.get("message", ""),
        form.get("context", {}),
        form.get("cloudevent", {}),
        form.get("reason", ""),
        form.get("detail", ""),
        form.get("nearest", ()),
        [_to_outcome(None, each) for each in form.get("events", ())],
    )


def _html_table(rows: Iterable[tuple[str, str]]) -> str:
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{''.join(cells)}</table>"
