"""What a checker of compatibility raises when it can decide neither way, and what bounds its work."""

from __future__ import annotations

from typing import Final

MAX_STEPS: Final = 1_000_000
"""Steps of comparing two schemas, past which nothing is decided."""


class Undecided(Exception):
    """It is neither proven that readers of one schema can read what another wrote, nor that they cannot."""


class Budget:
    """A number of steps that may be taken; each also counts against *whole*, if that is given.

    Authors of schemas decide how much there is to compare, and all other writers wait until it is done.
    """

    def __init__(self, steps: int = MAX_STEPS, whole: Budget | None = None) -> None:
        self._left = steps
        self._whole = whole

    @property
    def exhausted(self) -> bool:
        """Whether more was asked for than there was."""
        return self._left < 0

    def spend(self, steps: int) -> None:
        """Count steps of work.

        Raises:
            Undecided: there were fewer left.
        """
        self._left -= steps
        if self._whole is not None:
            self._whole.spend(steps)
        if self._left < 0:
            raise Undecided("there is more to compare than is looked into")
