"""One POST of JSON to a registry, with the logins and the reach of a :class:`Fetcher`; redirects are not followed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.documents.connecting import Asking, asked, origin_of
from catalog.documents.fetching import MAX_BYTES, Fetcher
from catalog.errors import DocumentError

if TYPE_CHECKING:
    import httpx

SEND_SECONDS: Final = 300.0
"""How long a registry may take for one write."""
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a registry answered to a write: any status, its body, and the notes that it gives in headers."""

    status: int
    data: bytes
    notes: tuple[str, ...] = ()


def post(url: str, body: bytes, by: Fetcher, *, note: str) -> Receipt:
    """Send JSON to *url*; the headers called *note* are what the receipt has as notes.

    A token that is refused is replaced once, so the request is sent twice at most, and the second time only when the
    first did nothing.

    Raises:
        DocumentError: no answer came, or it is too large. Then it is not known what the registry did.
    """
    import httpx  # only who writes to the network pays for it

    address = by.address(url)
    try:
        return asyncio.run(_within(address, body, by, note))
    except TimeoutError as error:
        message = f"{address} took longer than {SEND_SECONDS:g} s"
        raise DocumentError(message, file=address, hint="see what it has now before you try again") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        hint = "check the address and the network, and what the registry has now"
        raise DocumentError(f"{address} cannot be written to: {reason}", file=address, hint=hint) from error


async def _within(url: str, body: bytes, by: Fetcher, note: str) -> Receipt:
    origin, refused = origin_of(url), ""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    async with asyncio.timeout(SEND_SECONDS):
        while True:
            shown = await by.credentials.authorization(origin, SEND_SECONDS, refused)
            sent = {**headers, "Authorization": shown} if shown else headers
            context = by.credentials.logins.context(origin)
            async with asked(Asking(url, sent, context, SEND_SECONDS, body=body), by.reach) as response:
                if response.status_code == _UNAUTHORIZED and shown and not refused:
                    refused = shown
                    if await by.credentials.authorization(origin, SEND_SECONDS, refused) != refused:
                        continue
                return await _receipt(response, url, note)


async def _receipt(response: httpx.Response, url: str, note: str) -> Receipt:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_BYTES:
            message = f"{url} answers with more than {MAX_BYTES} bytes"
            raise DocumentError(message, file=url, hint="see what it has now")
    return Receipt(response.status_code, bytes(data), tuple(response.headers.get_list(note)))
