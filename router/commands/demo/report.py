"""What the demo shows at its end: tables for people, and the sum that proves that nothing was lost."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from rich.table import Table

from router.commands.demo.results import Results
from router.sinks.forms import instant_text
from router.terminal import Terminal, styled

MAPPED: Final = "Market.Tills.Sale"
_DETAIL: Final = 100


def show(console: Terminal, results: Results) -> None:
    """Write the whole report."""
    _sent(console, results)
    _events(console, results)
    _mapped(console, results)
    _letters(console, results)
    _metrics(console, results)
    _sum(console, results)


def _sent(console: Terminal, results: Results) -> None:
    table = Table("sent over HTTP, all answered 202", "requests", "records", title="Records in", title_justify="left")
    for step in results.sent:
        table.add_row(step.title, str(len(step.requests)), str(step.records))
    table.add_section()
    table.add_row("together", str(sum(len(step.requests) for step in results.sent)), str(results.records))
    console.print(table)


def _events(console: Terminal, results: Results) -> None:
    counts = Counter(row["message"].rsplit("/", 1)[-1] for row in results.events)
    title = "CloudEvents in the table data/events, by definition"
    table = Table("definition", "type", "rows", title=title, title_justify="left")
    types = {row["message"].rsplit("/", 1)[-1]: row["type"] for row in results.events}
    for name, number in sorted(counts.items()):
        table.add_row(name, types[name], str(number))
    console.print(table)


def _mapped(console: Terminal, results: Results) -> None:
    row = next((row for row in results.events if row["message"].endswith(MAPPED)), None)
    if row is None:
        return
    native = json.loads(row["native"])
    headers = {each["name"]: each.get("value") for each in native.get("headers", ())}
    body = (row["data"] or b"").decode("utf-8", "replace")
    before = [f"{native.get('method')} {native.get('path')}", f"x-receipt: {headers.get('x-receipt')}", "", body]
    event = {name: row[name] for name in ("id", "source", "type", "subject", "time", "datacontenttype")}
    event |= {"time": instant_text(row["time"]), "data": body}
    after = [f"{name:<16}{value}" for name, value in event.items()]
    table = Table(
        "as it came", "as a CloudEvent", title="One plain HTTP message, before and after", title_justify="left"
    )
    table.add_row("\n".join(before), "\n".join(after))
    console.print(table)


def _letters(console: Terminal, results: Results) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in results.letters:
        nearest = json.loads(row["nearest"] or "[]")
        counts[(row["reason"], _why(row["detail"], nearest), _name(nearest))] += 1
    table = Table("reason", "why", "nearest definition", "letters", title="Dead letters in data/dead_letters")
    table.title_justify = "left"
    for (reason, why, name), number in sorted(counts.items()):
        table.add_row(reason, why, name, str(number))
    console.print(table)


def _why(detail: str | None, nearest: list[dict[str, Any]]) -> str:
    """Say in few words why: the first property that failed for the nearest definition, else the detail."""
    mismatches = nearest[0].get("mismatches") if nearest else None
    if mismatches:
        first = mismatches[0]
        value = str(first.get("found"))
        return f"{first.get('property')}: expected {first.get('expected')}, found {value[:_DETAIL]}"
    return " ".join((detail or "").split())[:_DETAIL]


def _name(nearest: list[dict[str, Any]]) -> str:
    return str(nearest[0].get("message", "")).rsplit("/", 1)[-1] if nearest else ""


def _metrics(console: Terminal, results: Results) -> None:
    console.print(f"Metrics, from {results.metrics_address} while it ran:")
    for name, labels, value in results.metrics:
        label_text = ",".join(f'{label}="{text}"' for label, text in labels.items() if text)
        console.print(f"  {name}{'{' + label_text + '}' if label_text else ''} {value:g}", soft_wrap=True)


def _sum(console: Terminal, results: Results) -> None:
    routed, dead = len(results.events), len(results.letters)
    colour, word = ("green", "adds up") if results.adds_up else ("red", "DOES NOT ADD UP")
    total = f"{results.records} in = {routed} routed + {dead} dead-lettered"
    console.print(styled("\n", (f"{total}: {word}", f"{colour} bold")))
    if results.exit_code != 0:
        console.print(styled((f"The router ended with exit code {results.exit_code}.", "red")))
