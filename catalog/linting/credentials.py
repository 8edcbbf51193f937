"""Credential material in endpoints: found by the name of its member or the form of its value, and never repeated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from catalog.declared import Place
from catalog.definitions.subject import Subject

_MESSAGES: Final = frozenset({"messages", "definitions", "messagegroups", "definitiongroups", "labels", "description"})
"""Members of an endpoint that are no configuration."""
_NAME: Final = re.compile(
    r"(?:password|passwd|passphrase|pwd|secret|apikey|accesskey|accountkey|secretkey|sharedkey|privatekey|"
    r"token|credentials?|connectionstring|signingkey)$"
)
_NOT_LETTERS: Final = re.compile(r"[^a-z0-9]+")
_REFERENCE: Final = re.compile(
    r"\s*(?:\$?\{[^{}]*\}|\$\w+|<[^<>]*>|\*+|(?:file|env|vault|secret|keyvault|arn):.*|@.*)\s*"
)
"""What stands for a credential that is kept elsewhere, or shows that there is one."""
_VALUES: Final = (
    ("user and password", re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#\s:@]*:(?!\$?\{)[^/?#\s@]+@")),
    (
        "a token",
        re.compile(r"[?&;](?:access_token|sig|api_?key|token|password|secret)=(?!\$?\{)[^&\s]+", re.IGNORECASE),
    ),
    (
        "a key",
        re.compile(
            r"\b(?:SharedAccessKey|AccountKey|SharedAccessSignature|password|pwd)\s*=\s*(?![\s$<{])[^;\s]+", re.I
        ),
    ),
    ("a token", re.compile(r"\s*(?:Bearer|Basic)\s+[A-Za-z0-9+/=._~\-]{8,}\s*", re.IGNORECASE)),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
)
MAX_TEXT: Final = 8192
"""Longer texts are not searched beyond this."""


def credentials(subject: Subject) -> None:
    """Look through every endpoint, but for its messages."""
    for endpoint in subject.declarations.endpoints.values():
        for name, value in subject.endpoint_bodies.get(endpoint.xid, {}).items():
            if name.lower() not in _MESSAGES:
                for place, what in _credentials(name, value, endpoint.place / name):
                    hint = (
                        "remove it from the catalog and take it as compromised; settings take it from the environment"
                    )
                    subject.findings.warning(place, "credential-in-catalog", f"this looks like {what}", hint)


def _credentials(name: str, value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Give places and kinds of credentials at and below a member."""
    if isinstance(value, dict):
        described = value.get("name")
        if isinstance(described, str) and isinstance(value.get("value"), str):
            yield from _credentials(described, value["value"], place / "value")
            return
        for key, member in value.items():
            inner = name if key == "value" else key
            yield from _credentials(inner, member, place / key)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _credentials(name, member, place / index)
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        what = _kind(name, str(value))
        if what:
            yield place, what


def _kind(name: str, text: str) -> str:
    """Say what a value looks like, empty when it is no credential."""
    if not text.strip() or _REFERENCE.fullmatch(text[:MAX_TEXT]):
        return ""
    if _NAME.search(_NOT_LETTERS.sub("", name.lower())) and "://" not in text:
        return "a credential"
    return next((what for what, pattern in _VALUES if pattern.search(text[:MAX_TEXT])), "")
