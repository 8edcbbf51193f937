"""Tokens by OAuth 2 client credentials (RFC 6749 section 4.4): a client id and its secret get one, for a time."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

import msgspec

from catalog.documents.certificates import Certificates
from catalog.documents.connecting import Asking, asked, origin_of
from catalog.documents.reach import EVERYWHERE, Reach
from catalog.errors import DocumentError

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES: Final = 64 * 1024
EARLY_SECONDS: Final = 30.0
"""How long before its end a token is not used any more; of a short one the last tenth."""
UNSAID_SECONDS: Final = 300.0
"""How long a token is used of which its server does not say when it ends."""
MAX_SECONDS: Final = 86_400.0
_REASONS: Final = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "invalid_scope", "unauthorized_client"),
        "unsupported_grant_type",
    }
)
_BUSY: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where tokens come from, and who asks. ``certificates`` are those of the connection to *url*."""

    url: str
    client: str
    secret: str = field(repr=False)
    scope: str = ""
    certificates: Certificates = field(default_factory=Certificates)


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and until when it is to be used, by the clock that was given."""

    value: str = field(repr=False)
    until: float


async def token_of(source: TokenSource, clock: Callable[[], float], seconds: float) -> Token:
    """Ask for a token; redirects are not followed, since they would carry the secret elsewhere.

    Raises:
        DocumentError: there is none; ``transient`` when the server cannot be reached or answers 408, 425, 429 or 5xx.
    """
    import httpx

    pair = f"{quote_plus(source.client)}:{quote_plus(source.secret)}".encode()
    headers = {"Accept": "application/json", "Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
    form = {"grant_type": "client_credentials", **({"scope": source.scope} if source.scope else {})}
    context = source.certificates.context(origin_of(source.url))
    asked_at = clock()
    try:
        # The operator named this address, so it may be anywhere.
        async with asked(Asking(source.url, headers, context, seconds, form), Reach([EVERYWHERE])) as response:
            content = await _content(response)
            status, transient = response.status_code, response.is_server_error or response.status_code in _BUSY
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        text = f"{source.url} gives no token: {' '.join(str(error).split())[:300] or type(error).__name__}"
        hint = "check the address and the network, and try again"
        raise DocumentError(text, file=source.url, hint=hint, transient=True) from error
    if status != httpx.codes.OK:
        reason = content.get("error")
        said = f" ({reason})" if isinstance(reason, str) and reason in _REASONS else ""
        hint = "try again later" if transient else "check token_endpoint, username, password and token_scope"
        text = f"{source.url} gives no token: the server answers {status}{said}"
        raise DocumentError(text, file=source.url, hint=hint, transient=transient)
    return _token(source.url, content, asked_at)


async def _content(response: httpx.Response) -> Mapping[str, object]:
    """Return the object that an answer holds; an empty one for anything else."""
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            return {}
    try:
        content = msgspec.json.decode(bytes(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _token(url: str, content: Mapping[str, object], asked_at: float) -> Token:
    value, kind = content.get("access_token"), content.get("token_type", "Bearer")
    if not isinstance(value, str) or not isinstance(kind, str) or kind.lower() != "bearer":
        hint = "check that token_endpoint is one of OAuth 2"
        raise DocumentError(f"{url} answers with no bearer token", file=url, hint=hint)
    said = content.get("expires_in")
    lasts = float(said) if isinstance(said, int | float) and said > 0 else UNSAID_SECONDS
    lasts = min(lasts, MAX_SECONDS)
    return Token(value, asked_at + lasts - min(EARLY_SECONDS, lasts / 10))
