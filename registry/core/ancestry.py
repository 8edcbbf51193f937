"""Version ancestry, group constraints, merging of request bodies, and linting of writes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Connection

from catalog.documents.documents import Document
from catalog.documents.fetching import Fetcher, HttpResponse
from catalog.explaining import entity_to_json
from catalog.findings import Declarations, DocumentError, Findings
from catalog.linting.attributes import rejecting_errors
from catalog.load import build_catalog
from catalog.model import Finding
from catalog.parsing.pointers import unescape_step
from catalog.values import parse_whole_number
from registry.core.requests import ResourcePath, parse_resource_path
from registry.core.views import INLINE_ALL, EntityView, Scope, ShownResource, ViewOptions, find_shown
from registry.errors import Refusal, invalid_value, join_values
from registry.model.attributes import (
    GroupType,
    Model,
    ModelAttribute,
    ModelConstraint,
    ResourceType,
    parse_time,
    to_utc,
)
from registry.model.compiler import parse_constraints
from registry.store.entities import Entity, GroupEntity, Version, WriteTransaction, level_of

# Newest and oldest version, and ancestry (``model.md``, versionmode).

_SEMVER: Final = re.compile(r"v?(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?(?:-([0-9A-Za-z.-]{1,100}))?(?:\+.*)?")


def parse_number(version: str) -> int | None:
    """Return a numeric version id as a number, None for other ids, which only the core API can create."""
    number = parse_whole_number(version, 10**18 - 1)
    return number if str(number) == version else None


def version_sort_key(version: str) -> tuple[bool, int, str]:
    """Return the sort key of a version id: numbers sort after all other ids, which sort as text."""
    number = parse_number(version)
    return number is not None, number or 0, version


def newest_version(mode: str, versions: Collection[Version]) -> Version:
    """Return the newest version, of at least one."""
    if mode == "manual":
        parents = {each.ancestorid for each in versions if each.ancestorid != each.id}
        leaves = [each for each in versions if each.id not in parents]
        return max(leaves or versions, key=_creation_key)
    return max(versions, key=_SORT_KEYS[mode])


def oldest_version(mode: str, versions: Collection[Version]) -> Version:
    """Return the oldest version, of at least one."""
    if mode == "manual":
        roots = [each for each in versions if each.ancestorid == each.id]
        return min(roots or versions, key=_creation_key)
    return min(versions, key=_SORT_KEYS[mode])


def sort_key_of_mode(mode: str) -> Callable[[Version], tuple[Any, ...]]:
    """Return the sort key function by which versions without common ancestry are ordered from old to new."""
    return _SORT_KEYS.get(mode, _creation_key)


def append_versions(mode: str, new: Sequence[Version], last: Version) -> bool:
    """Append new versions without a requested ancestor to the newest one; return whether that was possible.

    Return False, and change nothing, if *mode* orders one of them elsewhere.
    """
    order = sort_key_of_mode(mode)
    ordered = sorted(new, key=order if mode in _SORT_KEYS else lambda each: each.id.lower())
    if any(order(each) <= order(last) for each in ordered):
        return False
    for each in ordered:
        each.ancestorid, last = last.id, each
    return True


def set_ancestors(
    kind: ResourceType, subject: str, versions: Mapping[str, Version], asked: Collection[str]
) -> list[Version]:
    """Set the ancestor of each version, and return the existing versions whose ancestor changed.

    New versions have the ancestor '', unless the request names one; *asked* are the ids of versions whose ancestor the
    request names.

    Raises:
        Refusal: a requested ancestor does not exist, ancestors form a cycle, or there are several roots where only one
            is allowed.
    """
    for each in versions.values():
        if each.id in asked and each.ancestorid not in versions:
            raise Refusal("unknown_id", subject, singular="version", id=each.ancestorid)
    before = {each.id: each.ancestorid for each in versions.values()}
    if kind.versionmode == "manual":
        _make_roots(versions)
    else:
        previous: Version | None = None
        for each in sorted(versions.values(), key=_SORT_KEYS[kind.versionmode]):
            each.ancestorid = each.id if previous is None else previous.id
            previous = each
    _check_circles(subject, versions)
    roots = [each.id for each in versions.values() if each.ancestorid == each.id]
    if kind.singleversionroot and len(roots) > 1:
        raise Refusal("multiple_roots", subject, plural=kind.plural)
    return [each for each in versions.values() if before[each.id] not in ("", each.ancestorid)]


def _make_roots(versions: Mapping[str, Version]) -> None:
    fresh = sorted((each for each in versions.values() if not each.ancestorid), key=lambda each: each.id.lower())
    for each in versions.values():
        if each.ancestorid and each.ancestorid not in versions:
            each.ancestorid = each.id
    settled = [each for each in versions.values() if each.ancestorid]
    last = newest_version("manual", settled) if settled else None
    for each in fresh:
        each.ancestorid = each.id if last is None else last.id
        last = each


def _check_circles(subject: str, versions: Mapping[str, Version]) -> None:
    safe: set[str] = set()
    for start in versions.values():
        path: dict[str, None] = {}
        each = start
        while each.id not in safe:
            if each.id in path:
                raise Refusal("ancestor_circular_reference", subject, list=join_values(sorted(path)))
            path[each.id] = None
            if each.ancestorid == each.id:
                break
            each = versions[each.ancestorid]
        safe.update(path)


def _time_key(name: str, version: Version) -> tuple[Any, ...]:
    return parse_time(getattr(version, name)), version.id.lower()


_creation_key: Final = partial(_time_key, "createdat")


def _semver_key(version: Version) -> tuple[Any, ...]:
    """Return the order of Semantic Versioning; ids that are not semantic versions come first, as text."""
    match = _SEMVER.fullmatch(version.id)
    if match is None:
        return (0, (), 0, (), version.id.lower())
    numbers = tuple(int(part or 0) for part in match.groups()[:3])
    before = match[4]
    parts = tuple(
        (0, int(part), "") if part.isascii() and part.isdecimal() else (1, 0, part)
        for part in (before or "").split(".")
    )
    return (1, numbers, 0 if before else 1, parts, version.id.lower())


_SORT_KEYS: Final[Mapping[str, Callable[[Version], tuple[Any, ...]]]] = {
    "createdat": _creation_key,
    "modifiedat": partial(_time_key, "modifiedat"),
    "semver": _semver_key,
}


# Constraints on attributes of resources: of a group type, and of a group by its own ``constraints``.
#
# A group may narrow the constraints of its type and add to them, but not widen them (core ``spec.md``, ``constraints``
# Attribute; ``model.md``, ``groups.<STRING>.constraints``).


def constraints_of(kind: GroupType, group: GroupEntity | None) -> tuple[ModelConstraint, ...]:
    """Return the constraints of a group's resources: those of its type, narrowed by its own.

    Raises:
        Refusal: ``bad_request``: the group's own are malformed, or contradict its type.
    """
    given = group.attributes.get("constraints") if group is not None else None
    if not given or group is None:
        return kind.constraints
    subject, inherited = group.xid, {each.key: each for each in kind.constraints}
    try:
        own = {each.key: each for each in parse_constraints(subject, given, kind.resources, kind.attributes)}
    except Refusal as error:
        raise Refusal("bad_request", subject, error_detail=error.title_args["error_detail"]) from None
    narrowed = {key: _narrow_constraint(subject, inherited[key], each) for key, each in own.items() if key in inherited}
    return tuple({**inherited, **own, **narrowed}.values())


def add_constraint_defaults(
    constraints: Sequence[ModelConstraint], resources: str, values: dict[str, Any]
) -> dict[str, Any]:
    """Return the attributes of a version, with the defaults of its group's constraints for missing values."""
    for each in constraints:
        if each.resources != resources or each.default is None or value_at(values, each.path) is not None:
            continue
        *above, last = each.path.split(".")
        if above:
            values = deepcopy(values)
        holder = values
        for name in above:
            holder = holder.setdefault(name, {})
            if not isinstance(holder, dict):
                break  # not an object: the type check reports it
        else:
            holder[last] = each.default
    return values


