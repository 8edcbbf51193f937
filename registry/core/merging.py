"""What a request's body makes of an entity: attributes replaced or patched, its id and epoch compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.errors import Refusal, invalid
from registry.model.attributes import Attribute
from registry.model.moments import moment_of, normalized
from registry.store.entities import Entity

IGNORABLE: Final = (
    "capabilities",
    "defaultversionid",
    "defaultversionsticky",
    "epoch",
    "id",
    "modelsource",
    "readonly",
)
_NOT_KEPT: Final = frozenset(("$schema",))


@dataclass(frozen=True, slots=True)
class Options:
    """How a write is meant.

    ``now`` is the one present moment of the request, ``ignore`` what of its body does not count. ``default`` is the
    value of ``setdefaultversionid``, None without it. ``contenttype`` is that of the body; ``administrator`` says
    whether the writer may do what only administrators may.
    """

    now: str
    ignore: frozenset[str] = frozenset()
    default: str | None = None
    contenttype: str = "application/json"
    administrator: bool = False


def as_object(value: object, subject: str) -> Mapping[str, Any]:
    """Return a body that needs to be an object.

    Raises:
        Refusal: it is none.
    """
    if not isinstance(value, Mapping):
        raise Refusal("bad_request", subject, error_detail=f"{subject} needs to be an object")
    return value


def merged(
    kept: Mapping[str, Any], body: Mapping[str, Any], attributes: Mapping[str, Attribute], *, patch: bool
) -> dict[str, Any]:
    """Return what an entity stores after a body: everything anew, or with *patch* what the body names.

    What only the server writes is left out, and what clients may not write stays as it is.
    """
    locked = {name for name, each in attributes.items() if each.readonly and not each.served}
    stored = dict(kept) if patch else {name: value for name, value in kept.items() if name in locked}
    for name, value in body.items():
        known = attributes.get(name)
        if name in _NOT_KEPT or name in locked or (known is not None and known.served):
            continue
        if value is None:
            stored.pop(name, None)
        else:
            stored[name] = value
    return stored


def compare_id(body: Mapping[str, Any], singular: str, expected: str, subject: str) -> None:
    """Make sure that an id in a body is that of its entity.

    Raises:
        Refusal: ``mismatched_id``.
    """
    given = body.get(f"{singular}id")
    if given is not None and given != expected:
        raise Refusal("mismatched_id", subject, singular=singular, invalid_id=str(given), expected_id=expected)


def compare_epoch(body: Mapping[str, Any], entity: Entity, subject: str, options: Options) -> None:
    """Make sure that an epoch in a body is that of the entity as it is.

    Raises:
        Refusal: ``mismatched_epoch``, or ``invalid_attribute`` for what is no epoch.
    """
    given = body.get("epoch")
    if given is None or "epoch" in options.ignore:
        return
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise invalid(subject, "epoch", "needs to be an unsigned integer")
    if given != entity.epoch:
        raise Refusal("mismatched_epoch", subject, bad_epoch=str(given), epoch=str(entity.epoch))


def set_times(entity: Entity, body: Mapping[str, Any], subject: str, options: Options) -> None:
    """Set when an entity was made and changed, by the body or by the present moment."""
    if "createdat" in body:
        entity.createdat = given_time(body["createdat"], "createdat", subject) or options.now
    changed = given_time(body.get("modifiedat"), "modifiedat", subject)
    entity.modifiedat = changed if changed and changed != entity.modifiedat else options.now


def given_time(value: object, name: str, subject: str) -> str:
    """Return a time that a body gives as it is kept, '' for none.

    Raises:
        Refusal: it is no timestamp.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or moment_of(value) is None:
        raise invalid(subject, name, "needs to be an RFC 3339 timestamp")
    return normalized(value)
