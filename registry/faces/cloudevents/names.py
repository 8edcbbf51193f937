"""The collections under their older names, and references to what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.core.requests import ResourcePath, place_of
from registry.errors import Refusal, invalid
from registry.http.access import Call
from registry.http.requests import decoded_request as decoded
from registry.http.requests import limit_of, query_of
from registry.model.attributes import KEY, NAME
from registry.model.types import Model
from registry.store.entities import Version

GROUPS: Final[Mapping[str, str]] = {
    "endpoints": "endpoints",
    "messagegroups": "definitionGroups",
    "schemagroups": "schemaGroups",
}
"""The older names of types of groups, by those of 1.0."""
RESOURCES: Final[Mapping[str, str]] = {"messages": "definitions", "schemas": "schemas"}
"""The older names of types of resources, by those of 1.0."""
SINGULAR: Final[Mapping[str, str]] = {"messages": "definition", "schemas": "schema"}
_NEWER: Final = {
    **{older.lower(): newer for newer, older in (*GROUPS.items(), *RESOURCES.items())},
    **{name: name for name in (*GROUPS, *RESOURCES)},
    "schema": "schemas",
    "versions": "versions",
}
"""The names of 1.0 by older ones in lower case; the specification itself writes them in several ways."""
_LENGTHS: Final = (2, 4, 6)


def newer_name(name: str) -> str | None:
    """Return the name of 1.0 for a collection, in any letter case; None for what is none."""
    return _NEWER.get(name.lower())


def older_path(xid: str) -> str:
    """Return the path of an entity or a collection under its older names."""
    parts = xid.split("/")
    for place, names in ((1, GROUPS), (3, RESOURCES)):
        if len(parts) > place:
            parts[place] = names.get(parts[place], parts[place])
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class Links:
    """References as a face at *url* writes them: pointers within a *whole* document, else URLs."""

    url: str
    whole: bool = False

    def refer(self, reference: str) -> str:
        """Write a reference; one that leads elsewhere stays as it is."""
        xid = self.local(reference)
        return reference if xid is None else f"{'#' if self.whole else self.url}{older_path(xid)}"

    def local(self, reference: str) -> str | None:
        """Return the xid that a reference names, as a URL of this face, a pointer or an xid; None for any other."""
        path = reference.removeprefix(self.url if reference.startswith(f"{self.url}/") else "#")
        parts = path.split("/")[1:]
        if not path.startswith("/") or len(parts) not in _LENGTHS or not all(parts):
            return None
        names = [newer_name(name) for name in parts[::2]]
        if (
            names[0] not in GROUPS
            or any(name not in RESOURCES for name in names[1:2])
            or names[2:] not in ([], ["versions"])
        ):
            return None
        return "".join(f"/{name}/{each}" for name, each in zip(names, parts[1::2], strict=True))


# What a request is directed at: a place of the core, under its older path, and the flags of this face.

MAX_SEGMENTS: Final = 6
_METHODS: Final = {
    "registry": ("GET", "HEAD"),
    "groups": ("GET", "HEAD", "POST", "DELETE"),
    "group": ("GET", "HEAD", "PUT", "DELETE"),
    "resources": ("GET", "HEAD", "POST", "DELETE"),
    "resource": ("GET", "HEAD", "PUT", "POST", "DELETE"),
    "versions": ("GET", "HEAD", "DELETE"),
    "version": ("GET", "HEAD", "PUT", "DELETE"),
}


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request taken apart. ``meta``, ``inline`` and ``model`` are flags, whatever their values."""

    path: str
    place: ResourcePath
    meta: bool
    inline: bool
    model: bool
    epoch: int | None
    limit: int
    cursor: str

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that the place takes."""
        return _METHODS[self.place.kind]


def asked(call: Call, model: Model) -> ParsedRequest:
    """Take a request apart.

    Raises:
        Refusal: it cannot be read, or there is no such path.
    """
    path = decoded(call.path, "/")
    segments = [decoded(part, path) for part in call.path.split(b"/") if part]
    if len(segments) > MAX_SEGMENTS:
        raise Refusal("api_not_found", path)
    place = place_of(model, [_named(each, index, path) for index, each in enumerate(segments)], path)
    given = query_of(call.head.query)
    flags = {name: values[-1] for name, values in given.items()}
    cursor = flags.get("cursor", "")
    if not (cursor.isascii() and cursor.isprintable()):
        raise Refusal("bad_request", path, error_detail="the cursor is not from this registry")
    limit = min(limit_of(flags.get("limit"), path) or call.pages.usual, call.pages.most)
    meta = "meta" in flags and place.kind in ("resource", "version")
    epoch = _epoch(flags.get("epoch"), path)
    return ParsedRequest(path, place, meta, "inline" in flags, "model" in flags, epoch, limit, cursor)


def _named(segment: str, index: int, path: str) -> str:
    """Return what a segment of a path is in the core: ids as they are, collections by their names of 1.0."""
    if index % 2:
        return segment
    name = newer_name(segment)
    if name is None or name not in ((*GROUPS,), (*RESOURCES,), ("versions",))[index // 2]:
        raise Refusal("api_not_found", path)
    return name


def _epoch(text: str | None, path: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Refusal("bad_flag", path, detail="epoch needs to be an unsigned integer", flag="epoch")
    return int(text)


# The model as this face shows it (``GET /?model``).

_GROUP = {"endpoints": "endpoint", "messagegroups": "definitionGroup", "schemagroups": "schemaGroup"}
_VERSIONS = {"messages": 0, "schemas": -1}


def model_of(model: Model) -> dict[str, Any]:
    """Return the types of groups that the registry has and this face shows, with their resources."""
    return {
        "groups": [
            {
                "singular": _GROUP[plural],
                "plural": older,
                "resources": [
                    {"singular": SINGULAR[name], "plural": RESOURCES[name], "versions": _VERSIONS[name]}
                    for name in model.groups[plural].resources
                    if name in RESOURCES
                ],
            }
            for plural, older in GROUPS.items()
            if plural in model.groups
        ]
    }


# Versions as this face counts them: the latest has the greatest id, where shorter ids are filled up from the left.

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_DOTTED: Final = re.compile(r"([1-9][0-9]{0,15})((?:\.[0-9]{1,16}){1,3})", re.ASCII)


def rank(version: str) -> tuple[int, str]:
    """Return what versions are compared by: padded with spaces to one length, the shorter is the less."""
    return len(version), version


def latest(versions: Iterable[Version]) -> Version | None:
    """Return the latest version, None when there is none."""
    return max(versions, key=lambda each: rank(each.id), default=None)


def number(version: str) -> int | str:
    """Return the id of a version as the number that it is, else as it is."""
    return int(version) if _NUMBER.fullmatch(version) else version


def following(version: str, subject: str) -> str:
    """Return the id of the version after the latest: one more, or of dotted numbers the next whole one.

    Raises:
        Refusal: it is unknown which version follows.
    """
    if _NUMBER.fullmatch(version):
        return str(int(version) + 1)
    dotted = _DOTTED.fullmatch(version)
    if dotted is None:
        why = f"no version follows {version!r} by itself; put the next one at its own path"
        raise Refusal("bad_request", subject, error_detail=why)
    zeros = re.sub(r"[0-9]", "0", dotted[2])
    return f"{int(dotted[1]) + 1}{zeros}"


# What describes an entity, under older and under newer names; what has no place in 1.0 is kept apart, and not lost.

KEPT: Final = "cloudeventsregistry"
"""The attribute of 1.0 that holds the tags and extension attributes whose names 1.0 does not allow."""
_NEWER_ATTRIBUTES: Final = {"docs": "documentation"}
_OWN: Final = frozenset(("labels", KEPT, "id", "tags", "version", "versions", "specversion", *_NEWER_ATTRIBUTES))
"""Names that mean other things here than as extension attributes of 1.0, and those that are written by another."""
_OLDER: Final = {newer: older for older, newer in _NEWER_ATTRIBUTES.items()}


def newer_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an older body says beside its content, under the names of 1.0.

    Raises:
        Refusal: its tags are no map.
    """
    renamed: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name == "tags":
            if not isinstance(value, Mapping):
                raise invalid("/", name, "needs to be a map")
            labels = {key: each for key, each in value.items() if KEY.fullmatch(key)}
            rest = {key: each for key, each in value.items() if key not in labels}
            renamed.update({"labels": labels} if labels else {})
            kept.update({name: rest} if rest else {})
        elif name == "deprecated" and isinstance(value, Mapping):
            renamed[name] = {_NEWER_ATTRIBUTES.get(key, key): each for key, each in value.items()}
        elif name in _NEWER_ATTRIBUTES or (NAME.fullmatch(name) and name not in ("labels", KEPT)):
            renamed[_NEWER_ATTRIBUTES.get(name, name)] = value
        else:
            kept[name] = value
    return {**renamed, **({KEPT: kept} if kept else {})}


def older_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entity of 1.0 says beside its content, under older names: the inverse of :func:`newer_names`."""
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        if name == "deprecated" and isinstance(value, Mapping):
            renamed[name] = {_OLDER.get(key, key): each for key, each in value.items()}
        elif name not in _OWN:
            renamed[_OLDER.get(name, name)] = value
    labels, kept = given.get("labels"), given.get(KEPT)
    rest = dict(kept) if isinstance(kept, Mapping) else {}
    tags = rest.pop("tags", None)
    united = {**(labels if isinstance(labels, Mapping) else {}), **(tags if isinstance(tags, Mapping) else {})}
    return {
        **renamed,
        **{name: each for name, each in rest.items() if name not in renamed},
        **({"tags": united} if united else {}),
    }


def present(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not None."""
    return {name: value for name, value in given.items() if value is not None}
