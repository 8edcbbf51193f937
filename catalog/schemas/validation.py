"""Bodies held against the data schemas of a catalog's definitions (JUDGING.md#data-schemas)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from catalog.model import Catalog, Definition
from catalog.schemas.bodies import fault
from catalog.schemas.codings import Framing, behind_frame
from catalog.schemas.compiling import compile_schema, fingerprint
from catalog.schemas.contract import (
    MAX_BODY_BYTES,
    Library,
    SchemaError,
    SchemaFault,
    SchemaSource,
    TooCostly,
    Validator,
)
from catalog.schemas.families import family_of
from catalog.schemas.library import CatalogLibrary, schema_source
from catalog.schemas.trial import Trial

MAX_VALIDATORS: Final = 1024
"""Validators that one object holds; past it, the one not used for longest is let go."""

_NO_FRAME: Final = fault("the body does not begin with byte 0 and the id of a schema, as `framing: confluent` asks")


class BoundedValidation:
    """Holds bodies against one schema in bounded time and memory: where that is not sure, in a process with limits.

    A body that exceeds the limits has a fault that says so (:data:`~catalog.schemas.contract.BEYOND_LIMITS`).
    """

    def __init__(self, source: SchemaSource, library: Library) -> None:
        """Compile a schema.

        Raises:
            SchemaError: it can never be used.
        """
        self._validator: Validator = compile_schema(source, library)
        self._source = source
        self._library = library
        self._trial: Trial | None = None

    def fault(self, body: bytes, content_type: str | None, framing: Framing = "none") -> SchemaFault | None:
        """Return why *body*, or what follows its frame, does not conform; never raises because of a body."""
        if framing == "none" or family_of(self._source.family).behind_id is None:
            return self._fault(body, content_type)
        if framing == "auto":
            whole = self._fault(body, content_type)
            inner = behind_frame(body, self._source.family) if whole else None
            return whole if inner is None else self._fault(inner, content_type)
        inner = behind_frame(body, self._source.family)
        return _NO_FRAME if inner is None else self._fault(inner, content_type)

    def _fault(self, body: bytes, content_type: str | None) -> SchemaFault | None:
        try:
            return self._validator.fault(body, content_type)
        except TooCostly as cost:
            if self._trial is None:
                self._trial = Trial(fingerprint(self._source, self._library), self._source, self._library)
            return self._trial.fault(body, content_type, cost)

    def faults(self, body: bytes | None, content_type: str | None, framing: Framing = "none") -> list[SchemaFault]:
        """Return all that is wrong with *body*, which :meth:`fault` refuses, at most MAX_FAULTS.

        Nothing of one that is costly to check.
        """
        if framing != "none" and body is not None:
            body = behind_frame(body, self._source.family) or body
        try:
            return self._validator.faults(body, content_type)
        except TooCostly:
            return []


class PayloadValidation:
    """Gives verdicts on bodies, by definition.

    Schemas are compiled when first needed. No verdict, which is None, is given where there is no schema, where it
    cannot be used, where there is no body (one of no bytes is a body), and for one of more than MAX_BODY_BYTES. It
    pickles as plain data and compiles anew where it arrives; one object serves one thread.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._linked = {xid: each for xid, each in catalog.definitions.items() if each.schemakey in catalog.schemas}
        self._schemas = catalog.schemas
        self._start()

    def has_schema(self, definition: Definition) -> bool:
        """Tell whether there is a schema of a known format for the definition; it may yet turn out to be invalid."""
        return schema_source(definition, self._schemas) is not None

    def fault(self, xid: str, body: bytes | None, content_type: str | None) -> SchemaFault | None:
        """Return why *body* does not conform to the schema of a definition; None when it does, or without a verdict."""
        return self.faults(xid, (body,), (content_type,))[0]

    def faults(
        self,
        xid: str,
        bodies: Sequence[bytes | None],
        content_types: Sequence[str | None],
        framings: Sequence[Framing] | None = None,
    ) -> list[SchemaFault | None]:
        """Return the answers of :meth:`fault` for many bodies of one definition, in their order.

        *framings* say how each begins; without them none has a frame.
        """
        validator = self._validator(xid)
        if validator is None:
            return [None] * len(bodies)
        if framings is None:
            framings = ["none"] * len(bodies)
        return [
            None if body is None or len(body) > MAX_BODY_BYTES else validator.fault(body, content_type, framing)
            for body, content_type, framing in zip(bodies, content_types, framings, strict=True)
        ]

    def all_faults(
        self, xid: str, body: bytes | None, content_type: str | None, framing: Framing, first: SchemaFault
    ) -> list[SchemaFault]:
        """Return all that is wrong with a body, at most MAX_FAULTS, where :meth:`fault` answers *first*.

        Only *first* where the family can tell no more, or not within limits.
        """
        validator = self._validator(xid)
        return (validator.faults(body, content_type, framing) if validator and first != _NO_FRAME else []) or [first]

    def __getstate__(self) -> dict[str, Any]:
        return {"linked": self._linked, "schemas": self._schemas}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._linked, self._schemas = state["linked"], state["schemas"]
        self._start()

    def _start(self) -> None:
        self._library = CatalogLibrary(self._schemas)
        self._validators: OrderedDict[str, BoundedValidation | None] = OrderedDict()

    def _validator(self, xid: str) -> BoundedValidation | None:
        """Return the validator of a definition; None when it has none, which is remembered as well."""
        if xid not in self._validators:
            self._validators[xid] = self._compiled(xid)
            if len(self._validators) > MAX_VALIDATORS:
                self._validators.popitem(last=False)
        self._validators.move_to_end(xid)
        return self._validators[xid]

    def _compiled(self, xid: str) -> BoundedValidation | None:
        definition = self._linked.get(xid)
        source = schema_source(definition, self._schemas) if definition is not None else None
        if source is None:
            return None
        try:
            return BoundedValidation(source, self._library)
        except SchemaError:
            return None  # a finding said so when the catalog was loaded
