"""Bodies of one Avro schema read as values of another, as "Schema Resolution" in the Avro specification prescribes.

Both schemas are walked together, once for each pair, and become a function as one schema alone does
(:mod:`catalog.schemas.avro.types`). What can never be read so is known then; what depends on a body, such as the
branch of a union, is a misfit of that body. Records at the roots are not told apart by their names: that the id of one
belongs to the other was decided before (JUDGING.md#schema-ids).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from catalog.schemas.avro.types import (
    NAMED,
    PRIMITIVES,
    AvroSchema,
    TypeCompiler,
    branch_labels,
    bytes_form,
    decimal_scale,
    number_form,
    number_range,
    read_schema,
)
from catalog.schemas.contract import SchemaError, SchemaSource, WriterSchema
from catalog.schemas.ids.client import WrittenSchema

F = TypeVar("F")
_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"int", "long", "float", "double"}),
    "long": frozenset({"long", "float", "double"}),
    "float": frozenset({"float", "double"}),
    "string": frozenset({"string", "bytes"}),
    "bytes": frozenset({"bytes", "string"}),
}
_RECORDS: Final = frozenset({"record", "error"})


class Unresolvable(Exception):
    """A schema whose values can never be read as those of another; ``steps`` lead to the place, the innermost first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.steps: list[str] = []

    def within(self, step: str) -> Unresolvable:
        """Add a step outwards; return this."""
        self.steps.append(step)
        return self

    def __str__(self) -> str:
        path = "".join(reversed(self.steps)).removeprefix(".")
        return f"field {path}: {self.message}" if path else self.message


class Makers(Protocol[F]):
    """What makes functions of types that were resolved."""

    plain: TypeCompiler[F]
    """For types of the writer that the reader has not: they are passed over."""

    def record(self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, F]], given: Mapping[str, Any]) -> F:
        """Return the function of a record: in the order of the writer, with the reader's names; None for a field that
        the reader has not. *given* are the values of fields that were not written.
        """
        ...

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> F:
        """Return the function of an enum; None for symbols that the reader has not."""
        ...

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> F:
        """Return the function of a value without parts, written as one kind and read as another."""
        ...

    def branch(self, function: F, label: str | None) -> F:
        """Return the function of a value that is of a branch of the reader's union, under the label that it has."""
        ...

    def failing(self, why: str) -> F:
        """Return the function of a branch that was written and cannot be read."""
        ...


