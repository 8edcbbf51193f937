"""From a YAML file and the environment to :class:`Settings`, or to one error that names every fault.

Steps: read the file strictly, lay the environment over it, keep that as the unresolved form, fill in what a laptop
needs, resolve references and paths, validate, and check what must hold between sections.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from catalog.parsing.regular import read_input
from router.errors import ConfigError
from router.settings.blame import places_of
from router.settings.checks import faults
from router.settings.environment import overlay
from router.settings.executors import executor_faults
from router.settings.model import Settings
from router.settings.plaintext import plaintext_faults
from router.settings.real_time_checks import real_time_faults
from router.settings.references import resolve
from router.settings.schema import Spot
from router.settings.sinks.kinds import KINDS
from router.settings.strict_yaml import StrictLoader
from router.settings.values import ENDPOINT

M = TypeVar("M", bound=BaseModel)
MAX_SETTINGS: Final = 16 * 1024 * 1024
"""Bytes of a settings file."""
_SHOWN: Final = 80
"""Characters of a rejected name that are shown."""
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
}
"""Messages that pydantic words for Python, worded for YAML."""


def load_settings(path: Path | str, environ: Mapping[str, str] | None = None) -> Settings:
    """Read settings from a YAML file, overridden by ``XROUTER_...`` variables of *environ* (the process's own if None).

    Relative paths start from the folder of the file.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value is invalid, or settings contradict each other;
            all faults of the last two kinds are in ``problems``.
    """
    file = Path(path)
    variables = os.environ if environ is None else environ
    laid: dict[str, str] = {}
    unresolved = overlay(read_file(file), variables, laid=laid)
    try:
        settings = settings_from_dict(unresolved, variables, file.resolve().parent, file=str(file))
        # Checked here, apart from the other faults: an unfinished batch must be able to finish by its own plan.
        unwise = [*plaintext_faults(settings), *executor_faults(settings), *real_time_faults(settings)]
        if unwise:
            raise failure(str(file), unwise)
    except ConfigError as error:
        error.places = tuple(places_of(error.problems, file, laid))
        raise
    return settings


def settings_from_dict(
    unresolved: Mapping[str, Any], environ: Mapping[str, str], base: Path, *, file: str = ""
) -> Settings:
    """Build settings from their unresolved form, such as a plan keeps; references are resolved from *environ*.

    Overrides by ``XROUTER_...`` are not applied: the unresolved form has them already. *base* is the folder that
    relative paths start from, *file* the name for errors.

    Raises:
        ConfigError: as :func:`load_settings`.
    """
    values = resolve(with_defaults(unresolved), environ, base.resolve(), file)
    settings = validated(Settings, values, file)
    problems = list(faults(settings))
    if problems:
        raise failure(file, problems)
    settings._unresolved = dict(unresolved)
    return settings


def validated(model: type[M], values: Mapping[str, Any], file: str) -> M:
    """Return settings of resolved values; *file* is their name for errors.

    Raises:
        ConfigError: a key is unknown, or a value is invalid; ``problems`` has all that is wrong.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        # From None: pydantic's own text holds rejected values, which may be secrets.
        problems = [_problem(detail, values, Spot(model)) for detail in error.errors()]
        raise failure(file, problems) from None


def read_file(file: Path) -> dict[str, Any]:
    """Read a settings file as plain maps and lists; an empty one is an empty map.

    Raises:
        ConfigError: unreadable, no UTF-8, no YAML, or no map.
    """
    try:
        content = yaml.load(read_input(file, MAX_SETTINGS).decode("utf-8"), Loader=StrictLoader)
    except OSError as error:
        hint = "name an existing settings file, or write one with `xrouter init`"
        raise ConfigError(f"cannot read settings {file}: {error.strerror}", file=str(file), hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text", file=str(file), hint="save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        fault = getattr(error, "problem", None) or "not valid YAML"
        raise ConfigError(f"{file}{place}: {fault}", file=str(file), hint="mend the YAML there") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(
            f"{file} is no map of settings", file=str(file), hint="begin with lines such as `trigger: 1s`"
        )
    return content


def with_defaults(unresolved: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what makes an empty file work on a laptop: a table for events, one for dead letters, one route.

    Sinks that are configured are left alone: then the routes must be written, and only the dead letters' table is
    added when ``dead_letters.sinks`` is not given.
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


def _problem(detail: ErrorDetails, values: Any, root: Spot) -> tuple[str, str]:
    place, spot = _walk(detail["loc"], values, root)
    key = ".".join(place)
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = spot.keys()
        near = get_close_matches(place[-1], known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return key, f"unknown key {place[-1]!r}; {hint}"
    if kind == "missing":
        return key, "is required; add it"
    if kind == "union_tag_not_found":
        return key, f"needs a type: {_sink_types()}"
    if kind == "union_tag_invalid":
        return key, f"unknown type; known are {_sink_types()}"
    if kind in _FORMS:
        return key, _FORMS[kind]
    if kind == "string_pattern_mismatch" and detail.get("ctx", {}).get("pattern") == ENDPOINT:
        named = str(detail["input"]).strip().rstrip("/").rpartition("/")[2][:_SHOWN]
        meant = f"did you mean /endpoints/{named}?" if named else "write /endpoints/ID"
        return key, f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, the xid of an endpoint; {meant}"
    message = detail["msg"].removeprefix("Value error, ")
    return key, message[:1].lower() + message[1:]


def _sink_types() -> str:
    return ", ".join(get_args(kind.model_fields["type"].annotation)[0] for kind in KINDS)


def _walk(loc: tuple[int | str, ...], values: Any, root: Spot) -> tuple[list[str], Spot]:
    """Follow an error's location; return the key path, without pydantic's union tags, and the spot of the parent."""
    place: list[str] = []
    spot = parent = root
    node = values
    for part in loc:
        if isinstance(node, dict) and part not in node and node.get("type") == part:
            continue
        parent = spot
        place.append(str(part))
        node = node[part] if isinstance(node, dict) and part in node else _item(node, part)
        spot = spot.child(str(part), node)
    return place, parent


def _item(node: Any, part: int | str) -> Any:
    return node[part] if isinstance(node, list | tuple) and isinstance(part, int) and part < len(node) else None


def failure(file: str, problems: Sequence[tuple[str, str]]) -> ConfigError:
    """Return the error of a settings file for all that is wrong with it, each a key and what is the matter there."""
    lines = tuple(f"{key}: {fault}" for key, fault in problems)
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    prefix = f"{file}: " if file else "settings: "
    return ConfigError(f"{prefix}{lines[0]}{more}", file=file, key=problems[0][0], problems=lines)
