"""JSON Structure (draft 02, core and extensions), by translation to JSON Schema.

json-structure checks documents and resolves imports; its validator, in Python, is fourteen times slower than that of
JSON Schema (41,000 and 590,000 bodies of 89 bytes a second). Types become schemas of draft 2020-12, so that validation,
columns and samples are those of JSON Schema. What that draft lacks, our own keywords say: ``x-type`` is the type,
``x-order`` the order of a tuple, ``x-written`` the limits of a number written as text. Extensions count if the document
``$uses`` them, or its ``$schema`` includes them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal, DecimalException
from typing import Any, Final

from json_structure import InstanceValidator, SchemaValidator

from catalog.parsing.pointers import resolve_pointer
from catalog.schemas.contract import Library, MissingTypeError, SchemaError, SchemaSource, clip
from catalog.schemas.json.references import SchemaDocuments, mapping_of
from catalog.schemas.jsonschema.validating import JsonSchemaValidator, open_validator
from catalog.schemas.library import to_tree

Schema = Mapping[str, Any]
_IMPORTS: Final = ("$import", "$importdefs")
_INDEX: Final = re.compile(r"\[(\d+)\]")
_HARMLESS: Final = frozenset(
    {
        "SCHEMA_ROOT_MISSING_ID",
        "SCHEMA_ROOT_MISSING_NAME",
        "SCHEMA_NAME_INVALID",
        "SCHEMA_CONSTRAINT_TYPE_MISMATCH",
        "SCHEMA_CONSTRAINT_INVALID_FOR_TYPE",
        "SCHEMA_CONSTRAINT_VALUE_INVALID",
        "SCHEMA_USES_UNKNOWN_EXTENSION",
        "SCHEMA_EXTENSION_KEYWORD_NOT_ENABLED",
        "SCHEMA_REF_NOT_IN_TYPE",
    }
)
"""Error codes that do not affect which bodies are valid, such as a unit on a nullable number."""
_HARMLESS_TEXTS: Final = re.compile(
    r"must (?:have|include) a 'name'|must be an absolute URI|for type '\w+' must be a string|is not in 'properties'"
    r"|must have 'properties'|duplicate value|identifier pattern|not a valid regular expression|'altnames'"
    r"|^'(?:identity|relations)'|^'required\[\d+\]' must be a string"
)
"""More such errors, without a code of their own; regular expressions are compiled later, as ECMA 262."""
_NUMBER: Final = r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"
_INTEGER: Final = r"^[-+]?[0-9]+$"
_TEXTS: Final[Mapping[str, Schema]] = {
    "string": {},
    "binary": {"contentEncoding": "base64"},
    "date": {"pattern": r"^\d{4}-\d{2}-\d{2}$", "format": "date"},
    "datetime": {"pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$", "format": "date-time"},
    "time": {"pattern": r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?$"},
    "duration": {
        "pattern": r"^P(\d+Y)?(\d+M)?(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?$|^P\d+W$",
        "format": "duration",
    },
    "uuid": {"pattern": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$", "format": "uuid"},
    "uri": {"pattern": r"^[A-Za-z][A-Za-z0-9+.-]*:", "format": "uri"},
    "jsonpointer": {"pattern": r"^#(/[^/]+)*$"},
}
_FORMATS: Final[Mapping[str, str]] = {
    "email": r"^[^@]+@[^@]+\.[^@]+$",
    "ipv4": r"^(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}$",
    "ipv6": r"^[0-9a-fA-F:]+$",
    "uri": r"^[A-Za-z][A-Za-z0-9+.-]*:",
    "hostname": r"^[a-zA-Z0-9.-]+$",
}
"""The formats that a text with the validation extension is held to."""
INTEGERS: Final[Mapping[str, tuple[int, int]]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64, 128)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64, 128)},
    "integer": (-(2**31), 2**31 - 1),
}
WRITTEN: Final = frozenset({"int64", "uint64", "int128", "uint128", "decimal"})
"""Types of numbers that JSON writes as text."""
FLOATS: Final = ("number", "float", "float8", "float16", "float32", "float64", "double")
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength", "pattern"),
    "array": ("minItems", "maxItems", "uniqueItems", "minContains", "maxContains"),
    "set": ("minItems", "maxItems", "minContains", "maxContains"),
    "object": ("minProperties", "maxProperties", "dependentRequired"),
}
"""Keywords of the validation extension by type that mean the same in JSON Schema."""
_ANNOTATIONS: Final = frozenset(
    {"type", "name", "description", "examples", "altnames", "unit", "symbol", "deprecated", "default", "descriptions"}
)


def compile_schema(source: SchemaSource, library: Library) -> JsonSchemaValidator:
    """Compile a document, for the selected type or its root.

    Raises:
        MissingTypeError: the selected type is missing.
        SchemaError: it is not a valid JSON Structure document, or an import was not loaded.
    """
    schema = translate(source, library, reserved=True)
    documents = SchemaDocuments(SchemaSource("JsonSchema", "", schema), library)
    return open_validator(schema, "2020-12", documents, schema, keywords={"x-written": _WrittenNumber})


def translate(source: SchemaSource, library: Library, *, reserved: bool = False) -> Schema:
    """Return the JSON schema of the selected type; *reserved* members of bodies are allowed at its root if asked for.

    Raises:
        MissingTypeError, SchemaError: as :func:`compile_schema`.
    """
    document = to_tree(source.document)
    if not isinstance(document, dict):
        raise SchemaError("this is not a JSON Structure document: it must be an object", hint="write it as an object")
    try:
        document = _add_imports(document, source.uri, library, {source.uri})
        part = _find_part(document, source)
        _check_document(document, anywhere=part is not None)
        return _Translator(document).translate(part, reserved=reserved)
    except SchemaError:
        raise
    except RecursionError as error:
        raise SchemaError("a type is its own base, or the JSON Structure document nests too deeply") from error
    except Exception as error:  # an error in the library, which callers report
        raise SchemaError(clip(f"the JSON Structure document cannot be used: {error!r}")) from error


def references_of(source: SchemaSource) -> Iterable[str]:
    """Return the addresses of imported documents."""
    return dict.fromkeys(_iter_imports(to_tree(source.document)))


def _iter_imports(document: Any) -> Iterable[str]:
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield from (node[keyword] for keyword in _IMPORTS if isinstance(node.get(keyword), str))
        if isinstance(node, dict | list):
            waiting.extend(node.values() if isinstance(node, dict) else node)


def _add_imports(document: dict[str, Any], key: str, library: Library, within: set[str]) -> dict[str, Any]:
    """Return a document with all imported types, recursively."""
    wanted = dict.fromkeys(_iter_imports(document))
    if not wanted:
        return document
    externals = []
    for reference in wanted:
        loaded = library.document(reference, key)
        if loaded is None:
            raise SchemaError(f"it imports {reference}, which was not loaded", hint="correct the address")
        if loaded[0] in within:
            raise SchemaError(f"it imports {reference}, which imports it again", hint="remove one of the imports")
        external = to_tree(loaded[1])
        if not isinstance(external, dict):
            raise SchemaError(f"it imports {reference}, which is not a JSON Structure document")
        whole = _add_imports(external, loaded[0], library, {*within, loaded[0]})
        externals.append({**whole, "$id": reference})
    imported = copy.deepcopy(document)
    failures = InstanceValidator(imported, allow_import=True, external_schemas=externals).errors
    if failures:
        raise SchemaError(clip(failures[0]))
    return imported


def _find_part(document: Schema, source: SchemaSource) -> Schema | None:
    """Return the selected type; None for the root.

    Raises:
        MissingTypeError: the type is missing.
    """
    pointers = [source.pointer] if source.pointer else [f"/definitions/{source.name}", f"/{source.name}"]
    if not (source.pointer or source.name) or source.name == document.get("name"):
        return None
    for pointer in pointers:
        try:
            part = resolve_pointer(document, pointer)
        except KeyError:
            continue
        if isinstance(part, dict):
            return part
    known = document.get("definitions")
    hint = f"it has {', '.join(sorted(known)[:8])}" if isinstance(known, dict) and known else "correct the reference"
    raise MissingTypeError(f"the schema has no type {source.name or source.pointer}", hint=hint)


def _check_document(document: dict[str, Any], *, anywhere: bool) -> None:
    """Raise SchemaError for errors that affect validation; with *anywhere*, the root need not have a type."""
    for error in SchemaValidator(extended=True, allow_dollar=True).validate(copy.deepcopy(document)):
        harmless = error.code in _HARMLESS or _HARMLESS_TEXTS.search(error.message)
        if not harmless and not (anywhere and error.code == "SCHEMA_ROOT_MISSING_TYPE"):
            message = f"this is not a valid JSON Structure document: {error.message}"
            # The library writes #/a/b[0].
            raise SchemaError(clip(message), pointer=_INDEX.sub(r"/\1", str(error.path).removeprefix("#")))


class _Translator:
    """Translates the types of one valid document; each type that is referred to once."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        uri, uses = str(document.get("$schema")), document.get("$uses")
        used = uses if isinstance(uses, list) else []
        every = "extended" in uri or "validation" in uri
        self._validates = every or "JSONStructureValidation" in used
        self._composes = every or "JSONStructureConditionalComposition" in used
        self._names: dict[str | int, str] = {}
        self._definitions: dict[str, Any] = {}

    def translate(self, part: Schema | None, *, reserved: bool) -> Schema:
        """Return the schema of a type; by default of the root, or of what ``$root`` refers to."""
        root = self._document.get("$root") if "type" not in self._document else None
        start = part or ({"$ref": root} if isinstance(root, str) else self._document)
        if reserved and (flat := self._flatten(start)).get("type") == "object":
            # What is offered to bodies is always allowed.
            offers = mapping_of(self._document, "$offers") if part is None else {}
            for each in (name for offered in offers.values() for name in _listed(offered)):
                offered = self._flatten({"$ref": each} if isinstance(each, str) else each)
                flat = _inherit(flat, {"properties": mapping_of(offered, "properties")})
            start = _inherit(flat, {"properties": _RESERVED})
        return {**self._translate(start), "$defs": self._definitions}

    def _translate(self, schema: Any) -> Schema:
        if isinstance(schema, str):
            schema = {"type": schema}
        if not isinstance(schema, Mapping):
            return {}
        kind = schema.get("type")
        target = schema.get("$ref") or (kind.get("$ref") if isinstance(kind, Mapping) else None)
        if isinstance(target, str):
            return self._refer(target if "$ref" in schema or schema.keys() <= _ANNOTATIONS else id(schema), schema)
        schema = self._flatten(schema)
        translated = self._translate_type(schema)
        translated |= {name: schema[name] for name in ("const", "enum", "examples", "default") if name in schema}
        return translated | self._compose(schema) if self._composes else translated

    def _refer(self, key: str | int, schema: Schema) -> Schema:
        """Return a reference to the translated type: a target by its pointer, one with own keywords by identity."""
        if key not in self._names:
            name = self._names[key] = str(len(self._names))
            self._definitions[name] = self._translate(self._flatten({"$ref": key} if isinstance(key, str) else schema))
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _flatten(self, schema: Schema) -> Schema:
        """Return a type with references followed, and with what it inherits."""
        kind, flat = schema.get("type"), schema
        target = schema.get("$ref") or (kind.get("$ref") if isinstance(kind, Mapping) else None)
        if isinstance(target, str) or isinstance(kind, Mapping):
            base: Any = self._find_target(target) if isinstance(target, str) else kind
            own = {name: value for name, value in schema.items() if name not in ("type", "$ref", "definitions")}
            flat = _inherit(own, self._flatten(base))
        extended = flat.get("$extends") if flat.get("type") != "choice" else None
        if extended is not None:
            flat = {name: value for name, value in flat.items() if name != "$extends"}
            for each in _listed(extended):
                base = self._flatten(self._find_target(str(each)))
                flat = _inherit(flat, {n: v for n, v in base.items() if n not in ("type", "name", "$id", "abstract")})
        return flat

    def _find_target(self, pointer: str) -> Any:
        try:
            return resolve_pointer(self._document, pointer.removeprefix("#"))
        except KeyError:
            raise SchemaError(f"the reference {clip(pointer)} leads nowhere", hint="correct the reference") from None

    def _translate_type(self, schema: Schema) -> dict[str, Any]:
        kind = schema.get("type", "any")
        if isinstance(kind, list):
            return {"anyOf": [self._translate(each) for each in kind]}
        if schema.get("abstract") is True:
            return {"not": {}}
        translated: dict[str, Any] = {"x-type": kind}
        if kind in _TEXTS:
            translated |= {"type": "string", **_TEXTS[kind]}
        elif kind in INTEGERS or kind in FLOATS or kind == "decimal":
            translated |= self._number(kind, schema)
        elif kind in ("boolean", "null"):
            translated["type"] = kind
        else:
            translated |= {
                "array": self._array,
                "set": self._array,
                "map": self._map,
                "tuple": self._tuple,
                "choice": self._choice,
            }.get(kind, self._object)(schema)
        translated |= {name: schema[name] for name in ("precision", "scale", "contentEncoding") if name in schema}
        if self._validates:
            translated |= {name: schema[name] for name in _SIZES.get(kind, ()) if name in schema}
            if kind == "string" and schema.get("format") in _FORMATS:
                translated |= {"format": schema["format"], "allOf": [{"pattern": _FORMATS[schema["format"]]}]}
        return translated

    def _number(self, kind: str, schema: Schema) -> Schema:
        low, high = INTEGERS.get(kind, (None, None))
        limits = {name: schema[name] for name in _LIMITS if self._validates and name in schema}
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(limits.get(exclusive), bool):  # as in draft 04
                limits |= {exclusive: limits[bound]} if limits.pop(exclusive) and bound in limits else {}
        if kind in WRITTEN:
            ends = {"minimum": low, "maximum": high} if low is not None else {}
            all_limits = [{name: str(each) for name, each in part.items()} for part in (limits, ends) if part]
            return {"type": "string", "pattern": _NUMBER if low is None else _INTEGER, "x-written": all_limits}
        if low is None:
            return {"type": "number", **limits}
        ranges = {"minimum": max(low, limits.pop("minimum", low)), "maximum": min(high, limits.pop("maximum", high))}
        return {"type": "integer", **ranges, **limits}

    def _object(self, schema: Schema) -> Schema:
        translated: dict[str, Any] = {"type": "object"} if schema.get("type") == "object" else {}
        if "properties" in schema:
            translated["properties"] = self._translate_all(mapping_of(schema, "properties"))
        others = schema.get("additionalProperties")
        if others is not None:
            translated["additionalProperties"] = others if isinstance(others, bool) else self._translate(others)
        names = schema.get("required")
        names = names if isinstance(names, list) else []
        if names:
            translated["required"] = list(dict.fromkeys(each for each in names if isinstance(each, str)))
        if sets := [{"required": each} for each in names if isinstance(each, list)]:
            translated["oneOf"] = sets
        if self._validates and "has" in schema:
            translated["not"] = {"additionalProperties": {"not": self._translate(schema["has"])}}
        if self._validates and isinstance(schema.get("patternProperties"), Mapping):
            translated["patternProperties"] = self._translate_all(schema["patternProperties"])
        if self._validates and isinstance(schema.get("propertyNames"), Mapping):
            translated["propertyNames"] = self._translate(schema["propertyNames"])
        return translated

    def _array(self, schema: Schema) -> Schema:
        translated: dict[str, Any] = {"type": "array"}
        if "items" in schema:
            translated["items"] = self._translate(schema["items"])
        if schema.get("type") == "set":
            translated["uniqueItems"] = True
        if self._validates and "contains" in schema:
            translated["contains"] = self._translate(schema["contains"])
        return translated

    def _map(self, schema: Schema) -> Schema:
        values = self._translate(schema.get("values", {}))
        translated: dict[str, Any] = {"type": "object", "additionalProperties": values}
        if self._validates:
            sizes = {"minEntries": "minProperties", "maxEntries": "maxProperties"}
            translated |= {name: schema[own] for own, name in sizes.items() if own in schema}
            if isinstance(schema.get("keyNames"), Mapping):
                translated["propertyNames"] = self._translate(schema["keyNames"])
            if isinstance(schema.get("patternKeys"), Mapping):
                translated["allOf"] = [{"patternProperties": self._translate_all(schema["patternKeys"])}]
        return translated

    def _tuple(self, schema: Schema) -> Schema:
        order, members = schema.get("tuple"), mapping_of(schema, "properties")
        order = order if isinstance(order, list) else []
        items = [self._translate(members.get(name, {"abstract": True})) for name in order]
        places = {"prefixItems": items, "items": False, "x-order": order} if items else {"maxItems": 0, "x-order": []}
        return {"type": "array", "minItems": len(items), **places}

    def _choice(self, schema: Schema) -> Schema:
        choices = mapping_of(schema, "choices")
        if "$extends" not in schema:
            members = {"properties": self._translate_all(choices), "additionalProperties": False}
            return {"type": "object", **members, "minProperties": 1, "maxProperties": 1}
        selector = str(schema.get("selector"))
        branches = []
        for name, each in choices.items():
            chosen = self._translate(self._flatten({"type": each} if isinstance(each, str) else each))
            members = {**mapping_of(chosen, "properties"), selector: {"const": name}}
            required = list(dict.fromkeys((*chosen.get("required", ()), selector)))
            branches.append({**chosen, "properties": members, "required": required})
        return {"type": "object", "oneOf": branches, "x-type": "inline choice"}

    def _translate_all(self, schemas: Schema) -> dict[str, Schema]:
        return {name: self._translate(each) for name, each in schemas.items()}

    def _compose(self, schema: Schema) -> dict[str, Any]:
        """Return the conditional composition of a type."""
        parts: list[Schema] = []
        parts += [{name: [self._translate(each) for each in schema[name]]} for name in _LISTS if name in schema]
        parts += [{name: self._translate(schema[name]) for name in ("if", "then", "else", "not") if name in schema}]
        return {"allOf": [part for part in parts if part]} if any(parts) else {}