@dataclass(slots=True)
class AvroResolver(Generic[F]):
    """Resolves the types of a writer's schema to those of a reader's."""

    writer: AvroSchema
    reader: AvroSchema
    makers: Makers[F]
    _done: dict[str, F | Unresolvable] = field(default_factory=dict)
    _table: dict[str, F] = field(default_factory=dict)

    def function(self) -> F:
        """Return the function of both schemas.

        Raises:
            Unresolvable: no value of the one can be read as one of the other.
        """
        return self._resolved(self.writer.root, self.reader.root, anywhere=False)

    def _resolved(self, written: Any, wanted: Any, *, anywhere: bool = True) -> F:
        written, wanted = _type(written, self.writer), _type(wanted, self.reader)
        if isinstance(written, list):
            return self._written_union(written, wanted)
        if isinstance(wanted, list):
            return self._into_union(written, wanted)
        kind, into = _kind(written), _kind(wanted)
        if kind not in NAMED:
            return self._unnamed(written, kind, wanted, into)
        if (kind in _RECORDS) != (into in _RECORDS) or (kind not in _RECORDS and kind != into):
            raise _differs(written, wanted)
        if (anywhere or kind not in _RECORDS) and not _named_alike(written, wanted):
            raise _differs(written, wanted)
        return self._named(written, kind, wanted)

    def _named(self, written: Any, kind: str, wanted: Any) -> F:
        """Resolve two named types, each pair once; a pair within itself is looked up when it is needed."""
        key = f"{written['name']} {wanted['name']}"
        if key in self._done:
            known = self._done[key]
            if isinstance(known, Unresolvable):
                raise Unresolvable(known.message) from None
            return known
        self._done[key] = self.makers.plain.deferred(self._table, key)
        try:
            made = {"enum": self._enum, "fixed": self._fixed}.get(kind, self._record)(written, wanted)
        except Unresolvable as error:
            self._done[key], self._table[key] = error, self.makers.failing(str(error))
            raise
        self._done[key] = self._table[key] = made
        return made

    def _written_union(self, written: Sequence[Any], wanted: Any) -> F:
        """Resolve each branch that may have been written; one that cannot be read is a misfit of its bodies."""
        functions: list[F] = []
        failed: list[Unresolvable] = []
        for branch in written:
            try:
                functions.append(self._resolved(branch, wanted))
            except Unresolvable as error:
                failed.append(error)
                functions.append(self.makers.failing(str(error)))
        if len(failed) == len(written):
            raise failed[0] if len(failed) == 1 else _differs(written, wanted)
        return self.makers.plain.union(written, functions)

    def _into_union(self, written: Any, wanted: Sequence[Any]) -> F:
        """Take the branch of the very type that was written, else the first that it can be read as."""
        labels = branch_labels(wanted)
        order = sorted(range(len(wanted)), key=lambda at: not _same(written, _type(wanted[at], self.reader)))
        deeper: Unresolvable | None = None
        for at in order:
            try:
                return self.makers.branch(self._resolved(written, wanted[at]), labels[at])
            except Unresolvable as error:
                deeper = deeper or (error if error.steps else None)
        raise deeper or _differs(written, wanted)

    def _unnamed(self, written: Any, kind: str, wanted: Any, into: str) -> F:
        if kind in ("array", "map") and kind == into:
            member = "items" if kind == "array" else "values"
            try:
                inner = self._resolved(written[member], wanted[member])
            except Unresolvable as error:
                raise error.within("[]" if kind == "array" else ".*") from None
            return self.makers.plain.array(inner) if kind == "array" else self.makers.plain.map(inner)
        if into not in _PROMOTIONS.get(kind, frozenset({kind} - {"array", "map"})):
            raise _differs(written, wanted)
        _require_decimal(written, wanted)
        return self.makers.leaf(written, kind, wanted, into)

    def _enum(self, written: Any, wanted: Any) -> F:
        known, default = frozenset(wanted["symbols"]), wanted.get("default")
        return self.makers.enum([each if each in known else default for each in written["symbols"]], written["symbols"])

    def _fixed(self, written: Any, wanted: Any) -> F:
        if written["size"] != wanted["size"]:
            raise Unresolvable(f"{written['size']} bytes were written, the definition has {wanted['size']}")
        _require_decimal(written, wanted)
        return self.makers.leaf(written, "fixed", wanted, "fixed")

    def _record(self, written: Any, wanted: Any) -> F:
        own = {each["name"]: each for each in written["fields"]}
        origins: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for each in wanted["fields"]:
            names = (each["name"], *(name for name in each.get("aliases", ()) if isinstance(name, str)))
            origin = next((name for name in names if name in own and name not in origins), None)
            if origin is not None:
                origins[origin] = each
            elif "default" in each:
                given[each["name"]] = self._default(each)
            else:
                raise Unresolvable("it was not written, and the definition has no default").within(f".{each['name']}")
        fields: list[tuple[str | None, F]] = []
        for name, each in own.items():
            reader = origins.get(name)
            if reader is None:
                fields.append((None, self.makers.plain.compiled(each["type"])))
                continue
            try:
                fields.append((reader["name"], self._resolved(each["type"], reader["type"])))
            except Unresolvable as error:
                raise error.within(f".{reader['name']}") from None
        return self.makers.record(written, fields, given)

    def _default(self, of: Mapping[str, Any]) -> Any:
        try:
            return _value(of["default"], of["type"], self.reader)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError):
            raise Unresolvable("its default is not of its type").within(f".{of['name']}") from None


