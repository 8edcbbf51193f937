"""Instants as text, as the router writes arrivals and the ledger keeps them."""

from __future__ import annotations

from datetime import UTC, datetime


def instant(moment: datetime) -> str:
    """Write an instant as the router writes arrivals: RFC 3339 in UTC, to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_instant(text: str | None) -> datetime | None:
    """Read an instant in UTC; None for a text that is none, or that no ``datetime`` can hold."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def instant_of(seconds: int | None) -> str | None:
    """Write a whole number of seconds since 1970 as an instant; None stays None."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