_LISTS: Final = ("allOf", "anyOf", "oneOf")
_RESERVED: Final = {"$schema": {"type": "any"}, "$uses": {"type": "any"}}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _inherit(own: Schema, base: Schema) -> Schema:
    """Return a type with what it inherits; its own members come last, and take precedence."""
    merged = {**base, **own}
    if "properties" in base:
        merged["properties"] = {**mapping_of(base, "properties"), **mapping_of(own, "properties")}
    if "required" in base and "required" in own:
        merged["required"] = [*base["required"], *own["required"]]
    return merged


class _WrittenNumber:
    """Holds a number that is written as text to limits; a keyword as jsonschema-rs asks for it."""

    def __init__(self, schema: Schema, limits: list[dict[str, str]], path: list[str | int]) -> None:
        self._limits = [(name, Decimal(each)) for part in limits for name, each in part.items() if _is_decimal(each)]

    def validate(self, instance: Any) -> None:
        """Raise ValueError if a number is beyond a limit; other values are left to the other keywords."""
        if not isinstance(instance, str) or not _is_decimal(instance):
            return
        number = Decimal(instance)
        for name, limit in self._limits:
            if not _MEETS[name](number, limit):
                raise ValueError(f'"{instance}" is not within {name} {limit}')


_EXACT: Final = Context(prec=1000)
"""The default precision is less than the digits of an ``int128``."""


def _is_multiple(number: Decimal, step: Decimal) -> bool:
    try:
        return not step or _EXACT.remainder(number, step) == 0
    except DecimalException:
        return False


_MEETS: Final[Mapping[str, Any]] = {
    "minimum": lambda number, limit: number >= limit,
    "maximum": lambda number, limit: number <= limit,
    "exclusiveMinimum": lambda number, limit: number > limit,
    "exclusiveMaximum": lambda number, limit: number < limit,
    "multipleOf": _is_multiple,
}


def _is_decimal(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except DecimalException:
        return False
