"""Settings of dead letters: where they go, how long they stay, what of them is shown, how often they are replayed."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from router.settings.section import Section
from router.settings.values import Duration, Size, Texts


class RetentionSettings(Section):
    """How long dead letters are kept; both limits off keep them for ever.

    Age is that of the letter, from when it was written. Size is what the letters of one sink take on its disk. Only
    letters in tables and folders are removed; those in Kafka go by the topic's own `retention.ms`. The files of a Delta
    table that held what was removed stay for `keep_replaced` of the sink, for those who read them.
    """

    age: Duration = Field(timedelta(0), description="Age at which letters are removed; 0 keeps them for ever.")
    size: Size = Field(
        0, ge=0, description="Bytes of one sink's letters above which the oldest are removed; 0 is no limit."
    )

    @property
    def on(self) -> bool:
        """Whether anything is ever removed."""
        return bool(self.age or self.size)


def _patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what can name nothing."""
    for name in names:
        if not name.strip() or name == "/":
            raise ValueError(
                f"{name!r} names nothing; write a name such as email, x-*, or a JSON pointer such as /card"
            )
    return names


Redacted = Annotated[Texts, AfterValidator(_patterns)]


class DeadLetterSettings(Section):
    """Where records go that no definition takes, and what becomes of them there."""

    sinks: Texts = Field(description="Names of the sinks that each get every dead letter.", min_length=1)
    max_ratio: float | None = Field(
        None, gt=0, le=1, description="Circuit breaker: the share of a batch above which it is held; unset is off."
    )
    max_replays: int = Field(5, ge=1, description="Failed replays after which a dead letter is parked.")
    order: Literal["continue", "park"] = Field(
        "continue",
        description=(
            "What becomes of later records of a key that has a dead letter: `continue` sends them, `park` makes dead "
            "letters of them, which wait until the first is replayed."
        ),
    )
    redact: Redacted = Field(
        (),
        description=(
            "What listings and logs show as `•••`: names of attributes, headers and properties, with `*`, "
            "and JSON pointers into bodies, which begin with `/`."
        ),
    )
    retention: RetentionSettings = Field(RetentionSettings(), description="How long dead letters are kept.")