def check_constraints(
    xid: str,
    resources: str,
    constraints: Sequence[ModelConstraint],
    group: GroupEntity,
    versions: Mapping[str, Version],
) -> None:
    """Check all versions of a resource against the constraints of a group that contains or references it.

    Raises:
        Refusal: ``constraint_failure``: a version violates one; the detail names the versions.
    """
    for each in constraints:
        if each.resources != resources:
            continue
        values = {name: value_at(version.attributes, each.path) for name, version in versions.items()}
        wanted = value_at(group.attributes, each.equals) if each.equals else None
        kind, more, broken, folds = "equals", "", [], each.path == "format"
        if wanted is not None:
            broken = [name for name, value in values.items() if fold_case(value, folds) != fold_case(wanted, folds)]
        if each.enum and not broken:
            kind, more = "enum", f" The value must be one of {join_values([str(value) for value in each.enum])}."
            broken = [name for name, value in values.items() if value not in (*each.enum, None)]
        if broken:
            detail = f"Versions: {join_values(sorted(broken))}.{more}"
            raise Refusal("constraint_failure", xid, kind=kind, path=each.path, detail=detail)


def value_at(values: Any, path: str) -> Any:
    """Return the value at a dotted path, None if there is none."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _narrow_constraint(subject: str, inherited: ModelConstraint, own: ModelConstraint) -> ModelConstraint:
    wider = [str(each) for each in own.enum if inherited.enum and each not in inherited.enum]
    enum, default = own.enum or inherited.enum, own.default if own.default is not None else inherited.default
    problem = ""
    if wider:
        problem = f"has values that the group type does not allow: {join_values(wider)}"
    elif own.equals and inherited.equals and own.equals != inherited.equals:
        problem = f"equals {own.equals}, but its group type has {inherited.equals}"
    elif enum and default is not None and default not in enum:
        problem = f"has the default {default}, which is not among {join_values([str(each) for each in enum])}"
    if problem:
        raise Refusal("bad_request", subject, error_detail=f"the constraint {own.key} {problem}")
    return replace(inherited, default=default, enum=enum, equals=own.equals or inherited.equals)


def fold_case(value: Any, fold: bool) -> Any:
    """Return a value for comparison; with *fold* text ignores case."""
    return value.lower() if fold and isinstance(value, str) else value


# Applying a request's body to an entity: replace or patch attributes, compare id and epoch.

IGNORE_VALUES: Final = (
    "capabilities",
    "defaultversionid",
    "defaultversionsticky",
    "epoch",
    "id",
    "modelsource",
    "readonly",
)
_NOT_STORED: Final = frozenset(("$schema",))


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of one write.

    ``now`` is the time of the request, ``ignore`` the parts of its body to ignore. ``default`` is the value of
    ``setdefaultversionid``, None without it.
    """

    now: str
    ignore: frozenset[str] = frozenset()
    default: str | None = None


