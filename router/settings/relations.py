"""Settings of pairs of messages, which relations of definitions describe."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from router.settings.section import Section
from router.settings.values import Duration


class RelationSettings(Section):
    """Where pairs of answers and what they answer go, and how long one waits for the other."""

    to: str = Field(description="Sink of the pairs: a Delta table or a Kafka topic of their own.", min_length=1)
    wait: Duration = Field(
        timedelta(hours=1),
        ge=timedelta(seconds=1),
        description="How long a message waits for its answer, or an answer for what it answers, while the router runs; "
        "longer while records wait to be read that arrived in that time.",
    )
    most: int = Field(
        1_000_000, ge=1, description="Most messages that wait; and most pairs that wait for the sink before batches do."
    )
