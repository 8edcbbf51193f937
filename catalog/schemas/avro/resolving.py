"""Read values of one Avro schema as values of another: "Schema Resolution" in the Avro specification.

Both schemas are compiled together, once per pair of types, to whatever a maker makes of them: a reader of bytes, a step
for many bodies, a check of JSON, or the reason why some values cannot be read. Types that can never be resolved are
found then; what depends on the body, such as the branch of a union, makes that body invalid. A schema by itself is
compiled as its own writer's. The names of the root records are not compared: the schema id decided before that they
belong together (MATCHING.md#schema-ids).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from catalog.schemas.avro.json import Check, JsonMaker
from catalog.schemas.avro.types import (
    NAMED,
    PRIMITIVES,
    AvroSchema,
    TypeMismatch,
    Walk,
    branch_labels,
    decimal_scale,
    read_schema,
)
from catalog.schemas.contract import CostExceeded, SchemaError, SchemaSource, WriterSchema
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


class Unresolvable(TypeMismatch):
    """The values of one schema can never be read as values of another; the path is that of the field."""

    def __str__(self) -> str:
        path = self.field_path()
        return f"field {path}: {self.message}" if path else self.message


class TypeMaker(Protocol[F]):
    """Makes the functions for resolved types."""

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, F]], defaults: Mapping[str, Any]
    ) -> F:
        """Return the function of a record, with its fields in the writer's order under the reader's names.

        The name is None for a field that the reader does not have. *defaults* are the values of fields not written.
        """
        ...

    def union(self, written: Sequence[Any], branches: Sequence[F]) -> F:
        """Return the function of the writer's union."""
        ...

    def array(self, item: F) -> F:
        """Return the function of an array."""
        ...

    def map(self, value: F) -> F:
        """Return the function of a map."""
        ...

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> F:
        """Return the function of an enum; a symbol is None if the reader does not have it."""
        ...

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> F:
        """Return the function of a primitive, fixed or bytes value that was written as *kind* and is read as *into*."""
        ...

    def branch(self, function: F, label: str | None) -> F:
        """Return the function of a value of one branch of the reader's union; *label* names the branch."""
        ...

    def failing(self, why: str) -> F:
        """Return the function of a writer's branch that the reader cannot read; it raises with the reason."""
        ...

    def reference(self, table: Mapping[str, F], name: str) -> F:
        """Return the function of a type that contains itself; it is in the table when it is called."""
        ...


def compile_types(schema: AvroSchema, maker: TypeMaker[F]) -> F:
    """Return the function of a schema by itself."""
    return AvroResolver(schema, schema, maker).resolve()