def as_object(value: object, subject: str) -> Mapping[str, Any]:
    """Return *value*, which must be an object.

    Raises:
        Refusal: it is not.
    """
    if not isinstance(value, Mapping):
        raise Refusal("bad_request", subject, error_detail=f"{subject} must be an object")
    return value


def merge_body(
    before: Mapping[str, Any], body: Mapping[str, Any], attributes: Mapping[str, ModelAttribute], *, patch: bool
) -> dict[str, Any]:
    """Return an entity's attributes after a body replaces them, or with *patch* updates those that it names.

    Attributes that only the server writes are left out, and read-only attributes are unchanged.
    """
    locked = {name for name, each in attributes.items() if each.readonly and not each.served}
    stored = dict(before) if patch else {name: value for name, value in before.items() if name in locked}
    for name, value in body.items():
        known = attributes.get(name)
        if name in _NOT_STORED or name in locked or (known is not None and known.served):
            continue
        if value is None:
            stored.pop(name, None)
        else:
            stored[name] = value
    return stored


def compare_id(body: Mapping[str, Any], singular: str, expected: str, subject: str) -> None:
    """Raise if an id in a body is not its entity's.

    Raises:
        Refusal: ``mismatched_id``.
    """
    given = body.get(f"{singular}id")
    if given is not None and given != expected:
        raise Refusal("mismatched_id", subject, singular=singular, invalid_id=str(given), expected_id=expected)


def compare_epoch(body: Mapping[str, Any], entity: Entity, subject: str, options: WriteOptions) -> None:
    """Raise if an epoch in a body is not the entity's current one.

    Raises:
        Refusal: ``mismatched_epoch``, or ``invalid_value`` if it is not an unsigned integer.
    """
    given = body.get("epoch")
    if given is None or "epoch" in options.ignore:
        return
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise invalid_value(subject, "epoch", "must be an unsigned integer")
    if given != entity.epoch:
        raise Refusal("mismatched_epoch", subject, bad_epoch=str(given), epoch=str(entity.epoch))


