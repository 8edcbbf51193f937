"""Subscriptions of the CloudEvents Subscriptions API: documents in, checked; documents out, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from registry.delivery.events import CATALOG, Kind, Sources
from registry.delivery.filters import FilterError, filter_of
from registry.delivery.wants import Wants
from registry.errors import Refusal, invalid
from registry.model.moments import moment_of, written

PATH: Final = "/subscriptions"
MAX_BYTES: Final = 64 * 2**10
"""Bytes of one document."""
MAX_TYPES: Final = 64
MAX_TEXT: Final = 2048
_KNOWN: Final = frozenset(
    ("id", "source", "types", "filter", "filters", "config", "sink", "protocol", "protocolsettings")
) | {"sinkCredential", "expiration"}
_SECRET: Final = ("secret", "accessToken")
CREDENTIALS: Final[Mapping[str, tuple[str, ...]]] = {
    "PLAIN": ("identifier", "secret"),
    "ACCESSTOKEN": ("accessToken",),
}
_OF_TOKENS: Final = frozenset(("accessTokenType", "accessTokenExpiresUtc"))


@dataclass(frozen=True, slots=True)
class Subscription:
    """A document that was checked: ``document`` has what is kept of it, ``expires`` is RFC 3339 in UTC or None."""

    document: Mapping[str, Any]
    wants: Wants
    protocol: str
    sink: str
    settings: Mapping[str, Any]
    credential: Mapping[str, str]
    expires: str | None


def subscription_of(given: Any, sources: Sources) -> Subscription:
    """Read a document; what becomes of its sink is for :mod:`registry.delivery.targets`.

    Raises:
        Refusal: it is invalid; the error names the member.
    """
    if not isinstance(given, dict):
        raise Refusal("bad_request", PATH, error_detail="a subscription needs to be an object")
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        raise invalid(PATH, unknown[0][:40], "subscriptions here have no such member")
    document = {name: value for name, value in given.items() if name != "id" and value is not None}
    if document.get("config", {}) != {}:
        raise invalid(PATH, "config", "there is nothing to be configured here")
    settings = document.get("protocolsettings", {})
    if not isinstance(settings, dict):
        raise invalid(PATH, "protocolsettings", "it needs to be an object")
    expires = _expiration(document)
    if expires is not None:
        document["expiration"] = expires
    return Subscription(
        document,
        _wants(document, sources),
        _text(document, "protocol"),
        _text(document, "sink"),
        settings,
        _credential(document),
        expires,
    )


def shown(identifier: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a subscription as it is read: with its id, and without secrets."""
    subscription = {"id": identifier, **document}
    if "sinkCredential" in subscription:
        subscription["sinkCredential"] = {
            name: each for name, each in subscription["sinkCredential"].items() if name not in _SECRET
        }
    return subscription


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise invalid(PATH, name, f"it needs to be a text of 1 to {MAX_TEXT} characters")
    return value


def _wants(document: Mapping[str, Any], sources: Sources) -> Wants:
    types = document.get("types", [])
    if not isinstance(types, list) or len(types) > MAX_TYPES or not all(isinstance(each, str) for each in types):
        raise invalid(PATH, "types", f"it needs to be an array of up to {MAX_TYPES} texts")
    if not all(0 < len(each) <= MAX_TEXT for each in types):
        raise invalid(PATH, "types", f"each needs to be a text of 1 to {MAX_TEXT} characters")
    if "filter" in document and "filters" in document:
        raise invalid(PATH, "filter", "it is the older name of filters; give one of them")
    given = document.get("filters", document.get("filter", []))
    try:
        chosen = filter_of(given)
    except FilterError as error:
        raise invalid(PATH, "filters" if "filters" in document else "filter", str(error)) from None
    return Wants(_kinds(document, types, given, sources), frozenset(types), chosen)


def _kinds(document: Mapping[str, Any], types: list[str], filters: Any, sources: Sources) -> tuple[Kind, ...]:
    """Return which kinds of events are asked for: by source, by types, else by what filters demand.

    Events of the Message Catalog come to those who ask for them.
    """
    of_source = _of_source(document, sources)
    if types:
        catalog = [each for each in types if each.startswith(CATALOG)]
        named: list[Kind] = ["xregistry"] if len(catalog) < len(types) else []
        asked: tuple[Kind, ...] = (*named, *(("messagecatalog",) if catalog else ()))
    else:
        asked = ("messagecatalog",) if _demands_catalog(filters, sources.path) else of_source[:1]
    kinds = tuple(kind for kind in asked if kind in of_source)
    if not kinds:
        raise invalid(PATH, "source", "no event of these types and filters has this source")
    return kinds


def _of_source(document: Mapping[str, Any], sources: Sources) -> tuple[Kind, ...]:
    if "source" not in document:
        return "xregistry", "messagecatalog"
    source = _text(document, "source").rstrip("/")
    pairs: tuple[tuple[Kind, str], ...] = (("xregistry", sources.registry), ("messagecatalog", sources.catalog))
    kinds = tuple(kind for kind, url in pairs if url == source)
    if not kinds:
        known = " or ".join(dict.fromkeys(url for _, url in pairs))
        raise invalid(PATH, "source", f"events here come from {known}")
    return kinds


def _demands_catalog(filters: Any, path: str) -> bool:
    for each in filters if isinstance(filters, list) else [filters]:
        for name in ("exact", "prefix"):
            wanted = each.get(name, {})
            if wanted.get("subject", "").startswith(path) or wanted.get("type", "").startswith(CATALOG):
                return True
    return False


def _credential(document: Mapping[str, Any]) -> dict[str, str]:
    given = document.get("sinkCredential")
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(each, str) and len(each) <= 16_384 for each in given.values()):
        raise invalid(PATH, "sinkCredential", "it needs to be an object of texts")
    needed = CREDENTIALS.get(given.get("credentialType", ""))
    if needed is None:
        raise invalid(PATH, "sinkCredential", f"credentialType needs to be {' or '.join(CREDENTIALS)}")
    lacking = [name for name in needed if not given.get(name)]
    unknown = set(given) - {"credentialType", *needed} - (_OF_TOKENS if needed[0] == "accessToken" else set())
    if lacking or unknown:
        raise invalid(PATH, "sinkCredential", f"this credentialType has {', '.join(needed)}")
    if given.get("accessTokenType", "bearer").lower() != "bearer":
        raise invalid(PATH, "sinkCredential", "accessTokenType needs to be bearer")
    if any(not 0x20 <= ord(each) < 0x7F for name in needed for each in given[name]):
        raise invalid(PATH, "sinkCredential", "it has characters other than those of ASCII")
    return dict(given)


def _expiration(document: Mapping[str, Any]) -> str | None:
    if "expiration" not in document:
        return None
    moment = moment_of(_text(document, "expiration"))
    if moment is None or moment <= datetime.now(UTC):
        raise invalid(PATH, "expiration", "it needs to be a timestamp of RFC 3339 in the future")
    return written(moment)
