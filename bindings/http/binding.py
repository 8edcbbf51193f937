"""The HTTP binding: native records, and building messages to send."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from bindings.certificates import AddressForm
from bindings.envelope import AttributeRule
from bindings.http.request import iter_query_parts
from bindings.parts import NativeForm, Part
from bindings.sending import Expand, Outbound, SendingBinding
from catalog.model import Definition, Endpoint
from catalog.protocols.properties import CONNECTION_HEADERS, CREDENTIAL_HEADERS

# HTTP messages: native form, and where the CloudEvents HTTP binding puts attributes.

PROTOCOL: Final = "HTTP"
FORM: Final = NativeForm(lists=("headers", "query"), lower=("headers",))
RULE: Final = AttributeRule(prefixes=("headers.ce-",), content_type="headers.content-type", encoded=True)


# Addressing and building HTTP messages; :mod:`bindings.http.publisher` sends them.

_CLIENT: Final = frozenset({"accept", "accept-charset", "accept-encoding", "accept-language", "user-agent"})
"""Headers in which an HTTP client describes itself."""
FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FIELD_VALUE: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[!-~\x80-\xff \t]*[!-~\x80-\xff])?)?")
_QUERY: Final = "query."
_NEVER_SENT: Final = frozenset({"path", "status"})
_DEFAULT_METHOD: Final = "POST"


class HttpSending(SendingBinding):
    """See :class:`~bindings.sending.SendingBinding`; an address is a URL, and a record has its path and query."""

    family = "http"
    address_form = AddressForm("HTTP", {"http": 80}, {"https": 443})
    literal_rule = (re.compile(r"[!-z|~]*"), "ASCII without spaces or braces")
    address_rule = (
        re.compile(r"https?://[^/?#@\s]+(?:[/?#][!-~]*)?", re.IGNORECASE),
        "a URL must begin with http:// or https://",
    )
    max_address_bytes = 8000
    authority_pattern = re.compile(r"https?://[^/?#@\s]+[/?#].*", re.IGNORECASE | re.DOTALL)
    channel_options = frozenset({"path", "method", "status"})
    listed_options = ("headers", "query")
    text_keys = ("headers.", _QUERY)

    def channel_address(
        self, definition: Definition, endpoint: Endpoint | None, *, connected: bool = False
    ) -> dict[str, str]:
        """Return method and path; none for a response (a definition with ``status``)."""
        if any(prop.name == "status" for prop in definition.protocoloptions):
            return {}
        options = endpoint.options if endpoint else {}
        path = options.get("path") or path_of(endpoint.uris if endpoint else ())
        fallback = f"/{endpoint.xid.rsplit('/', 1)[-1]}" if endpoint else "/"
        return {"method": str(options.get("method") or _DEFAULT_METHOD).upper(), "path": str(path or fallback)}

    def build_address(self, parts: Sequence[Part], endpoint: Endpoint, declared: bool, expand: Expand) -> str:
        """Return the URL of the endpoint, with the path and query of the parts."""
        url = urlsplit(next(iter(endpoint.uris), ""))
        path = url.path
        if declared or endpoint.options.get("path") or path.strip("/"):
            path = next((part.text or "" for part in parts if part.key == "path"), path)
        query = "&".join(
            f"{quote(part.key.removeprefix(_QUERY), safe='')}={quote(part.value or b'', safe='')}"
            for part in parts
            if part.key.startswith(_QUERY)
        )
        return urlunsplit((url.scheme, url.netloc, path, "&".join(filter(None, (url.query, query))), ""))

    def carries_bytes(self, key: str) -> bool:
        """Whether a part may be bytes, as headers and the query may."""
        return key.startswith(("headers.", _QUERY))

    def convert_header(self, name: str, part: Part) -> Part | None:
        """Return a header in lower case; None for connection and client headers, credentials, and invalid ones."""
        name = name.lower()
        ours = name in CREDENTIAL_HEADERS or name in _CLIENT or name in CONNECTION_HEADERS
        if ours or not FIELD_NAME.fullmatch(name) or not FIELD_VALUE.fullmatch(part.value or b""):
            return None
        return Part(name, part.value)

    def iter_received_parts(self, message: Outbound, *, binary: bool) -> Iterator[Part]:
        """Yield the path and query of the URL, and all parts that a request can have."""
        url = urlsplit(message.address)
        yield Part("path", (url.path or "/").encode())
        yield from iter_query_parts(url.query.encode())
        yield from (part for part in message.parts if part.key not in _NEVER_SENT)


def path_of(uris: Sequence[str]) -> str:
    """Return the first path in these addresses; empty if there is none."""
    return next((path for path in (urlsplit(uri).path for uri in uris) if path not in ("", "/")), "")