@dataclass(slots=True)
class AvroResolver(Generic[F]):
    """Resolves the types of a writer's schema to those of a reader's."""

    writer: AvroSchema
    reader: AvroSchema
    maker: TypeMaker[F]
    spend: Callable[[int], None] = lambda steps: None
    """Counts the pairs of types that are compared."""
    _done: dict[str, F | Unresolvable] = field(default_factory=dict)
    _table: dict[str, F] = field(default_factory=dict)
    _skipping: AvroResolver[F] | None = None
    """Compiles types of the writer that the reader does not have, whose values are skipped."""
    _checks: AvroResolver[Check] | None = None

    def resolve(self, *, named: bool = False) -> F:
        """Return the function that reads the writer's values as the reader's; with *named*, root names are compared.

        Raises:
            Unresolvable: no value of the writer's schema can be read as one of the reader's.
        """
        return self.resolve_types(self.writer.root, self.reader.root, anywhere=named)

    def resolve_types(self, written: Any, target: Any, *, anywhere: bool = True) -> F:
        """Return the function that reads values of one type as values of another; raises as :meth:`resolve`."""
        self.spend(1)
        written, target = _find_type(written, self.writer), _find_type(target, self.reader)
        if isinstance(written, list):
            return self._resolve_from_union(written, target)
        if isinstance(target, list):
            return self._resolve_to_union(written, target)
        kind, into = _kind_of(written), _kind_of(target)
        if kind not in NAMED:
            return self._resolve_unnamed(written, kind, target, into)
        if written is not target:
            if (kind in _RECORDS) != (into in _RECORDS) or (kind not in _RECORDS and kind != into):
                raise _mismatch_error(written, target)
            if (anywhere or kind not in _RECORDS) and not _have_same_name(written, target):
                raise _mismatch_error(written, target)
        return self._resolve_named(written, kind, target)

    def _resolve_named(self, written: Any, kind: str, target: Any) -> F:
        """Resolve two named types, each pair once; recursive pairs are looked up when called."""
        key = f"{written['name']} {target['name']}"
        if key in self._done:
            known = self._done[key]
            if isinstance(known, Unresolvable):
                raise Unresolvable(known.message) from None
            return known
        self._done[key] = self.maker.reference(self._table, key)
        try:
            made = {"enum": self._resolve_enum, "fixed": self._resolve_fixed}.get(kind, self._resolve_record)(
                written, target
            )
        except Unresolvable as error:
            self._done[key], self._table[key] = error, self.maker.failing(str(error))
            raise
        self._done[key] = self._table[key] = made
        return made

    def _resolve_from_union(self, written: Sequence[Any], target: Any) -> F:
        """Resolve each branch of the writer's union; bodies with a branch that cannot be read are invalid."""
        if written is target:  # a schema by itself: no branch has to be searched for
            own = [self.resolve_types(branch, branch) for branch in written]
            return self.maker.union(written, list(map(self.maker.branch, own, branch_labels(written))))
        functions: list[F] = []
        failed: list[Unresolvable] = []
        for branch in written:
            try:
                functions.append(self.resolve_types(branch, target))
            except Unresolvable as error:
                failed.append(error)
                functions.append(self.maker.failing(str(error)))
        if len(failed) == len(written):
            raise failed[0] if len(failed) == 1 else _mismatch_error(written, target)
        return self.maker.union(written, functions)

    def _resolve_to_union(self, written: Any, target: Sequence[Any]) -> F:
        """Resolve to the branch of the same type, else to the first that can read the written type."""
        labels = branch_labels(target)
        order = sorted(
            range(len(target)), key=lambda at: not _is_same_type(written, _find_type(target[at], self.reader))
        )
        deeper: Unresolvable | None = None
        for at in order:
            try:
                return self.maker.branch(self.resolve_types(written, target[at]), labels[at])
            except Unresolvable as error:
                deeper = deeper or (error if error.steps else None)
        raise deeper or _mismatch_error(written, target)

    def _resolve_unnamed(self, written: Any, kind: str, target: Any, into: str) -> F:
        if kind in ("array", "map") and kind == into:
            member = "items" if kind == "array" else "values"
            try:
                inner = self.resolve_types(written[member], target[member])
            except Unresolvable as error:
                raise error.add_step("[]" if kind == "array" else ".*") from None
            return self.maker.array(inner) if kind == "array" else self.maker.map(inner)
        if into not in _PROMOTIONS.get(kind, frozenset({kind} - {"array", "map"})):
            raise _mismatch_error(written, target)
        _require_decimal(written, target)
        return self.maker.leaf(written, kind, target, into)

    def _resolve_enum(self, written: Any, target: Any) -> F:
        symbols, known, default = written["symbols"], frozenset(target["symbols"]), target.get("default")
        return self.maker.enum([each if each in known else default for each in symbols], symbols)

    def _resolve_fixed(self, written: Any, target: Any) -> F:
        if written["size"] != target["size"]:
            raise Unresolvable(f"{written['size']} bytes were written, the definition has {target['size']}")
        _require_decimal(written, target)
        return self.maker.leaf(written, "fixed", target, "fixed")

    def _resolve_record(self, written: Any, target: Any) -> F:
        if written is target:  # a schema by itself, even with two fields of one name
            own_fields = [(each["name"], self.resolve_types(each["type"], each["type"])) for each in written["fields"]]
            return self.maker.record(written, own_fields, {})
        own = {each["name"]: each for each in written["fields"]}
        origins: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        for each in target["fields"]:
            names = (each["name"], *(name for name in each.get("aliases", ()) if isinstance(name, str)))
            origin = next((name for name in names if name in own and name not in origins), None)
            if origin is not None:
                origins[origin] = each
            elif "default" in each:
                defaults[each["name"]] = self._default_value(each)
            else:
                raise Unresolvable("it was not written, and the definition has no default").add_step(f".{each['name']}")
        fields: list[tuple[str | None, F]] = []
        for name, each in own.items():
            reader = origins.get(name)
            if reader is None:
                if self._skipping is None:
                    self._skipping = AvroResolver(self.writer, self.writer, self.maker)
                fields.append((None, self._skipping.resolve_types(each["type"], each["type"])))
                continue
            try:
                fields.append((reader["name"], self.resolve_types(each["type"], reader["type"])))
            except Unresolvable as error:
                raise error.add_step(f".{reader['name']}") from None
        return self.maker.record(written, fields, defaults)

    def _default_value(self, member: Mapping[str, Any]) -> Any:
        if self._checks is None:
            self._checks = AvroResolver(self.reader, self.reader, JsonMaker())
        try:
            check = self._checks.resolve_types(member["type"], member["type"])
            return check(member["default"], Walk(strict=True, fills=True))
        except (TypeMismatch, CostExceeded, RecursionError):
            raise Unresolvable("its default is not of its type").add_step(f".{member['name']}") from None


