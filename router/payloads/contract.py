"""What makes payloads of one schema, and what it may fail with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router.payloads.filling import Filling


class Unfillable(Exception):
    """A schema that no payload is made for: it allows nothing, or asks for what this program cannot make up.

    The message says which, without the schema's own text. It is caught where payloads are made
    (:class:`router.payloads.making.PayloadMaker`) and becomes a warning; another attempt may choose otherwise.
    """


class Filler(Protocol):
    """Makes payloads that one schema should accept. Whoever uses one asks the schema's validator for the verdict."""

    def payload(self, filling: Filling, content_type: str) -> bytes:
        """Make one payload with the choices of *filling*, in the encoding that *content_type* asks for.

        Raises:
            Unfillable: with these choices there is no payload.
        """
        ...
