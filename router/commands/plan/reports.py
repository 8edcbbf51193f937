"""The report for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from catalog.escaping import one_line
from router.commands.plan.chunks import Place
from router.commands.plan.samples import Sample
from router.commands.plan.tally import Tally
from router.judging.comparing import KINDS
from router.terminal import counted, styled, terminal

GROUPS: Final = 20
"""Pairs of before and after that are shown of each kind; JSON has them all."""
_STYLES: Final = {"dead-letter": "bold red", "definition": "bold red", "matched": "bold green"}


def write_report(tally: Tally, places: Iterable[Place], notes: Iterable[str]) -> None:
    """Write what changes, kind by kind, and what was looked at."""
    console = terminal(soft_wrap=True)
    for place in places:
        summary = "; ".join([counted(place.records, "record"), *place.notes])
        console.print(styled(one_line(f"{place.name}: {summary}")))
    for note in notes:
        console.print(styled(("note", "yellow"), one_line(f": {note}")))
    for kind, words in KINDS.items():
        if not tally.kinds[kind]:
            continue
        console.print(styled((f"{words}: {tally.kinds[kind]}", _STYLES.get(kind, "bold yellow"))))
        groups = [(each, number) for each, number in tally.groups.most_common() if each[0] == kind]
        for (_, before, after), number in groups[:GROUPS]:
            console.print(styled(one_line(f"  {number}  {before if before == after else f'{before} -> {after}'}")))
        if len(groups) > GROUPS:
            console.print(f"  and {len(groups) - GROUPS} more pairs, which --format json has")
        for sample in tally.samples.get(kind, ()):
            for line in _lines(sample):
                console.print(styled(one_line(line)))
    total = counted(tally.outcomes, "outcome")
    console.print(f"{total}: {tally.outcomes - tally.changed} unchanged, {tally.changed} changed")


def _lines(sample: Sample) -> Iterator[str]:
    others = f" (also {', '.join(KINDS[kind] for kind in sample.kinds[1:])})" if sample.kinds[1:] else ""
    yield f"    {sample.position}{others}"
    yield f"      before: {_verdict_line(sample.before)}"
    yield f"      after:  {_verdict_line(sample.after)}"
    if sample.cause:
        yield f"      cause:  {sample.cause}"


def _verdict_line(verdict: Mapping[str, Any]) -> str:
    """Say one side of a sample in a line."""
    if "message" in verdict:
        text = str(verdict["message"])
    else:
        detail = f": {verdict['detail']}" if "detail" in verdict else ""
        text = f"dead letter, {verdict['reason']}{detail}"
    text += f" -> {', '.join(verdict['sinks'])}"
    for name in ("topics", "context", "attributes"):
        if name in verdict:
            values = (f"{key}={'(none)' if value is None else value}" for key, value in verdict[name].items())
            text += f"; {name}: {', '.join(values)}"
    return text
