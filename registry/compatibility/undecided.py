"""What a checker of compatibility raises when it can tell neither way."""

from __future__ import annotations


class Undecided(Exception):
    """It is neither proven that readers of one schema can read what another wrote, nor that they cannot."""
