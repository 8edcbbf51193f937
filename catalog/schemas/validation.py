"""Validate bodies against the data schemas of a catalog's definitions (MATCHING.md#data-schemas)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from catalog.model import Catalog, Definition
from catalog.schemas.contract import (
    MAX_BODY_BYTES,
    BatchValidator,
    CostExceeded,
    Library,
    MessagePlace,
    SchemaError,
    SchemaFault,
    SchemaSource,
    Validator,
    WriterSchema,
    make_fault,
    unusable_schema_message,
)
from catalog.schemas.families import MAX_COMPILED, compile_schema, family_of, fingerprint
from catalog.schemas.ids.client import WrittenSchema
from catalog.schemas.ids.deciding import ID_ENDS, NO_FRAME, NO_MESSAGE, PLAIN, Begin, SchemaIdRule, strip_frame
from catalog.schemas.library import CatalogLibrary, schema_source
from catalog.schemas.sandbox import SandboxedValidation

MAX_RESOLVED: Final = 256
"""Maximum number of writer's schemas cached by one validator."""


class BoundedValidation:
    """Validates bodies against one schema in bounded time and memory, costly ones in a process with limits.

    A body that exceeds the limits has the fault :data:`~catalog.schemas.contract.BEYOND_LIMITS`.
    """

    def __init__(self, source: SchemaSource, library: Library) -> None:
        """Compile a schema.

        Raises:
            SchemaError: the schema is not valid.
        """
        self._validator: Validator = compile_schema(source, library)
        self._source = source
        self._library = library
        self._family = family_of(source.family)
        self._trial: SandboxedValidation | None = None
        self._resolved: dict[tuple[str, str, MessagePlace], BoundedValidation] = {}

    def fault(self, body: bytes, content_type: str | None, begin: Begin = PLAIN) -> SchemaFault | None:
        """Return why *body*, without its frame, is not valid; never raises because of a body."""
        if begin.framing == "none" or self._family.frames == "never":
            return self._find_fault(body, content_type)
        whole = self._find_fault(body, content_type) if begin.framing == "auto" else None
        if begin.framing == "auto" and whole is None:
            return None
        found = self._strip_frame(body, begin)
        if isinstance(found, tuple):
            validation, data = found
            return validation._find_fault(data, content_type)
        return whole if found in (None, NO_FRAME, NO_MESSAGE) and whole is not None else found

    def find_valid(self, bodies: pa.BinaryArray, content_types: pa.StringArray, begin: Begin) -> npt.NDArray[np.bool_]:
        """Return which bodies are certainly valid; the others must be validated one by one."""
        none = np.zeros(len(bodies), bool)
        validation = self
        if begin.framing in ("confluent", "apicurio") and self._family.frames == "id":
            written = begin.written
            if written is not None and written.fault:
                return none
            if written is not None and written.family == self._source.family and self._family.resolves:
                validation = self._writer_validator(written, (0,))
        elif begin.framing not in ("auto", "none"):
            return none
        if not isinstance(validation._validator, BatchValidator) or not len(bodies):
            return none
        _, offsets, data = bodies.buffers()
        if offsets is None or data is None:
            return none
        raw_bytes = np.frombuffer(data, np.uint8)
        bounds = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
        begins, ends = bounds[:-1], bounds[1:]
        fits = ends > begins
        if bodies.null_count:
            fits &= bodies.is_valid().to_numpy(zero_copy_only=False)
        if begin.framing in ("confluent", "apicurio"):
            size = ID_ENDS[begin.framing]
            fits &= ends - begins >= size
            fits[fits] = raw_bytes[begins[fits]] == 0
            begins = begins + size
        chosen = np.flatnonzero(fits)
        if len(chosen):
            types = content_types if len(chosen) == len(bodies) else content_types.take(pa.array(chosen))
            fits[chosen] = validation._validator.find_valid(raw_bytes, begins[chosen], ends[chosen], types)
        return fits

    def _strip_frame(self, body: bytes, begin: Begin) -> tuple[BoundedValidation, bytes] | SchemaFault | None:
        """Return the validator for the body after its frame, and that body; a fault; or None for no validation."""
        found = strip_frame(body, begin.framing, names_message=self._family.frames == "message")
        if not isinstance(found, tuple):
            return found
        data, place = found
        written = begin.written
        if written is not None and written.fault:
            return make_fault(unusable_schema_message(written))
        if written is None or written.family != self._source.family or not self._family.resolves:
            return self, data
        return self._writer_validator(written, place), data

    def _writer_validator(self, schema: WrittenSchema, place: MessagePlace) -> BoundedValidation:
        """Return the validator for a writer's schema, cached by id and message."""
        key = (schema.id, schema.document, place)
        known = self._resolved.get(key)
        if known is None:
            if len(self._resolved) >= MAX_RESOLVED:
                self._resolved.clear()
            source = replace(self._source, written=WriterSchema(schema, place))
            known = self._resolved[key] = BoundedValidation(source, self._library)
        return known

    def _find_fault(self, body: bytes, content_type: str | None) -> SchemaFault | None:
        try:
            return self._validator.fault(body, content_type)
        except CostExceeded:
            if self._trial is None:
                self._trial = SandboxedValidation(fingerprint(self._source, self._library), self._source, self._library)
            return self._trial.fault(body, content_type)

    def faults(self, body: bytes | None, content_type: str | None, begin: Begin = PLAIN) -> list[SchemaFault]:
        """Return all faults of *body*, which :meth:`fault` found invalid, at most MAX_FAULTS; none if it is costly."""
        validation: BoundedValidation = self
        if body is not None and begin.framing != "none" and self._family.frames != "never":
            found = self._strip_frame(body, begin)
            if isinstance(found, tuple):
                validation, body = found
            elif begin.framing != "auto":
                return []  # fault() reported the only one
        try:
            return validation._validator.faults(body, content_type)
        except CostExceeded:
            return []


