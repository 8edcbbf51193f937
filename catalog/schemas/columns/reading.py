"""What every format's reader of bodies keeps to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from catalog.schemas.bodies import fault
from catalog.schemas.columns.columns import Take
from catalog.schemas.columns.shapes import Struct
from catalog.schemas.contract import MAX_BODY_BYTES

TOO_LARGE: Final = f"bodies of more than {MAX_BODY_BYTES} bytes are not looked into"


class Unfit(Exception):
    """A body that does not parse; ``place`` is a JSON pointer or a dotted field path."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place

    @property
    def why(self) -> str:
        """Place and message, safe to hand on whatever the body put into them."""
        return str(fault(str(self), self.place))


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A body that does not parse, with its row in the batch and why, or what does not fit a column.

    ``column`` is that column's path below the payload, empty for the payload itself, None for a body; ``values`` are
    how many do not fit it, of which ``row`` is that of the first.
    """

    row: int
    why: str
    column: str | None = None
    values: int = 1


class Reader(Protocol):
    """Reads bodies by one schema, and takes their values apart for :class:`catalog.schemas.columns.columns.Columns`."""

    def read(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None]
    ) -> tuple[list[Any], list[Undecoded]]:
        """Return a value per row, None where the body is absent or reported in the second list.

        A part of a value that is not of its type is an :class:`~catalog.schemas.bodies.UnfitValue`.
        """
        ...

    def take(self, struct: Struct) -> Take:
        """Return what takes the value of that struct apart."""
        ...

    def text(self, value: Any) -> str | None:
        """Return the JSON text of a value at a ``json`` leaf; None for null."""
        ...


def present(
    bodies: Sequence[bytes | None], content_types: Sequence[str | None], undecoded: list[Undecoded]
) -> Iterator[tuple[int, bytes | None, str | None]]:
    """Give row, body and content type of each row; one that is too large is reported, and given as absent."""
    for row, (body, content_type) in enumerate(zip(bodies, content_types, strict=True)):
        if body is not None and len(body) > MAX_BODY_BYTES:
            undecoded.append(Undecoded(row, TOO_LARGE))
            yield row, None, content_type
        else:
            yield row, body, content_type
