"""Load :class:`Settings` from a YAML file, the environment and secrets, or raise one error with all faults."""

from __future__ import annotations

import copy
import json
import os
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from catalog.documents.connecting import Logins
from catalog.findings import DocumentError
from catalog.parsing.pointers import lines_of, parse_pointer
from catalog.parsing.regular import read_input, read_regular
from catalog.parsing.texts import parse_yaml
from router.errors import ConfigError, hint_near
from router.settings.catalogs import make_logins
from router.settings.checks import iter_executor_faults, iter_faults, iter_plaintext_faults, iter_real_time_faults
from router.settings.model import Settings
from router.settings.sinks.kinds import KINDS
from router.settings.values import (
    ENDPOINT,
    FILE,
    TYPE_NAMES,
    SecretText,
    is_secret_name,
    to_absolute,
)

# The keys of the settings, read from the models.
#
# Used for overrides by environment and for suggestions in errors; ``tests.support.settings_pages`` makes pages of them.

KeyPath = tuple[str, ...]
"""Keys, list items by index: ``("sinks", "bus", "topic")``, written ``sinks.bus.topic``."""


@dataclass(frozen=True, slots=True)
class SettingsNode:
    """The type at one key path: the annotation of its field."""

    annotation: Any

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        """The possible models of the value; empty for plain values, lists and free maps."""
        return tuple(member for member in self._types() if isinstance(member, type) and issubclass(member, BaseModel))

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return any(get_origin(member) is tuple for member in self._types())

    @property
    def is_file(self) -> bool:
        """Whether the value is the path of a file or folder, or a list of them."""
        return _is_marked(self.annotation, FILE)

    def is_secret(self, key: str) -> bool:
        """Whether the value, which is at *key*, is a secret: a password, or a client option named like one."""
        return SecretStr in self._types() and (self.annotation != SecretText or is_secret_name(key))

    def known_keys(self) -> tuple[str, ...]:
        """The known keys; empty if any key is allowed."""
        return tuple(dict.fromkeys(key for model in self.models for key in fields_by_key(model)))

    def get_child(self, key: str, value: Any) -> SettingsNode:
        """The spot below *key*; *value*'s ``type`` member selects the model of a union."""
        for member in self._types():
            if get_origin(member) in (dict, Mapping):
                return SettingsNode(get_args(member)[1])._select_model(value)
            if get_origin(member) is tuple:
                return SettingsNode(get_args(member)[0])._select_model(value)
        for model in self.models:
            if key in fields_by_key(model):
                return SettingsNode(written_annotation(fields_by_key(model)[key]))
        return SettingsNode(str)

    def _select_model(self, value: Any) -> SettingsNode:
        kind = value.get("type") if isinstance(value, Mapping) else None
        for model in self.models if len(self.models) > 1 else ():
            if kind in get_args(fields_by_key(model)["type"].annotation):
                return SettingsNode(model)
        return self

    def _types(self) -> tuple[Any, ...]:
        return split_union(self.annotation)


ROOT: Final = SettingsNode(Settings)


@cache
def fields_by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their keys in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def written_annotation(field: FieldInfo) -> Any:
    """The annotation as written: pydantic strips ``Annotated`` off the outermost level into the metadata."""
    for known in TYPE_NAMES:
        if get_origin(known) is Annotated and all(each in field.metadata for each in known.__metadata__):
            return known
    return field.annotation


def _is_marked(annotation: Any, mark: str) -> bool:
    if get_origin(annotation) is Annotated and mark in get_args(annotation)[1:]:
        return True
    return get_origin(annotation) in (Union, types.UnionType) and any(
        _is_marked(each, mark) for each in get_args(annotation)
    )


