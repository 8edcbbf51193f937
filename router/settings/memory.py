"""Settings of what may be taken of the machine's memory."""

from __future__ import annotations

from pydantic import Field

from router.settings.section import Section
from router.settings.values import Size


class MemorySettings(Section):
    """How the machine's memory is divided (see OPERATIONS.md)."""

    heap: Size | None = Field(
        None,
        ge=512 * 2**20,
        description="Heap of Spark's JVM; unset is an eighth of the machine's memory, 1 to 4 GiB if it has that.",
    )
    worker: Size | None = Field(
        None,
        ge=128 * 2**20,
        description="What a Python worker may take besides the catalog; unset is by machine and cores, 0.5 to 1 GiB.",
    )
