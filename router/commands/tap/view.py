"""A sample in a terminal: what became of it in one line, then the record before, and what leaves of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from router.commands.tap.samples import Sample
from router.terminal import styled


def lines_of(sample: Sample) -> Iterator[Text]:
    """Yield the lines of a sample, an empty one last."""
    document = sample.document
    routed = document["outcome"] == "routed"
    outcome = ("routed", "green") if routed else ("dead letter", "bold red")
    yield styled(f"{document['at'][11:19]} ", outcome, f" {document['message'] or document['reason']}")
    places = ", ".join(_place(name, document["topics"].get(name)) for name in document["sinks"])
    yield styled(
        f"  {document['protocol']} {document['position']} at {document['endpoint'] or 'no endpoint'} to {places or '-'}"
    )
    if document["detail"]:
        yield styled("  ", (document["detail"], "red"))
    for near in document["nearest"]:
        yield styled(f"  nearest {near['message']}{''.join(map(_mismatch, near['mismatches'][:1]))}")
    yield styled("  ", ("before", "bold"))
    for path, text in document["before"]["native"]:
        yield styled("    ", (path, "cyan"), f" {text}")
    for line in document["before"]["body"].split("\n") if document["before"]["body"] else ():
        yield styled("    ", (line, "dim"))
    if document["after"]:
        yield styled("  ", ("after", "bold"))
        for name, text in document["after"]["attributes"].items():
            yield styled("    ", (name, "cyan"), f" {text}")
        for name, text in document["after"]["context"].items():
            yield styled("    ", (f"context.{name}", "cyan"), f" {text}")
    yield styled("")


def _place(sink: str, topic: str | None) -> str:
    return f"{sink} ({topic})" if topic else sink


def _mismatch(mismatch: dict[str, Any]) -> str:
    value = "nothing" if mismatch["found"] is None else mismatch["found"]
    return f": {mismatch['property']} should be {mismatch['expected']}, found {value}"
