"""Settings from the environment: ``XROUTER_TRIGGER=1s``, ``XROUTER_SINKS__BUS__TOPIC=events``.

``__`` goes one level down. Names of sinks and options are found whatever their case, with ``_`` for ``-`` and ``.``;
list items by index (``XROUTER_SOURCES__0__PASSWORD``). A value that is a JSON list or object replaces the whole
section. A variable that is no setting is an error if it has ``__`` or comes near a key; others are left alone, since
Kubernetes sets variables such as XROUTER_SERVICE_HOST for a service of that name.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from router.errors import ConfigError
from router.settings.places import Place, dotted, holds_secret
from router.settings.references import is_reference
from router.settings.schema import ROOT, Spot

PREFIX: Final = "XROUTER_"
_NEAR: Final = 0.8
_LOOSE: Final = re.compile(r"[.-]")


def overlay(
    written: Mapping[str, Any],
    environ: Mapping[str, str],
    root: Spot = ROOT,
    prefix: str = PREFIX,
    laid: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return a copy of the settings as written with the environment laid over it, references unresolved.

    A secret is not copied: its place gets a reference to the variable. *root* are the settings meant, the router's or
    others, and *prefix* is what their variables begin with. *laid* gets the variable of each key that has its value
    of one.

    Raises:
        ConfigError: a variable that is meant as a setting and is none.
    """
    merged: dict[str, Any] = copy.deepcopy(dict(written))
    for name in sorted(environ):
        if name.startswith(prefix):
            keys = name.removeprefix(prefix).split("__")
            if _meant(name, keys, root.keys()):
                place = _lay(merged, name, keys, environ[name], root)
                if laid is not None:
                    laid[dotted(place)] = name
    return merged


def _meant(name: str, keys: list[str], known: tuple[str, ...]) -> bool:
    key = keys[0].lower()
    if key in known:
        return True
    near = get_close_matches(key, known, 1, _NEAR)
    if near or (len(keys) > 1 and all(keys)):
        raise _unknown(name, key, known)
    return False


def _unknown(name: str, key: str, known: tuple[str, ...]) -> ConfigError:
    near = get_close_matches(key, known, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return ConfigError(f"environment variable {name} is no setting: no key {key!r}", key=key, hint=hint)


def _lay(merged: dict[str, Any], name: str, keys: list[str], text: str, spot: Spot) -> Place:
    """Put the value of a variable where its name says, and return that place."""
    node: Any = merged
    place: Place = ()
    for depth, part in enumerate(keys):
        key = _key(node, spot, name, part)
        place = (*place, str(key))
        spot = spot.child(str(key), node[key] if _has(node, key) else {})
        if depth == len(keys) - 1:
            _put(node, key, _value(place, name, text))
            break
        if not _has(node, key) or node[key] is None:
            _put(node, key, [] if spot.is_list else {})
        node = node[key]
        if not isinstance(node, dict | list):
            raise ConfigError(
                f"environment variable {name} goes below {dotted(place)}, which is a plain value",
                key=dotted(place),
                hint=f"override {dotted(place)} as a whole",
            )
    return place


def _key(node: Any, spot: Spot, name: str, part: str) -> str | int:
    if isinstance(node, list):
        if not part.isdecimal() or int(part) > len(node):
            raise ConfigError(f"environment variable {name}: {part!r} is no index of a list of {len(node)}", key=part)
        return int(part)
    wanted = part.lower()
    known = spot.keys()
    if known:
        if wanted not in known:
            raise _unknown(name, wanted, known)
        return wanted
    for key in node:
        if _LOOSE.sub("_", str(key).lower()) == wanted:
            return str(key)
    return wanted


def _has(node: Any, key: str | int) -> bool:
    return key < len(node) if isinstance(key, int) else key in node


def _put(node: Any, key: str | int, value: Any) -> None:
    if isinstance(key, int) and key == len(node):
        node.append(value)
    else:
        node[key] = value


def _value(place: Place, name: str, text: str) -> Any:
    if holds_secret(place):
        return text if is_reference(text) else f"${{{name}}}"
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            # Not JSON: a text that begins with a brace, such as the topic template {messagegroup}.
            return text
    return text
