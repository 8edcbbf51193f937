"""Real-time mode: its settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pydantic import Field

from router.settings.section import Section
from router.settings.values import Duration

LEAST_CHECKPOINT: Final = timedelta(seconds=5)
"""Spark takes no less."""


class RealTimeSettings(Section):
    """Real-time mode (``trigger: realtime``): what expressions of the JVM settle is sent on record by record."""

    rest: str = Field(
        description=(
            "Topic, on the cluster of the sinks, for records that only the matcher decides. It must exist, be the "
            "router's alone, and keep records until they are routed; it is read whatever `trigger` says."
        ),
        min_length=1,
    )
    checkpoint: Duration = Field(
        timedelta(minutes=1),
        ge=LEAST_CHECKPOINT,
        description="Time between two notes of how far it is: so much is sent again after a crash.",
    )
