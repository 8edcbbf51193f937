"""One request to a registry whose answer counts whatever its status, with logins; redirects are not followed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.documents.connecting import Asking, asked, origin_of
from catalog.documents.fetching import MAX_BYTES, Fetcher
from catalog.documents.logins import Credentials
from catalog.documents.reach import Reach
from catalog.documents.transfer import Limits
from catalog.errors import DocumentError

if TYPE_CHECKING:
    import httpx

SEND_SECONDS: Final = 300.0
"""How long a registry may take for one write."""
_UNAUTHORIZED: Final = 401


class AnswerTooLarge(DocumentError):
    """An answer of more bytes than it may have; another try would end the same."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a registry answered to a write: any status, its body, and the notes that it gives in headers."""

    status: int
    data: bytes
    notes: tuple[str, ...] = ()


def post(url: str, body: bytes, by: Fetcher, *, note: str) -> Receipt:
    """Send JSON to *url* with the logins and the reach of *by*, as :func:`exchange` does.

    Raises:
        DocumentError: no answer came, or it is too large. Then it is not known what the registry did.
    """
    address = by.address(url)
    try:
        return exchange(address, by.credentials, by.reach, Limits(MAX_BYTES, SEND_SECONDS), body=body, note=note)
    except DocumentError as error:
        hint = "check the address and the network, and what the registry has now" if error.transient else error.hint
        raise DocumentError(f"{error}", file=address, hint=hint) from error


def exchange(
    url: str, credentials: Credentials, reach: Reach, limits: Limits, *, body: bytes | None = None, note: str = ""
) -> Receipt:
    """Return the answer to the POST of JSON, or to a GET where there is no *body*, with the headers called *note*.

    A token that is refused is replaced once, so the request is sent twice at most, and the second time only when the
    first did nothing.

    Raises:
        DocumentError: no answer came (``transient``).
        AnswerTooLarge: more bytes came than *limits* allow.
    """
    import httpx  # only who uses the network pays for it

    try:
        return asyncio.run(_within(url, body, credentials, reach, limits, note))
    except TimeoutError as error:
        message = f"{url} took longer than {limits.seconds:g} s"
        hint = "see what it has now before you try again" if body is not None else "try again"
        raise DocumentError(message, file=url, hint=hint, transient=True) from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        wanted = "asked" if body is None else "written to"
        hint = "check the address and the network"
        raise DocumentError(f"{url} cannot be {wanted}: {reason}", file=url, hint=hint, transient=True) from error


async def _within(
    url: str, body: bytes | None, credentials: Credentials, reach: Reach, limits: Limits, note: str
) -> Receipt:
    origin, refused = origin_of(url), ""
    headers = {"Accept": "application/json", **({} if body is None else {"Content-Type": "application/json"})}
    async with asyncio.timeout(limits.seconds):
        while True:
            shown = await credentials.authorization(origin, limits.seconds, refused)
            sent = {**headers, "Authorization": shown} if shown else headers
            context = credentials.logins.context(origin)
            async with asked(Asking(url, sent, context, limits.seconds, body=body), reach) as response:
                if response.status_code == _UNAUTHORIZED and shown and not refused:
                    refused = shown
                    if await credentials.authorization(origin, limits.seconds, refused) != refused:
                        continue
                return await _receipt(response, url, limits.document_bytes, note)


async def _receipt(response: httpx.Response, url: str, most: int, note: str) -> Receipt:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > most:
            message = f"{url} answers with more than {most} bytes"
            raise AnswerTooLarge(message, file=url, hint="see what it has now")
    notes = tuple(response.headers.get_list(note)) if note else ()
    return Receipt(response.status_code, bytes(data), notes)