class PayloadValidation:
    """Validates bodies against the schemas of definitions.

    Schemas are compiled when first needed. A body is not validated, with the result None, if there is no valid schema,
    if it is missing (an empty body is not), or if it is larger than MAX_BODY_BYTES. Pickles as plain data, and compiles
    again where it is unpickled; not thread-safe.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._linked = {xid: each for xid, each in catalog.definitions.items() if each.schemakey in catalog.schemas}
        self._schemas = catalog.schemas
        self._create_caches()

    def has_schema(self, definition: Definition) -> bool:
        """Whether the definition has a schema of a known format, valid or not."""
        return schema_source(definition, self._schemas) is not None

    def faults(
        self,
        xid: str,
        bodies: Sequence[bytes | None],
        content_types: Sequence[str | None],
        begins: Sequence[Begin] | None = None,
    ) -> list[SchemaFault | None]:
        """Return why bodies are not valid against the schema of a definition, in order.

        The result is None for a body that is valid, or is not validated. *begins* has the frame of each; None for no
        frames.
        """
        validator = self._validator(xid)
        if validator is None:
            return [None] * len(bodies)
        if begins is None:
            begins = [PLAIN] * len(bodies)
        return [
            None if body is None or len(body) > MAX_BODY_BYTES else validator.fault(body, content_type, begin)
            for body, content_type, begin in zip(bodies, content_types, begins, strict=True)
        ]

    def find_valid(
        self, xid: str, bodies: pa.BinaryArray, content_types: pa.StringArray, begin: Begin
    ) -> npt.NDArray[np.bool_]:
        """Return which of many bodies with equal frames are certainly valid."""
        validator = self._validator(xid)
        if validator is None:
            return np.ones(len(bodies), bool)
        return validator.find_valid(bodies, content_types, begin)

    def all_faults(
        self, xid: str, body: bytes | None, content_type: str | None, begin: Begin, first: SchemaFault
    ) -> list[SchemaFault]:
        """Return all faults of a body, at most MAX_FAULTS; *first* is the result of :meth:`faults`.

        Only *first* if the family finds no more, or not within limits.
        """
        validator = self._validator(xid)
        return (validator.faults(body, content_type, begin) if validator else []) or [first]

    def __getstate__(self) -> dict[str, Any]:
        return {"linked": self._linked, "schemas": self._schemas}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._linked, self._schemas = state["linked"], state["schemas"]
        self._create_caches()

    def _create_caches(self) -> None:
        self._library = CatalogLibrary(self._schemas)
        self.ids = SchemaIdRule(self._schemas)
        """Decides by schema id which definitions match a body."""
        self._validator = lru_cache(MAX_COMPILED)(self._compile_validator)

    def _compile_validator(self, xid: str) -> BoundedValidation | None:
        """Return the validator of a definition, or None."""
        definition = self._linked.get(xid)
        source = schema_source(definition, self._schemas) if definition is not None else None
        if source is None:
            return None
        try:
            return BoundedValidation(source, self._library)
        except SchemaError:
            return None  # reported as a finding when the catalog was loaded
