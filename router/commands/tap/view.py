"""A sample in a terminal: what became of it in one line, then the record before, and what leaves of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from router.commands.tap.samples import Sample
from router.terminal import styled


def lines_of(sample: Sample) -> Iterator[Text]:
    """Yield the lines of a sample, an empty one last."""
    told = sample.told
    routed = told["outcome"] == "routed"
    outcome = ("routed", "green") if routed else ("dead letter", "bold red")
    yield styled(f"{told['at'][11:19]} ", outcome, f" {told['message'] or told['reason']}")
    places = ", ".join(_place(name, told["topics"].get(name)) for name in told["sinks"])
    yield styled(f"  {told['protocol']} {told['position']} at {told['endpoint'] or 'no endpoint'} to {places or '-'}")
    if told["detail"]:
        yield styled("  ", (told["detail"], "red"))
    for near in told["nearest"]:
        yield styled(f"  nearest {near['message']}{''.join(map(_mismatch, near['mismatches'][:1]))}")
    yield styled("  ", ("before", "bold"))
    for path, text in told["before"]["native"]:
        yield styled("    ", (path, "cyan"), f" {text}")
    for line in told["before"]["body"].split("\n") if told["before"]["body"] else ():
        yield styled("    ", (line, "dim"))
    if told["after"]:
        yield styled("  ", ("after", "bold"))
        for name, text in told["after"]["attributes"].items():
            yield styled("    ", (name, "cyan"), f" {text}")
        for name, text in told["after"]["context"].items():
            yield styled("    ", (f"context.{name}", "cyan"), f" {text}")
    yield styled("")


def _place(sink: str, topic: str | None) -> str:
    return f"{sink} ({topic})" if topic else sink


def _mismatch(mismatch: dict[str, Any]) -> str:
    found = "nothing" if mismatch["found"] is None else mismatch["found"]
    return f": {mismatch['property']} should be {mismatch['expected']}, found {found}"
