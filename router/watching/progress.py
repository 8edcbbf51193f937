"""What Spark reports of a query's last batch."""

from __future__ import annotations

from typing import Any


def finding_seconds(progress: Any) -> float:
    """Return how long Spark took over the last batch besides the batch itself: to find, plan and note it."""
    told: dict[str, int] = progress["durationMs"]
    return max(0, told.get("triggerExecution", 0) - told.get("addBatch", 0)) / 1000
