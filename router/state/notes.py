"""Notes beside the pin of a batch, in ``state/batches/<query>``: that it is held and why, and that it is set aside.

``<batch>.held`` is written by the router when a sink keeps it from finishing a batch; it says which sinks have their
share, since message targets and Kafka cannot be asked later. ``<batch>.park`` is an operator's order to set the batch
aside; it may be written beside a running router, or before the next start. Both name the checkpoint generation of their
batch, so that no batch of the same number in another one is taken for it. They are removed with the batch's pin.

``<batch>.order`` (only under ``dead_letters.order: park``) is what the first try found blocked: keys of the batch, each
with the dead letter that its records wait for.

``<batch>.parts`` is how a batch is cut that is written in parts, and what is left of it (:mod:`router.batches.parts`).
The other notes then mean the part that they name, by its path as text; '' is the whole batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from router.errors import StateError
from router.state.durable import RESTORE, damaged, read_object, write_durably

FORMAT: Final = 1
HELD: Final = ".held"
PARK: Final = ".park"
ORDER: Final = ".order"
PARTS: Final = ".parts"
Note = TypeVar("Note")
_REMOVE: Final = "remove it; the batch is then tried again"
_KEEP: Final = f"{RESTORE}; without it the batch is written from its start, and tables may double"


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a batch is not finished: ``since`` when (RFC 3339), the ``sink`` in the way ('' for the circuit breaker).

    ``taken`` are the sinks that have all of their events of the batch, or of that ``part`` of it.
    """

    generation: str
    since: str
    reason: str
    sink: str = ""
    taken: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True, slots=True)
class Park:
    """An order to set a batch aside, given at ``asked`` (RFC 3339).

    ``lacking`` is the router's answer, with the reason for each sink that does not have the batch: None until it has
    looked. A repeat of the batch uses this answer, so that its letters stay the same. For a batch in parts it is about
    one ``part``, and the router looks again for the next.
    """

    generation: str
    asked: str
    lacking: Mapping[str, str] | None = None
    part: str = ""


class BatchNotes:
    """The notes in one ``state/batches`` folder; usable without the state's lock. What is written is durable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hold(self, query: str, batch: int, note: Hold) -> None:
        """Note that a batch is held."""
        self._write(query, batch, HELD, asdict(note))

    def held(self, query: str, batch: int, generation: str) -> Hold | None:
        """Return why a batch of that generation is held; None when it is not noted to be."""
        return self._read(query, batch, HELD, generation, lambda note: Hold(**{**note, "taken": tuple(note["taken"])}))

    def release(self, query: str, batch: int) -> None:
        """Note that a batch is not held any more."""
        (self._folder / query / f"{batch}{HELD}").unlink(missing_ok=True)

    def park(self, query: str, batch: int, note: Park) -> None:
        """Order a batch to be set aside, or note what was found when it was."""
        self._write(query, batch, PARK, asdict(note))

    def parked(self, query: str, batch: int, generation: str) -> Park | None:
        """Return the order to set aside a batch of that generation; None when there is none."""
        return self._read(query, batch, PARK, generation, _park)

    def block(self, query: str, batch: int, generation: str, blocked: Mapping[str, str], part: str = "") -> None:
        """Note which keys of a batch, or of that part of it, are blocked, by which letter."""
        note = {"generation": generation, "blocked": dict(blocked), "part": part}
        self._write(query, batch, ORDER, note)

    def blocked(self, query: str, batch: int, generation: str, part: str = "") -> dict[str, str] | None:
        """Return which keys of a batch of that generation were found blocked; None before that was noted."""

        def of_part(note: dict[str, Any]) -> dict[str, str] | None:
            return dict(note["blocked"]) if note.get("part", "") == part else None

        return self._read(query, batch, ORDER, generation, of_part)

    def note_parts(self, query: str, batch: int, note: Mapping[str, Any]) -> None:
        """Note how a batch is cut, and what is left of it."""
        self._write(query, batch, PARTS, note)

    def parts(self, query: str, batch: int, generation: str) -> dict[str, Any] | None:
        """Return how a batch of that generation is cut; None when it is not."""
        return self._read(query, batch, PARTS, generation, dict, hint=_KEEP)

    def _write(self, query: str, batch: int, suffix: str, note: Mapping[str, Any]) -> None:
        content = json.dumps({"format": FORMAT, **note}).encode()
        write_durably(self._folder / query / f"{batch}{suffix}", content)

    def _read(
        self,
        query: str,
        batch: int,
        suffix: str,
        generation: str,
        form: Callable[[dict[str, Any]], Note],
        *,
        hint: str = _REMOVE,
    ) -> Note | None:
        path = self._folder / query / f"{batch}{suffix}"
        note = read_object(path, hint=hint)
        if note is None:
            return None
        version = note.pop("format", None)
        if version != FORMAT:
            other = "use the router version that wrote it"
            raise StateError(f"{path} has format {version}; this router knows {FORMAT}", hint=other)
        try:
            return form(note) if note["generation"] == generation else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, f"it is no such note ({error!r})", hint=hint) from error


def _park(note: dict[str, Any]) -> Park:
    lacking = note["lacking"]
    return Park(note["generation"], note["asked"], None if lacking is None else dict(lacking))
