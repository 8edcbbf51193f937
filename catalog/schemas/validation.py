"""Bodies held against the data schemas of a catalog's definitions (JUDGING.md#data-schemas)."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from catalog.model import Catalog, Definition
from catalog.schemas.contract import (
    MAX_BODY_BYTES,
    Accepting,
    Library,
    MessagePlace,
    SchemaError,
    SchemaFault,
    SchemaSource,
    TooCostly,
    Validator,
    WriterSchema,
    fault,
    unusable,
)
from catalog.schemas.families import compile_schema, documents_of, family_of, fingerprint
from catalog.schemas.ids.client import WrittenSchema
from catalog.schemas.ids.deciding import ID_ENDS, PLAIN, Begin, SchemaIdRule, frame_of, message_place
from catalog.schemas.library import CatalogLibrary, schema_source

# Bodies that may be costly to check, held against their schemas in a process with limits.
#
# Libraries in native code cannot be stopped from within, and some bodies of a few bytes take them hours or gigabytes.
# Such bodies (:class:`~catalog.schemas.contract.TooCostly`) go to a helper, which is started at the first of them and
# checks each in a fork of its own with limits on processor time and memory. What exceeds them ends the fork alone.

MAX_SECONDS: Final = 2.0
"""Processor time that one body may take."""
MAX_MEMORY: Final = 256 * 1024 * 1024
"""Memory that checking one body may take, beyond what the helper has itself."""
ORDINARY_SECONDS: Final = 0.02
ORDINARY_BYTES: Final = 1_000_000
"""Every body may take ORDINARY_SECONDS, and a second for each ORDINARY_BYTES. What is more is drawn from the store."""
STORE_SECONDS: Final = 10.0
STORE_GAIN: Final = 0.1
"""A process has STORE_SECONDS for bodies that take more than is ordinary, and gains STORE_GAIN of the time that passes.

So a flood of such bodies costs a part of the time and never all of it.
"""
_SCRIPT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import catalog.schemas.trial_process as t; t.main()"
)


class Schema(NamedTuple):
    """A schema on its way to the helper, with every document that it refers to by base and reference."""

    source: SchemaSource
    documents: Mapping[tuple[str, str], tuple[str, Any]]

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return URI and document of a reference, as a library does."""
        return self.documents.get((base, reference))


class Task(NamedTuple):
    """One body to check; ``schema`` is given with the first body of each ``key``."""

    key: bytes
    schema: Schema | None
    body: bytes | None
    content_type: str | None
    seconds: float
    memory: int


class TrialResult(NamedTuple):
    """What came of a task; ``finished`` is False when it met a limit. ``seconds`` is the processor time it took."""

    finished: bool
    fault: SchemaFault | None
    seconds: float


@dataclass(slots=True)
class _Store:
    """Seconds left for bodies that take more than is ordinary."""

    left: float = STORE_SECONDS
    since: float = 0.0

    def allowed(self, size: int) -> float:
        now = time.monotonic()
        self.left = min(STORE_SECONDS, self.left + (now - self.since) * STORE_GAIN)
        self.since = now
        return min(MAX_SECONDS, _ordinary(size) + self.left)

    def draw(self, size: int, seconds: float) -> None:
        self.left = max(0.0, self.left - max(0.0, seconds - _ordinary(size)))


def _ordinary(size: int) -> float:
    return ORDINARY_SECONDS + size / ORDINARY_BYTES


class _Helper:
    """One running helper, and the schemas that it has been given."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._known: set[bytes] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _SCRIPT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )

    def ask(
        self, key: bytes, schema: Schema, body: bytes | None, content_type: str | None, seconds: float
    ) -> TrialResult:
        """Have one body checked.

        Raises:
            OSError, EOFError: the helper is gone.
        """
        pipe = self._process
        assert pipe.stdin is not None and pipe.stdout is not None
        task = Task(key, None if key in self._known else schema, body, content_type, seconds, MAX_MEMORY)
        pickle.dump(task, pipe.stdin)
        pipe.stdin.flush()
        self._known.add(key)
        answer = pickle.load(pipe.stdout)
        assert isinstance(answer, TrialResult)
        return answer

    def end(self) -> None:
        """End the helper, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # of a task that was not written to the end
                    pipe.close()