def writer_of(written: WriterSchema) -> AvroSchema:
    """Return the schema that bodies were written with.

    Raises:
        Unresolvable: what the registry has is no Avro schema.
    """
    try:
        source = SchemaSource("Avro", "", written.schema.document)
        return read_schema(source, WrittenTypes(written.schema))
    except (SchemaError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Unresolvable(f"the registry's schema cannot be used: {error}") from None


class WrittenTypes:
    """Gives the schemas that one of a registry refers to: by the name of the reference, else by a type in it."""

    def __init__(self, schema: WrittenSchema) -> None:
        self._references = schema.references

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return name and document of a type that a schema uses and does not define, None if unknown."""
        if reference in self._references:
            return reference, self._references[reference]
        simple = reference.rpartition(".")[2]
        for name, document in self._references.items():
            if name.rpartition(".")[2] == simple or f'"{simple}"' in document or f'"{reference}"' in document:
                return name, document
        return None


def _type(schema: Any, of: AvroSchema) -> Any:
    return of.named[schema] if isinstance(schema, str) and schema not in PRIMITIVES else schema


def _kind(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _simple(name: str) -> str:
    return name.rpartition(".")[2]


def _named_alike(written: Any, wanted: Any) -> bool:
    names = (wanted["name"], *wanted.get("aliases", ()))
    return _simple(written["name"]) in map(_simple, names)


def _same(written: Any, wanted: Any) -> bool:
    if isinstance(wanted, list) or _kind(written) != _kind(wanted):
        return False
    return _kind(written) not in NAMED or bool(written["name"] == wanted["name"])


def _differs(written: Any, wanted: Any) -> Unresolvable:
    return Unresolvable(f"{_called(written)} was written, the definition has {_called(wanted)}")


def _called(schema: Any) -> str:
    if isinstance(schema, list):
        return "one of " + ", ".join(map(_called, schema))
    if isinstance(schema, str):
        return schema
    kind = _kind(schema)
    return f"{kind} {schema['name']}" if kind in NAMED else kind


def _require_decimal(written: Any, wanted: Any) -> None:
    """Require that two decimals are of the same precision and scale: their digits would mean something else."""
    forms = [
        (each["precision"], scale)
        for each in (written, wanted)
        if isinstance(each, dict) and (scale := decimal_scale(each)) is not None
    ]
    if len(set(forms)) > 1:
        one, other = (f"decimal({precision}, {scale})" for precision, scale in forms)
        raise Unresolvable(f"{one} was written, the definition has {other}")


def _value(default: Any, schema: Any, of: AvroSchema) -> Any:
    """Return the value that a field's default stands for, as :mod:`catalog.schemas.avro.columns` has values.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, ArithmeticError: it is of another type.
    """
    schema = _type(schema, of)
    if isinstance(schema, list):
        for branch, label in zip(schema, branch_labels(schema), strict=True):
            try:
                value = _value(default, branch, of)
            except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
                continue
            return value if label is None else {label: value}
        raise ValueError
    kind = _kind(schema)
    if kind in _RECORDS:
        given = {each["name"]: default.get(each["name"], each.get("default", ...)) for each in schema["fields"]}
        return {each["name"]: _value(given[each["name"]], each["type"], of) for each in schema["fields"]}
    if kind == "array" and isinstance(default, list):
        return [_value(each, schema["items"], of) for each in default]
    if kind == "map":
        return {name: _value(each, schema["values"], of) for name, each in default.items()}
    if kind in ("bytes", "fixed"):
        data = default.encode("iso-8859-1")
        if kind == "fixed" and len(data) != schema["size"]:
            raise ValueError
        form = bytes_form(schema)
        return data if form is None else form(data)
    if kind in ("int", "long") and type(default) is int:
        low, end = number_range(schema, kind)
        if low <= default < end:
            shown = number_form(schema)
            return default if shown is None else shown(default)
        raise ValueError
    if kind in ("float", "double") and type(default) in (int, float):
        return float(default)
    fits = {"null": default is None, "boolean": isinstance(default, bool), "string": isinstance(default, str)}
    if fits.get(kind, kind == "enum" and default in schema.get("symbols", ())):
        return default
    raise ValueError