class _GapMaker:
    """Makes the reason why some values of a type cannot be read, '' if all can."""

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, str]], defaults: Mapping[str, Any]
    ) -> str:
        return next((f"field {name}: {gap}" for name, gap in fields if name and gap), "")

    def union(self, written: Sequence[Any], branches: Sequence[str]) -> str:
        return next(filter(None, branches), "")

    def array(self, item: str) -> str:
        return item

    map = array

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> str:
        gone = next((name for symbol, name in zip(symbols, written, strict=True) if symbol is None), None)
        return "" if gone is None else f"the definition's enum has no symbol {gone}, and no default"

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> str:
        return ""

    def branch(self, function: str, label: str | None) -> str:
        return function

    def failing(self, why: str) -> str:
        return why

    def reference(self, table: Mapping[str, str], name: str) -> str:
        return ""


def find_gap(reader: AvroSchema, writer: AvroSchema, spend: Callable[[int], None] = lambda steps: None) -> str:
    """Return why some values written with *writer* cannot be read with *reader*, '' if all can."""
    try:
        return AvroResolver(writer, reader, _GapMaker(), spend).resolve(named=True)
    except Unresolvable as error:
        return str(error)


def read_writer_schema(written: WriterSchema) -> AvroSchema:
    """Return the writer's schema of bodies.

    Raises:
        Unresolvable: the registry's schema is not a valid Avro schema.
    """
    try:
        source = SchemaSource("Avro", "", written.schema.document)
        return read_schema(source, WriterTypes(written.schema))
    except (SchemaError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Unresolvable(f"the registry's schema is not valid: {error}") from None


class WriterTypes:
    """Finds the schemas that a registry's schema refers to: by reference name, else by a type that they contain."""

    def __init__(self, schema: WrittenSchema) -> None:
        self._references = schema.references

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return the name and document for a type that the schema uses but does not define; None if unknown."""
        if reference in self._references:
            return reference, self._references[reference]
        simple = reference.rpartition(".")[2]
        for name, document in self._references.items():
            if name.rpartition(".")[2] == simple or f'"{simple}"' in document or f'"{reference}"' in document:
                return name, document
        return None


def _find_type(schema: Any, owner: AvroSchema) -> Any:
    return owner.named[schema] if isinstance(schema, str) and schema not in PRIMITIVES else schema


def _kind_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _simple_name(name: str) -> str:
    return name.rpartition(".")[2]


def _have_same_name(written: Any, target: Any) -> bool:
    names = (target["name"], *target.get("aliases", ()))
    return _simple_name(written["name"]) in map(_simple_name, names)


def _is_same_type(written: Any, target: Any) -> bool:
    if isinstance(target, list) or _kind_of(written) != _kind_of(target):
        return False
    return _kind_of(written) not in NAMED or bool(written["name"] == target["name"])


def _mismatch_error(written: Any, target: Any) -> Unresolvable:
    return Unresolvable(f"{_describe_type(written)} was written, the definition has {_describe_type(target)}")


def _describe_type(schema: Any) -> str:
    if isinstance(schema, list):
        return "one of " + ", ".join(map(_describe_type, schema))
    if isinstance(schema, str):
        return schema
    kind = _kind_of(schema)
    return f"{kind} {schema['name']}" if kind in NAMED else kind


def _require_decimal(written: Any, target: Any) -> None:
    """Require that two decimals have the same precision and scale; otherwise the digits mean another number."""
    forms = [
        (each["precision"], scale)
        for each in (written, target)
        if isinstance(each, dict) and (scale := decimal_scale(each)) is not None
    ]
    if len(set(forms)) > 1:
        one, other = (f"decimal({precision}, {scale})" for precision, scale in forms)
        raise Unresolvable(f"{one} was written, the definition has {other}")