class _Trials:
    """The helper of this process and its store; one body at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helper: _Helper | None = None
        self._store = _Store(since=time.monotonic())

    def answer(self, key: bytes, schema: Schema, body: bytes | None, content_type: str | None) -> TrialResult:
        size = len(body or b"")
        with self._lock:
            for _ in range(2):  # a helper may have been killed since the last body
                try:
                    if self._helper is None or self._helper.owner != os.getpid():
                        self._helper = _Helper()
                        atexit.register(self._forget)
                    answer = self._helper.ask(key, schema, body, content_type, self._store.allowed(size))
                except (OSError, EOFError, pickle.UnpicklingError):
                    self._forget()
                    continue
                self._store.draw(size, answer.seconds)
                return answer
        return TrialResult(finished=False, fault=None, seconds=0.0)

    def _forget(self) -> None:
        if self._helper is not None and self._helper.owner == os.getpid():
            self._helper.end()
        self._helper = None


_trials: Final = _Trials()


class Trial:
    """Checks bodies against one schema with limits on time and memory."""

    def __init__(self, key: bytes, source: SchemaSource, library: Library) -> None:
        self._key = key
        self._schema = Schema(source, documents_of(source, library))

    def fault(self, body: bytes | None, content_type: str | None, cost: TooCostly) -> SchemaFault | None:
        """Return why *body* does not conform; past the limits, that it could not be checked within them.

        Whether a body meets the limit on time depends a little on the machine, and in a flood of such bodies on those
        before it: repeated, it may get the other answer.
        """
        answer = _trials.answer(self._key, self._schema, body, content_type)
        return answer.fault if answer.finished else cost.fault()


MAX_RESOLVED: Final = 256
"""Schemas of a registry that one validator is resolved with at a time."""
MAX_VALIDATORS: Final = 1024
"""Validators that one object holds; past it, the one not used for longest is let go."""

_NO_FRAME: Final = fault("the body does not begin with the frame of a schema registry, as `framing` says")
_NO_PLACE: Final = fault("what follows the id of a schema does not say which message of its file follows")


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
        self._family = family_of(source.family)
        self._trial: Trial | None = None
        self._resolved: dict[tuple[str, str, MessagePlace], BoundedValidation] = {}

    def fault(self, body: bytes, content_type: str | None, begin: Begin = PLAIN) -> SchemaFault | None:
        """Return why *body*, or what follows its frame, does not conform; never raises because of a body."""
        if body is None or begin.framing == "none" or self._family.frames == "never":
            return self._fault(body, content_type)
        if begin.framing == "auto":
            whole = self._fault(body, content_type)
            found = self._behind(body, begin) if whole else None
            return whole if found is None or found in (_NO_FRAME, _NO_PLACE) else _asked(found, content_type)
        return _asked(self._behind(body, begin), content_type)

    def accepted(self, bodies: pa.BinaryArray, content_types: pa.StringArray, begin: Begin) -> npt.NDArray[np.bool_]:
        """Return which of many bodies conform for sure; the others are to be looked at one by one."""
        none = np.zeros(len(bodies), bool)
        reads = self
        if begin.framing in ("confluent", "apicurio") and self._family.frames == "id":
            written = begin.written
            if written is not None and written.fault:
                return none
            if written is not None and written.family == self._source.family and self._family.resolves:
                reads = self._written(written, (0,))
        elif begin.framing not in ("auto", "none"):
            return none
        if not isinstance(reads._validator, Accepting) or not len(bodies):
            return none
        _, offsets, data = bodies.buffers()
        if offsets is None or data is None:
            return none
        held = np.frombuffer(data, np.uint8)
        bounds = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
        begins, ends = bounds[:-1], bounds[1:]
        fits = ends > begins
        if bodies.null_count:
            fits &= bodies.is_valid().to_numpy(zero_copy_only=False)
        if begin.framing in ("confluent", "apicurio"):
            size = ID_ENDS[begin.framing]
            fits &= ends - begins >= size
            fits[fits] = held[begins[fits]] == 0
            begins = begins + size
        chosen = np.flatnonzero(fits)
        if len(chosen):
            types = content_types if len(chosen) == len(bodies) else content_types.take(pa.array(chosen))
            fits[chosen] = reads._validator.accepted(held, begins[chosen], ends[chosen], types)
        return fits

    def _behind(self, body: bytes, begin: Begin) -> _Found:
        """Return what reads what follows the frame of a body, and that; a fault, or None for no verdict."""
        frame = frame_of(body, begin.framing)
        if frame is None:
            return _NO_FRAME
        data = frame.opened(body)
        place: MessagePlace = (0,)
        if not isinstance(data, bytes):
            return data
        if self._family.frames == "message":
            found = message_place(data, begin.framing)
            if found is None:
                return _NO_PLACE
            place, data = found[0], data[found[1] :]
        written = begin.written
        if written is not None and written.fault:
            return fault(unusable(written))
        if written is None or written.family != self._source.family or not self._family.resolves:
            return self, data
        return self._written(written, place), data

    def _written(self, schema: WrittenSchema, place: MessagePlace) -> BoundedValidation:
        """Return what reads bodies that were written with a schema; of each id and message one is made."""
        key = (schema.id, schema.document, place)
        known = self._resolved.get(key)
        if known is None:
            if len(self._resolved) >= MAX_RESOLVED:
                self._resolved.clear()
            source = replace(self._source, written=WriterSchema(schema, place))
            known = self._resolved[key] = BoundedValidation(source, self._library)
        return known

    def _fault(self, body: bytes, content_type: str | None) -> SchemaFault | None:
        try:
            return self._validator.fault(body, content_type)
        except TooCostly as cost:
            if self._trial is None:
                self._trial = Trial(fingerprint(self._source, self._library), self._source, self._library)
            return self._trial.fault(body, content_type, cost)

    def faults(self, body: bytes | None, content_type: str | None, begin: Begin = PLAIN) -> list[SchemaFault]:
        """Return all that is wrong with *body*, which :meth:`fault` refuses, at most MAX_FAULTS.

        Nothing of one that is costly to check.
        """
        reads: BoundedValidation = self
        if body is not None and begin.framing != "none" and self._family.frames != "never":
            found = self._behind(body, begin)
            if isinstance(found, tuple):
                reads, body = found
            elif begin.framing != "auto":
                return []  # the first says all
        try:
            return reads._validator.faults(body, content_type)
        except TooCostly:
            return []


_Found = tuple[BoundedValidation, bytes] | SchemaFault | None


def _asked(found: _Found, content_type: str | None) -> SchemaFault | None:
    if not isinstance(found, tuple):
        return found
    reads, data = found
    return reads._fault(data, content_type)


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
        begins: Sequence[Begin] | None = None,
    ) -> list[SchemaFault | None]:
        """Return the answers of :meth:`fault` for many bodies of one definition, in their order.

        *begins* say how each begins; without them none has a frame.
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

    def accepted(
        self, xid: str, bodies: pa.BinaryArray, content_types: pa.StringArray, begin: Begin
    ) -> npt.NDArray[np.bool_]:
        """Return for which of many bodies :meth:`faults` surely has no fault, where all begin alike."""
        validator = self._validator(xid)
        if validator is None:
            return np.ones(len(bodies), bool)
        return validator.accepted(bodies, content_types, begin)

    def all_faults(
        self, xid: str, body: bytes | None, content_type: str | None, begin: Begin, first: SchemaFault
    ) -> list[SchemaFault]:
        """Return all that is wrong with a body, at most MAX_FAULTS, where :meth:`fault` answers *first*.

        Only *first* where the family can tell no more, or not within limits.
        """
        validator = self._validator(xid)
        return (validator.faults(body, content_type, begin) if validator else []) or [first]

    def __getstate__(self) -> dict[str, Any]:
        return {"linked": self._linked, "schemas": self._schemas}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._linked, self._schemas = state["linked"], state["schemas"]
        self._start()

    def _start(self) -> None:
        self._library = CatalogLibrary(self._schemas)
        self.ids = SchemaIdRule(self._schemas)
        """Decides by schema ids which definitions take a body."""
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
