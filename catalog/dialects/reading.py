"""How single values of a document are read: selectors, texts and what counts as not given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from catalog.declared import Place
from catalog.findings import Findings


def given(text: str | None) -> str | None:
    """Return None for what real catalogs write when they mean nothing: an empty text or ``None``."""
    return None if text is None or text.strip().lower() in ("", "none") else text


def optional_text(value: Any, place: Place, findings: Findings) -> str | None:
    """Return a text; anything else but null is reported and read as not given."""
    if value is None or isinstance(value, str):
        return value
    findings.error(place, "wrong-shape", "a text is expected here; the value is ignored", "write it as a string")
    return None


def spelled(value: Any, canonical: Callable[[str], str], place: Place, findings: Findings) -> str | None:
    """Read an envelope or protocol name in any letter case and version spelling."""
    text = given(optional_text(value, place, findings))
    return None if text is None else canonical(text)


def selector(
    holder: Mapping[str, Any], names: tuple[str, ...], canonical: Callable[[str], str], at: Place, findings: Findings
) -> str | None:
    """Read the first of *names* that is given."""
    for name in names:
        found = spelled(holder.get(name), canonical, at / name, findings)
        if found is not None:
            return found
    return None


def text_members(holder: Any, *names: str) -> Iterator[str]:
    """Give those of *names* that *holder* has as text or number, as text."""
    if not isinstance(holder, dict):
        return
    for name in names:
        value = holder.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            yield str(value)