def set_times(entity: Entity, body: Mapping[str, Any], subject: str, options: WriteOptions) -> None:
    """Set the times of creation and modification, from the body or to the time of the request."""
    if "createdat" in body:
        entity.createdat = parse_given_time(body["createdat"], "createdat", subject) or options.now
    changed = parse_given_time(body.get("modifiedat"), "modifiedat", subject)
    entity.modifiedat = changed if changed and changed != entity.modifiedat else options.now


def parse_given_time(value: object, name: str, subject: str) -> str:
    """Return a timestamp of a body in the stored form, '' for none.

    Raises:
        Refusal: it is not a timestamp.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or parse_time(value) is None:
        raise invalid_value(subject, name, "must be an RFC 3339 timestamp")
    return to_utc(value)


# Linting of a write: the entities that it touches, and those that they refer to.
#
# A registry may have too many definitions to lint all at every write. So the linted document has the touched entities,
# those that they refer to, and the groups of both without other members.

Strictness = Literal["refuse", "report", "off"]
MAX_REFERRED: Final = 1000
"""Entities that are linted only because others refer to them."""
_ID_NAMES: Final = frozenset(
    ("basemessage", "basemessageuri", "basemessageurl", "dataschemauri", "dataschemaxid", "messagegroups")
)
_FILE: Final = "registry"


class Linter:
    """Lints writes: ``refuse`` refuses a write with errors (except of rules without effect); ``report`` reports all."""

    def __init__(self, strictness: Strictness = "refuse") -> None:
        self._strictness = strictness

    def lint_write(self, work: WriteTransaction, model: Model, path: str) -> tuple[Mapping[str, str], ...]:
        """Return the findings about entities that a flushed write has touched; it may still be rolled back.

        Raises:
            Refusal: ``findings``: some are errors.
        """
        touched = _touched_xids(work)
        if self._strictness == "off" or not touched:
            return ()
        tree = _LintDocument(work, model, touched).tree
        found = build_catalog([Document(_FILE, tree)], Findings(), fetcher=_OfflineFetcher()).findings
        findings = [each for each in found if _is_about(each, touched)]
        errors = rejecting_errors(findings)
        # A missing entity may be written next, so a dangling reference is not an error of this write.
        idle = {each for each in findings if each.severity == "error"}.difference(errors)
        shown = tuple(
            _finding_to_dict(replace(each, severity="warning") if each in idle else each) for each in findings
        )
        if errors and self._strictness == "refuse":
            first = errors[0]
            raise Refusal("findings", path, more={"findings": shown}, error_detail=f"{first.pointer}: {first.message}")
        return shown


class _OfflineFetcher(Fetcher):
    """Fetches nothing: clients must not reach the network or local files through the registry."""

    whole = False

    def __init__(self) -> None:
        super().__init__(network=False)

    def fetch_response(self, uri: str | Path) -> HttpResponse:
        raise DocumentError(f"{uri} is external and is not fetched", file=str(uri), transient=True)

    def list_files(self, folder: str | Path) -> list[Path]:
        return []


class _LintDocument:
    """Builds the document."""

    def __init__(self, work: WriteTransaction, model: Model, touched: set[str]) -> None:
        self.tree: dict[str, Any] = {"specversion": "1.0-rc4"}
        self._work = work
        self._model = model
        self._viewer = EntityView(work.reader, model, ViewOptions("", doc=True, max_answer=sys.maxsize))
        self._left = MAX_REFERRED
        self._versions: dict[str, set[str]] = {}
        for xid in work.touched:
            if level_of(xid) == 3:
                owner, _, name = xid.rsplit("/", 2)
                self._versions.setdefault(owner, set()).add(name)
        self._waiting = sorted(touched)
        self._seen = set(self._waiting)
        while self._waiting:
            self._add_entity(self._waiting.pop())

    def _add_entity(self, xid: str) -> None:
        try:
            place = parse_resource_path(self._model, xid.split("/")[1:], xid)
        except Refusal:
            return
        if place.kind == "group":
            self._group_document(place)
        elif place.kind == "resource":
            group = self._group_document(place.owner)
            shown = find_shown(self._work.reader, place)
            entity = shown and self._viewer.render_resource(place, shown, Scope({"meta": {}}, None, xid))
            if group is not None and shown and entity:
                if "versionsurl" in entity:
                    entity["versions"] = self._versions_to_lint(place, shown)
                # Nested views are encoded JSON.
                tree = msgspec.json.decode(msgspec.json.encode(entity))
                group.setdefault(place.resource.plural, {})[place.rid] = tree
                self._add_references(tree)

    def _versions_to_lint(self, place: ResourcePath, shown: ShownResource) -> dict[str, Any]:
        """Return the versions that linting needs: a resource may have a thousand others."""
        names = self._versions.get(place.xid, set())
        if shown.default is not None:
            names = names | {shown.default.id}
        where = place.collection("versions")
        return self._viewer.render_entities(where, sorted(names), Scope(INLINE_ALL, None, where.xid))

    def _group_document(self, place: ResourcePath) -> dict[str, Any] | None:
        members: dict[str, Any] = self.tree.setdefault(place.group.plural, {})
        if place.gid not in members:
            entity = self._work.reader.group(place.xid)
            shown = entity and self._viewer.render_group(place, entity, Scope(pointer=place.xid))
            if not isinstance(shown, dict):
                return None
            members[place.gid] = shown
            self._add_references(shown)
        group: dict[str, Any] = members[place.gid]
        return group

    def _add_references(self, entity: Mapping[str, Any]) -> None:
        """Add the entities of this registry that an entity refers to."""
        for reference in _iter_references(entity):
            parts = reference.removeprefix("#").split("/")
            xid = "/".join(parts[:5])
            named = {unescape_step(parts[6].partition(":")[0])} if len(parts) > 6 and parts[5] == "versions" else set()
            known = self._versions.setdefault(xid, set())
            is_new = xid not in self._seen or not named <= known
            known |= named
            if is_new and xid.startswith("/") and self._left:
                self._left -= 1
                self._seen.add(xid)
                self._waiting.append(xid)


def _touched_xids(work: WriteTransaction) -> set[str]:
    """Return the touched groups and resources that exist; those of touched versions too."""
    owners = (xid.rsplit("/", 2)[0] if level_of(xid) == 3 else xid for xid in work.touched if xid != "/")
    return {xid for xid in owners if work.now.get(xid) is not None}


def _iter_references(entity: Any) -> Iterator[str]:
    if isinstance(entity, Mapping):
        for name, value in entity.items():
            if name in _ID_NAMES:
                given = value if isinstance(value, list) else [value]
                yield from (each for each in given if isinstance(each, str))
            elif name in ("versions", *(entity if "versionid" not in entity else ())):
                yield from _iter_references(value)


def _is_about(finding: Finding, touched: set[str]) -> bool:
    parts = finding.pointer.split("/")
    return "/".join(parts[:3]) in touched if len(parts) < 5 else "/".join(parts[:5]) in touched


def _finding_to_dict(finding: Finding) -> dict[str, str]:
    place = {"severity": finding.severity, "rule": finding.rule, "place": finding.pointer}
    return {**place, "message": finding.message, "hint": finding.hint}


class ResolvedEntities:
    """Entities parsed by the catalog's readers, with those that they refer to; ``catalog`` has all of them."""

    def __init__(self, connection: Connection, model: Model, xids: Collection[str]) -> None:
        self._xids = set(xids)
        self.declarations: Final = Declarations()
        tree = _LintDocument(WriteTransaction(connection), model, self._xids).tree
        self.catalog: Final = build_catalog([Document(_FILE, tree)], Findings(), self.declarations, _OfflineFetcher())

    def effective_definition(self, xid: str) -> Mapping[str, Any] | None:
        """Return a definition with inherited values and the origin of each; None if *xid* is not a definition."""
        shown = entity_to_json(xid, self.catalog, self.declarations)
        return shown if shown is not None and shown["kind"] == "message" else None

    @property
    def findings(self) -> tuple[Mapping[str, str], ...]:
        """The findings about the entities themselves."""
        return tuple(_finding_to_dict(each) for each in self.catalog.findings if _is_about(each, self._xids))