def split_union(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union without None, else the annotation alone."""
    if get_origin(annotation) is Annotated:
        return split_union(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for member in get_args(annotation) for part in split_union(member))
    return () if annotation is type(None) else (annotation,)


# The JSON Schema of settings files, for editors: ``python -m tests.support.readme`` makes its file from the models.

SCHEMA_NAME: Final = "settings.schema.json"


def read_packaged_schema() -> bytes:
    """Return the schema file in the package."""
    return (files("router.settings") / SCHEMA_NAME).read_bytes()


# References in values: ``${VAR}``, ``${VAR:-default}`` and ``file:/path``.
#
# Secrets must be references, so that the unresolved settings can be stored with a plan. ``$$`` is a literal ``$``.
# Resolved values are not resolved again, so that no outside text can refer to another variable.

_LOAD_REFERENCE: Final = re.compile(r"\$\$|\$\{([^}]*)\}")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_FILE: Final = "file:"


def resolve(
    unresolved: Mapping[str, Any], environ: Mapping[str, str], base: Path, file: str = "", root: SettingsNode = ROOT
) -> dict[str, Any]:
    """Return the settings with every reference replaced and every path absolute.

    Relative paths start from *base*; errors name *file*. *root* is the type of the settings.

    Raises:
        ConfigError: a variable is not set, a file cannot be read, a reference is malformed, or a secret is in plain
            text.
    """

    def walk(value: Any, node: SettingsNode, place: KeyPath) -> Any:
        if isinstance(value, Mapping):
            return {key: walk(each, node.get_child(str(key), each), (*place, str(key))) for key, each in value.items()}
        if isinstance(value, list | tuple):
            members = enumerate(value)
            return [walk(each, node.get_child(str(key), each), (*place, str(key))) for key, each in members]
        if not isinstance(value, str):
            return value
        try:
            if node.is_secret(place[-1]) and not is_reference(value):
                raise ValueError("a secret must not be in plain text; use ${VAR} or file:/path")
            return _resolve_text(node, value, environ, base)
        except (ValueError, OSError) as error:
            key, prefix = ".".join(place), f"{file}: " if file else ""
            fault = f"{key}: {error}"
            raise ConfigError(f"{prefix}{fault}", file=file, key=key, problems=(fault,)) from error

    resolved: dict[str, Any] = walk(unresolved, root, ())
    return resolved


def is_reference(text: str) -> bool:
    """Whether a text is a reference to a variable or a file."""
    return text.startswith(_FILE) or any(hit.group() != "$$" for hit in _LOAD_REFERENCE.finditer(text))


def _resolve_text(node: SettingsNode, text: str, environ: Mapping[str, str], base: Path) -> str:
    value = _LOAD_REFERENCE.sub(lambda hit: "$" if hit.group() == "$$" else _expand_variable(hit[1], environ), text)
    if node.is_file:
        return to_absolute(value, base)
    if value.startswith(_FILE):
        return _read_referenced_file(value, base)
    return value


def _expand_variable(inner: str, environ: Mapping[str, str]) -> str:
    match = _NAME.fullmatch(inner)
    if match is None:
        raise ValueError(
            f"${{{inner}}} is not a valid reference; write ${{NAME}}, ${{NAME:-default}}, or $$ for a literal $"
        )
    name, default = match.groups()
    value = environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise ValueError(f"environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return value


def _read_referenced_file(reference: str, base: Path) -> str:
    path = Path(to_absolute(reference.removeprefix(_FILE).removeprefix("//"), base))
    try:
        return read_input(path).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


# Settings from the environment: ``XROUTER_TRIGGER=1s``, ``XROUTER_SINKS__BUS__TOPIC=events``.
#
# ``__`` goes one level down. Names of sinks and options are matched ignoring case, with ``_`` for ``-`` and ``.``; list
# items by index (``XROUTER_SOURCES__0__PASSWORD``). A JSON list or object replaces the whole section. An unknown
# variable is an error if it has ``__`` or resembles a key; others are ignored, since Kubernetes sets variables such as
# XROUTER_SERVICE_HOST for a service of that name.

PREFIX: Final = "XROUTER_"
_NEAR: Final = 0.8
_LOOSE: Final = re.compile(r"[.-]")


def apply_environment(
    written: Mapping[str, Any],
    environ: Mapping[str, str],
    root: SettingsNode = ROOT,
    prefix: str = PREFIX,
    overrides: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return a copy of the settings as written with overrides from the environment, references unresolved.

    A secret is not copied but replaced by a reference to its variable. *root* is the type of the settings and *prefix*
    begins their variables. *overrides* receives the variable's name for each overridden key.

    Raises:
        ConfigError: a variable looks like a setting but is unknown.
    """
    merged: dict[str, Any] = copy.deepcopy(dict(written))
    for name in sorted(environ):
        if name.startswith(prefix):
            keys = name.removeprefix(prefix).split("__")
            if _is_setting(name, keys, root.known_keys()):
                place = _override(merged, name, keys, environ[name], root)
                if overrides is not None:
                    overrides[".".join(place)] = name
    return merged


def _is_setting(name: str, keys: list[str], known: tuple[str, ...]) -> bool:
    key = keys[0].lower()
    if key in known:
        return True
    near = get_close_matches(key, known, 1, _NEAR)
    if near or (len(keys) > 1 and all(keys)):
        raise _unknown_key_error(name, key, known)
    return False


def _unknown_key_error(name: str, key: str, known: tuple[str, ...]) -> ConfigError:
    fault = f"environment variable {name} is not a setting: unknown key {key!r}"
    return ConfigError(fault, key=key, hint=hint_near(key, known))


def _override(merged: dict[str, Any], name: str, keys: list[str], text: str, schema_node: SettingsNode) -> KeyPath:
    """Set the value of a variable at its key path, and return that path."""
    node: Any = merged
    place: KeyPath = ()
    for depth, part in enumerate(keys):
        key = _find_key(node, schema_node, name, part)
        place = (*place, str(key))
        if isinstance(node, list):
            node.extend([None] * (key == len(node)))
        else:
            node.setdefault(key, None)
        schema_node = schema_node.get_child(str(key), node[key])
        if depth == len(keys) - 1:
            node[key] = _parse_value(schema_node, place[-1], name, text)
            break
        if node[key] is None:
            node[key] = [] if schema_node.is_list else {}
        node = node[key]
        if not isinstance(node, dict | list):
            above = ".".join(place)
            text = f"environment variable {name} names a key below {above}, which is a plain value"
            raise ConfigError(text, key=above, hint=f"override {above} as a whole")
    return place


def _find_key(node: Any, schema_node: SettingsNode, name: str, part: str) -> str | int:
    if isinstance(node, list):
        if not part.isdecimal() or int(part) > len(node):
            raise ConfigError(
                f"environment variable {name}: {part!r} is not a valid index of a list of {len(node)}", key=part
            )
        return int(part)
    wanted = part.lower()
    known = schema_node.known_keys()
    if known:
        if wanted not in known:
            raise _unknown_key_error(name, wanted, known)
        return wanted
    for key in node:
        if _LOOSE.sub("_", str(key).lower()) == wanted:
            return str(key)
    return wanted


def _parse_value(schema_node: SettingsNode, key: str, name: str, text: str) -> Any:
    if schema_node.is_secret(key):
        return text if is_reference(text) else f"${{{name}}}"
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            # Not JSON but a text that begins with a brace, such as the topic template {messagegroup}.
            return text
    return text


# Locations of faults: a line of the file, or an environment variable.

VARIABLE: Final = "environment variable "
"""Begins the location of a value from the environment."""


def locate_faults(problems: Sequence[str], file: Path, overrides: Mapping[str, str]) -> Iterator[str]:
    """Yield the location of each problem, a line ``key: fault``.

    *overrides* has the environment variable of each overridden key.
    """
    keys = [split_key(problem) for problem in problems]
    try:
        lines = lines_of(read_regular(file), {key_to_pointer(key) for key in keys if key})
    except OSError:
        lines = {}  # The file was removed after it was read.
    for key in keys:
        variable = _find_variable(key, overrides)
        line = lines.get(key_to_pointer(key)) if key else None
        yield f"{VARIABLE}{variable}" if variable else str(file) if line is None else f"{file}:{line}"


def split_key(problem: str) -> str:
    """Return the key of a problem, or ``""``."""
    key, mark, _ = problem.partition(": ")
    return key if mark and " " not in key else ""


def key_to_pointer(key: str) -> str:
    """Return a key as a JSON pointer."""
    return "/" + key.replace(".", "/")


def _find_variable(key: str, overrides: Mapping[str, str]) -> str:
    """Return the variable that set a key or its nearest parent, else one that set a part of it, else ``""``."""
    above = [place for place in overrides if key == place or key.startswith(f"{place}.")]
    below = [place for place in overrides if place.startswith(f"{key}.")]
    nearest = max(above, key=len) if above else min(below, key=len) if below and key else ""
    return overrides.get(nearest, "")


# Loading: read the file strictly, apply the environment (this is the unresolved form), fill in defaults for a laptop,
# resolve references and paths, validate, and check across sections.

M = TypeVar("M", bound=BaseModel)
_SHOWN: Final = 80
"""Maximum characters of a rejected name in an error."""
_EVENTS: Final[Mapping[str, str]] = {"type": "table", "format": "delta", "path": "./data/events"}
_LETTERS: Final[Mapping[str, str]] = {"type": "table", "format": "delta", "path": "./data/dead_letters"}
DEFAULT_CATALOG: Final = "catalog.xreg.json"
_EVENTS_NAME: Final = "events"
_LETTERS_NAME: Final = "dead_letters"
_LIST: Final = "must be a list: lines that begin with `- `"
_MAP: Final = "must be a map: lines such as `key: value`"
_FORMS: Final = {
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _MAP,
    "model_type": _MAP,
    "model_attributes_type": _MAP,
    "missing": "is required; add it",
}
"""Messages of pydantic, rewritten for YAML."""
_OF_TYPES: Final = {"union_tag_not_found": "requires a type", "union_tag_invalid": "unknown type; known"}
"""The same; the types of sinks follow."""


def load_settings(path: Path | str, environ: Mapping[str, str] | None = None) -> Settings:
    """Read settings from a YAML file, overridden by ``XROUTER_...`` variables of *environ* (``os.environ`` if None).

    Relative paths start from the folder of the file.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value is invalid, or settings contradict each other;
            all faults of the last two kinds are in ``problems``.
    """
    file = Path(path)
    variables = os.environ if environ is None else environ
    overrides: dict[str, str] = {}
    unresolved = apply_environment(read_yaml(file), variables, overrides=overrides)
    try:
        settings = settings_from_dict(unresolved, variables, file.resolve().parent, file=str(file))
        # Checked here only: settings stored with a plan must still load, so that an unfinished batch can finish.
        unsafe = [*iter_plaintext_faults(settings), *iter_executor_faults(settings), *iter_real_time_faults(settings)]
        if unsafe:
            raise settings_error(str(file), unsafe)
    except ConfigError as error:
        error.places = tuple(locate_faults(error.problems, file, overrides))
        raise
    return settings


def settings_from_dict(
    unresolved: Mapping[str, Any], environ: Mapping[str, str], base: Path, *, file: str = ""
) -> Settings:
    """Build settings from their unresolved form, as stored with a plan; *environ* resolves references.

    Overrides by ``XROUTER_...`` are not applied: the unresolved form already has them. Relative paths start from
    *base*; errors name *file*.

    Raises:
        ConfigError: as :func:`load_settings`.
    """
    values = resolve(add_defaults(unresolved), environ, base.resolve(), file)
    settings = validate_model(Settings, values, file)
    problems = list(iter_faults(settings))
    if problems:
        raise settings_error(file, problems)
    settings._unresolved = dict(unresolved)
    return settings


def validate_model(model: type[M], values: Mapping[str, Any], file: str) -> M:
    """Return a validated model of resolved values; errors name *file*.

    Raises:
        ConfigError: a key is unknown, or a value is invalid; ``problems`` has all faults.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        # From None: pydantic's own text contains rejected values, which may be secrets.
        problems = [_describe_problem(detail, values, SettingsNode(model)) for detail in error.errors()]
        raise settings_error(file, problems) from None


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a settings file as plain maps and lists; an empty one is an empty map.

    Raises:
        ConfigError: it is unreadable, not UTF-8, not valid YAML, or not a map.
    """
    hint = "fix the YAML there"
    try:
        data = read_input(file)
        parsed = parse_yaml(str(file), data.decode("utf-8"))
    except OSError as error:
        hint = "name an existing settings file, or write one with `xrouter init`"
        raise ConfigError(f"cannot read settings {file}: {error.strerror}", file=str(file), hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text", file=str(file), hint="save it as UTF-8") from error
    except DocumentError as error:
        cause: Any = error.__cause__
        mark = getattr(cause, "problem_mark", None)
        place = f"{file}, line {mark.line + 1}, column {mark.column + 1}: {cause.problem}" if mark else str(error)
        raise ConfigError(place, file=str(file), hint=hint) from error
    for pointer in (each.pointer for each in parsed.duplicates):
        line, key = lines_of(data, {pointer}).get(pointer), parse_pointer(pointer)[-1]
        raise ConfigError(f"{file}, line {line}: key {key!r} occurs twice", file=str(file), hint=hint)
    content = {} if parsed.tree is None else parsed.tree
    if not isinstance(content, dict):
        raise ConfigError(
            f"{file} is not a map of settings", file=str(file), hint="begin with lines such as `trigger: 1s`"
        )
    return content


def add_defaults(unresolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with defaults for a laptop: a table for events, one for dead letters, one route.

    If sinks are configured, so must be the routes; only the table for dead letters is added, unless
    ``dead_letters.sinks`` is set.
    """
    values = {key: value for key, value in unresolved.items() if value is not None}
    values.setdefault("state", "./state")
    catalog = values.setdefault("catalog", {})
    if isinstance(catalog, dict):
        values["catalog"] = {"source": f"./{DEFAULT_CATALOG}", **catalog}
    sinks = values.get("sinks", {})
    letters = values.get("dead_letters", {})
    if not isinstance(sinks, dict) or not isinstance(letters, dict):
        return values
    if not sinks:
        sinks = {_EVENTS_NAME: dict(_EVENTS)}
        values.setdefault("routes", [{"to": [_EVENTS_NAME]}])
    if "sinks" not in letters:
        sinks = {_LETTERS_NAME: dict(_LETTERS), **sinks}
        letters = {"sinks": [_LETTERS_NAME], **letters}
    return {**values, "sinks": sinks, "dead_letters": letters}


def _describe_problem(detail: ErrorDetails, values: Any, root: SettingsNode) -> tuple[str, str]:
    place, schema_node = _follow_location(detail["loc"], values, root)
    kind, message = detail["type"], detail["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if kind == "extra_forbidden":
        message = f"unknown key {place[-1]!r}; {hint_near(place[-1], schema_node.known_keys())}"
    elif kind in _FORMS:
        message = _FORMS[kind]
    elif kind in _OF_TYPES:
        types = ", ".join(get_args(each.model_fields["type"].annotation)[0] for each in KINDS)
        message = f"{_OF_TYPES[kind]}: {types}"
    elif kind == "string_pattern_mismatch" and detail.get("ctx", {}).get("pattern") == ENDPOINT:
        named = str(detail["input"]).strip().rstrip("/").rpartition("/")[2][:_SHOWN]
        meant = f"did you mean /endpoints/{named}?" if named else "write /endpoints/ID"
        message = f"{message}, the xid of an endpoint; {meant}"
    return ".".join(place), message


def _follow_location(loc: tuple[int | str, ...], values: Any, root: SettingsNode) -> tuple[list[str], SettingsNode]:
    """Follow an error's location; return the key path, without pydantic's union tags, and the parent's spot."""
    place: list[str] = []
    schema_node = parent = root
    node = values
    for part in loc:
        if isinstance(node, dict) and part not in node and node.get("type") == part:
            continue
        parent = schema_node
        place.append(str(part))
        node = node[part] if isinstance(node, dict) and part in node else _get_item(node, part)
        schema_node = schema_node.get_child(str(part), node)
    return place, parent


def _get_item(node: Any, part: int | str) -> Any:
    return node[part] if isinstance(node, list | tuple) and isinstance(part, int) and part < len(node) else None


def settings_error(file: str, problems: Sequence[tuple[str, str]]) -> ConfigError:
    """Return the error of a settings file with all its problems, each a key and a fault."""
    lines = tuple(f"{key}: {fault}" for key, fault in problems)
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    prefix = f"{file}: " if file else "settings: "
    return ConfigError(f"{prefix}{lines[0]}{more}", file=file, key=problems[0][0], problems=lines)


# Logins alone, for commands that read catalogs and need no other settings.

_KEYS: Final = ("logins", "allow_plaintext_password")
_SCHEMAS: Final = "schema_registries"
VARIABLES: Final = (*(f"{PREFIX}CATALOG__{key.upper()}" for key in _KEYS), f"{PREFIX}{_SCHEMAS.upper()}")
"""Prefixes of the environment variables for logins."""


def read_logins(file: Path | None, environ: Mapping[str, str] | None = None) -> Logins:
    """Return the logins for catalogs and schema registries in a settings file.

    *environ* (``os.environ`` if None) overrides them. The rest of the file is ignored, so files that it refers to need
    not exist.

    Raises:
        ConfigError: as :func:`router.settings.load.load_settings`, for these keys.
    """
    variables = os.environ if environ is None else environ
    content = read_yaml(file) if file is not None else {}
    written = content.get("catalog")
    section: dict[str, Any] = (
        {key: written[key] for key in _KEYS if key in written} if isinstance(written, dict) else {}
    )
    of_logins = {name: value for name, value in variables.items() if name.startswith(VARIABLES)}
    schemas = {_SCHEMAS: content[_SCHEMAS]} if content.get(_SCHEMAS) else {}
    unresolved = apply_environment({"catalog": section, **schemas}, of_logins)
    base = file.resolve().parent if file is not None else Path.cwd()
    name = str(file) if file is not None else ""
    settings = settings_from_dict(unresolved, variables, base, file=name)
    for key, fault in iter_plaintext_faults(settings):
        problem = f"{key}: {fault}"
        raise ConfigError(f"{name}: {problem}" if name else problem, file=name, key=key, problems=(problem,))
    return make_logins(settings)
