"""The documents of versions: from a request's attributes to bytes, and back (core ``spec.md``, ``<RESOURCE>``)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from registry.errors import Refusal, invalid, listed
from registry.model.types import ResourceType


@dataclass(frozen=True, slots=True)
class Given:
    """What a request says of a document: ``body`` has its bytes, None for none here. ``url`` means it is elsewhere."""

    body: bytes | None
    url: bool = False


def given_document(
    kind: ResourceType, body: Mapping[str, Any], attributes: dict[str, Any], subject: str, *, patch: bool, media: str
) -> Given | None:
    """Return the document that a body gives, None when it says nothing of one.

    *attributes* are what the version stores, as far as the body makes them; content type and URL are set in there.
    *media* is the content type of the request.

    Raises:
        Refusal: more than one attribute gives it, or its base64 cannot be read.
    """
    if not kind.hasdocument:
        return None
    tree, encoded, url = kind.document_names
    present = [name for name in (tree, encoded, url) if name in body]
    if not present:
        return None
    if len(present) > 1:
        raise Refusal("one_resource", subject, list=listed((tree, encoded, url)))
    (name,) = present
    value = body[name]
    if name != url:
        attributes.pop(url, None)
    if value is None:
        return Given(b"")
    if name == url:
        return Given(None, url=True)
    said = attributes.get("contenttype") if patch else body.get("contenttype")
    if said is None and (patch or name == tree):
        attributes["contenttype"] = media
    if name == tree:
        return Given(_bytes(kind, value, attributes.get("contenttype")))
    try:
        return Given(base64.b64decode(value, validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise invalid(subject, encoded, "needs to be base64") from None


def shown_document(kind: ResourceType, document: bytes, contenttype: str | None, *, binary: bool) -> tuple[str, Any]:
    """Return the attribute that shows a document, and its value: JSON, text, or base64."""
    tree, encoded, _ = kind.document_names
    form = "binary" if binary or not document else kind.form_of(contenttype)
    try:
        if form == "json":
            return tree, msgspec.json.decode(document)
        if form == "string":
            return tree, document.decode("utf-8")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return encoded, base64.b64encode(document).decode("ascii")


def _bytes(kind: ResourceType, value: Any, contenttype: object) -> bytes:
    if isinstance(value, str) and kind.form_of(str(contenttype)) != "json":
        return value.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(value)
