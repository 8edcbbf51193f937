"""What is written to a message catalog: one core request for each, within one transaction with what it looks up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from catalog.dialects.messagewriting import format_of
from registry.core.lineage import number_of
from registry.core.requests import ABSENT, Answer, Request, Verb
from registry.core.service import Session
from registry.errors import Refusal, invalid
from registry.faces.messagecatalog.paths import GROUPS, MESSAGES, Target, check_new_id
from registry.faces.messagecatalog.reading import CatalogReader
from registry.faces.messagecatalog.showing import OWN
from registry.faces.messagecatalog.taking import (
    definitions_of,
    group_attributes,
    version_attributes,
    versions_in,
)
from registry.http.face import Call
from registry.http.requests import tags
from registry.store.entities import Group, Version
from registry.store.marks import Marks

_MAX_NUMBER: Final = 10**18


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a write: the core's answer, the place to be shown, and whether it is new."""

    answer: Answer
    target: Target
    created: bool = False


class CatalogWriter:
    """Writes within one transaction, for one call. All methods raise Refusal, by which nothing is written."""

    def __init__(self, session: Session, call: Call, authority: str) -> None:
        self._session = session
        self._reader = session.reader
        self._call = call
        self._catalog = CatalogReader(session, authority)
        self._authority = authority
        self._marks = Marks(session.reader.connection)
        self._highest: dict[str, int] = {}

    def put_groups(self, body: Mapping[str, Any]) -> Done:
        """Take in the groups of a catalog's document."""
        listed = body.get("groups")
        if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
            raise invalid("/", "groups", "needs to be a list of objects")
        given: dict[str, Any] = {}
        for each in listed:
            name = check_new_id(each.get("id"), "/")
            if name in given:
                raise invalid("/", "groups", f"has {name} twice")
            given[name] = self._group_body(Target("group", name), each)
        answer = self._perform("patch", Target("catalog"), given)
        self._check_relations(given)
        return Done(answer, Target("catalog"))

    def put_group(self, target: Target, body: Mapping[str, Any]) -> Done:
        """Create or update a group, and take in the definitions that its document has."""
        check_new_id(target.group, target.path)
        created = self._reader.group(f"/{GROUPS}/{target.group}") is None
        given = self._group_body(target, body)
        answer = self._perform("patch", target, given)
        self._check_relations({target.group: given})
        return Done(answer, target, created)

    def put_definition(self, target: Target, body: Mapping[str, Any]) -> Done:
        """Take in a whole definition with its versions; those that are there already need to be the same."""
        group = self._group(target)
        created = self._catalog.latest(target) is None
        versions = self._versions(target, group, body)
        if versions:
            answer = self._perform("patch", target, {"versions": versions})
        else:
            answer = Answer(None)
        self._check_relations({target.group: {MESSAGES: {target.definition: {"versions": versions}}}})
        return Done(answer, target, created)

    def post_version(self, target: Target, body: Mapping[str, Any]) -> Done:
        """Add a version to a definition, which may be new; its number is the next one."""
        name = check_new_id(body.get("id"), target.path)
        group = self._group(target)
        where = target.below("definition", definition=name)
        latest = self._catalog.latest(where)
        given = self._inherited(version_attributes(body, name, group, where.path), latest, where)
        number = str(self._next(where))
        place = where.below("version", version=number)
        self._hold(where, latest)
        answer = self._perform("replace", place, given, conditional=False)
        self._check_relations({target.group: {MESSAGES: {name: {"versions": {number: given}}}}})
        return Done(answer, place, True)

    def delete(self, target: Target) -> Done:
        """Take away what the path names, with all that is in it."""
        if target.version or target.definition:
            self._catalog.shown(target)
        elif target.group:
            self._group(target)
        return Done(self._perform("delete", target, ABSENT), target)

    def _perform(self, verb: Verb, target: Target, body: Any, *, conditional: bool = True) -> Answer:
        call = self._call
        return self._session.perform(
            Request(
                verb,
                target.segments,
                target.path or "/",
                call.registry,
                body=body,
                who=call.writer.name,
                administrator=call.writer.administrator,
                may_write=call.writer.may_write,
                matches=tags(call.head.header(b"if-match")) if conditional else None,
                max_answer=call.max_answer,
                known=tags(call.head.header(b"if-none-match")) or () if conditional else (),
            )
        )

    def _hold(self, target: Target, latest: Version | None) -> None:
        """Compare the conditions of a new version with the definition as it is."""
        head = self._call.head
        matches, known = (tags(head.header(name)) for name in (b"if-match", b"if-none-match"))
        if matches is None and known is None:
            return
        there: set[str] = set()
        if latest is not None:
            there = {"*", self._catalog.definition(target, self._call.max_answer, whole=False).etag}
        if (matches is not None and not there & set(matches)) or there & set(known or ()):
            raise Refusal("precondition_failed", target.path)

    def _group(self, target: Target) -> Group:
        group = self._reader.group(f"/{GROUPS}/{target.group}")
        if group is None:
            raise Refusal("not_found", f"/{target.group}")
        return group

    def _group_body(self, target: Target, body: Mapping[str, Any]) -> dict[str, Any]:
        known = self._reader.group(f"/{GROUPS}/{target.group}")
        given = group_attributes(body, target.group, known)
        if known is not None:
            given = self._formatted(target, known, given)
        group = known or Group(f"/{GROUPS}", target.group, 0, "", "", {k: v for k, v in given.items() if v is not None})
        messages: dict[str, Any] = {}
        for each in definitions_of(body, target.path):
            name = check_new_id(each.get("id"), target.path)
            where = target.below("definition", definition=name)
            versions = messages.setdefault(name, {"versions": {}})["versions"]
            versions |= self._versions(where, group, each, versions)
        messages = {name: each for name, each in messages.items() if each["versions"]}
        return {**given, **({MESSAGES: messages} if messages else {})}

    def _formatted(self, target: Target, known: Group, given: dict[str, Any]) -> dict[str, Any]:
        """Keep the format, or change that of a group that has no definitions yet."""
        if not {"envelope", "protocol"} & given.keys():
            return given
        now = format_of(known.attributes.get("envelope"), known.attributes.get("protocol"))
        if format_of(given.get("envelope"), given.get("protocol")) == now:
            return {name: value for name, value in given.items() if name not in ("envelope", "protocol")}
        wanted = format_of(given.get("envelope"), given.get("protocol"))
        if not all(wanted == each and not now for each in self._catalog.formats(target)):
            raise Refusal("conflict", target.path, error_detail="there are definitions of another format")
        return {"envelope": None, "protocol": None, **given}

    def _versions(
        self, target: Target, group: Group, body: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the new versions of a document by their numbers.

        A version that exists and is equal is left out; one that exists and differs is a conflict.
        """
        check_new_id(target.definition, target.path)
        versions: dict[str, Any] = dict(before or {})
        new: dict[str, Any] = {}
        latest = self._catalog.latest(target)
        for each in versions_in(body, target.path):
            given = version_attributes(each, target.definition, group, target.path)
            given = {name: value for name, value in given.items() if value is not None}
            if latest is not None or versions:
                first = latest.attributes if latest is not None else next(iter(versions.values()))
                self._same_authority(given, first.get("authority"), target)
            elif given.get("authority") in ("", self._authority):
                del given["authority"]
            number = self._number(each, target, versions)
            known = self._reader.version(f"{target.xid}/versions/{number}")
            there = known.attributes if known is not None else versions.get(number)
            if there is not None and there != given:
                why = f"version {number} exists already, and differs"
                raise Refusal("conflict", target.path, error_detail=why)
            if there is None:
                versions[number] = new[number] = given
        return new

    def _number(self, body: Mapping[str, Any], target: Target, versions: Mapping[str, Any]) -> str:
        given = body.get("version")
        if given is None:
            taken = [number_of(name) or 0 for name in versions]
            return str(max([self._next(target) - 1, *taken]) + 1)
        if isinstance(given, str) and number_of(given) is None:
            return given  # what only the core API makes, and this one shows
        number = number_of(given) if isinstance(given, str) else given
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < _MAX_NUMBER:
            raise invalid(target.path, "version", "needs to be a number above 0")
        return str(number)

    def _next(self, target: Target) -> int:
        """Return the next number of a definition: above all that are there, and above all that were given out.

        Marks outlive what they mark, the definition included.
        """
        if target.xid not in self._highest:
            resource = self._reader.resource(target.xid)
            named = [each.id for each in self._reader.versions(resource.versions)] if resource is not None else []
            named += self._marks.names(target.xid)
            given = resource.counter if resource is not None else 0
            self._highest[target.xid] = max([given, *(number_of(each) or 0 for each in named)])
        return self._highest[target.xid] + 1

    def _inherited(self, given: dict[str, Any], latest: Version | None, target: Target) -> dict[str, Any]:
        """Lay a new version over what the latest says of the definition, and what 0.1 cannot say of a version."""
        if latest is not None:
            self._same_authority(given, latest.attributes.get("authority"), target)
            kept = {name: value for name, value in latest.attributes.items() if name not in OWN}
            given = {**kept, **given}
        elif given.get("authority") in ("", self._authority):
            del given["authority"]
        return {name: value for name, value in given.items() if value is not None}

    def _same_authority(self, given: dict[str, Any], known: object, target: Target) -> None:
        """Make sure that a version is of its definition's authority, which is immutable (section 2.2.4)."""
        asked = given.get("authority") or known or self._authority
        if asked != (known or self._authority):
            why = f"the authority of this definition is {known or self._authority}"
            raise Refusal("conflict", target.path, error_detail=why)
        given.pop("authority", None)
        if known:
            given["authority"] = known

    def _check_relations(self, groups: Mapping[str, Any]) -> None:
        """Make sure that ``relatedto`` names definitions of the same group (2.2.4), now that all are written."""
        for group, body in groups.items():
            for name, definition in body.get(MESSAGES, {}).items():
                for version in definition["versions"].values():
                    other = version.get("relatedto")
                    where = Target("definition", group, name)
                    if (
                        other is not None
                        and self._reader.resource(where.below("definition", definition=other).xid) is None
                    ):
                        raise invalid(where.path, "relatedto", f"names {other}, which is not in this group")
