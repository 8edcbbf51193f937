"""Pages of one collection: each names the next by a Link header (``rel=next``), and none may lead us astray."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from catalog.documents.connecting import origin_of
from catalog.documents.fetching import Fetcher
from catalog.documents.transfer import Answer
from catalog.errors import DocumentError

MAX_PAGES: Final = 500
"""Pages of one collection."""
_LINK: Final = re.compile(r'<([^<>]*+)>((?:\s*+;\s*+[^\s;,="]++(?:\s*+=\s*+(?:"[^"]*+"|[^\s;,"]*+))?+)*+)')
_NEXT: Final = re.compile(r';\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next\b)', re.IGNORECASE)


def next_page(link: str) -> str | None:
    """Return the target of ``rel=next`` in a Link header."""
    return next((match.group(1) for match in _LINK.finditer(link) if _NEXT.search(match.group(2))), None)


def following(url: str, first: Answer, fetcher: Fetcher, origins: Collection[str]) -> Iterator[tuple[str, Answer]]:
    """Give the pages after the *first* of the collection at *url*, each with its address.

    Raises:
        DocumentError: a page cannot be fetched, was read before, is one too many, or is not at one of *origins*.
    """
    answer, seen = first, {url, first.url}
    while (written := next_page(answer.link)) is not None:
        page = fetcher.resolve(written, answer.url)
        trouble = _astray(page, seen, origins)
        if trouble:
            raise DocumentError(f"the next page of {url} {trouble}", file=url, hint="mend the registry's paging")
        seen.add(page)
        answer = own(fetcher.answer(page), page, origins)
        yield page, answer


def own(answer: Answer, url: str, origins: Collection[str]) -> Answer:
    """Return an answer of the registry whose origins these are.

    Raises:
        DocumentError: the registry sends us to somebody else for it.
    """
    landed = origin_of(answer.url)
    if landed not in origins:
        hint = "give the address of the registry that has it as a source of its own"
        raise DocumentError(f"{url} is redirected to {landed}, another origin", file=url, hint=hint)
    return answer


def _astray(page: str, seen: Collection[str], origins: Collection[str]) -> str:
    """Say why a page is not read; empty when it is."""
    if origin_of(page) not in origins:
        return "is at another origin"
    if page in seen:
        return "was read before"
    return f"would be more than {MAX_PAGES}" if len(seen) > MAX_PAGES else ""
