"""AWS event-ruler over the benchmark's own definitions and rows: the yardstick beside our matcher.

It is needed for nothing but this, and fetched as all jars are (:mod:`router.spark.connectors`). What it is asked is
easier than what our engine does: a wildcard takes slashes too, a repeated placeholder may differ, no winner is chosen
and nothing is taken out. On the other hand it gets JSON, which it has to parse. The events are written before any clock
runs.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalog.model import Definition, Property
from router.spark.connectors import fetch_jars, find_java, read_pins

EVENT_RULER_PINS: Final = Path(__file__).resolve().with_name("event_ruler_jars.json")
"""event-ruler and what it needs: the figures are of exactly these."""
PROGRAM: Final = Path(__file__).with_name("EventRuler.java")
ASKED: Final = (
    "It parses each and returns every rule that\nmatches. A wildcard stands for a placeholder: it takes slashes too, "
    "repeated ones may differ, none is taken out, no winner is chosen."
)
"""What its figures are of, in words for a report."""
WARM_SECONDS: Final = 4.0
TIMED_SECONDS: Final = 8.0
RUN_LIMIT_SECONDS: Final = 120
_PLACEHOLDER: Final = re.compile(r"\{\w+\}")


class EventRulerFailed(Exception):
    """The other half of the benchmark that could not run; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Rows a second of event-ruler, the median over rounds, and the seconds that adding all rules took."""

    compile_seconds: float
    wall: float
    cpu: float


def field(key: str) -> str:
    """Return the name that a property (``e.NAME`` or ``p.PATH``) has in the events; a flat name, as ruler's are."""
    return key.replace(".", "_")


def rule(definition: Definition) -> dict[str, Any]:
    """Return the pattern that comes nearest to a definition: literals, ``*`` for placeholders, the protocol."""
    pattern = {field(f"e.{each.name}"): [_condition(each)] for each in definition.envelopemetadata}
    pattern |= {field(f"p.{each.name}"): [_condition(each)] for each in definition.protocoloptions}
    if definition.protocol:
        pattern["protocol"] = [definition.protocol]
    return pattern


def _condition(prop: Property) -> str | dict[str, Any]:
    text = str(prop.value)
    if _PLACEHOLDER.fullmatch(text):
        return {"exists": True}
    return {"wildcard": _PLACEHOLDER.sub("*", text)} if _PLACEHOLDER.search(text) else text


def version() -> str:
    """Return the version that is measured."""
    return next(path for path in read_pins(EVENT_RULER_PINS) if "event-ruler" in path).split("/")[-2]


def measure(
    folder: Path,
    definitions: Sequence[Definition],
    events: Iterable[tuple[str, Mapping[str, str]]],
    *,
    rounds: int,
) -> Timing:
    """Time event-ruler on these definitions: *events* are fields, each with the xid of a definition that it matches.

    A JVM of its own warms up for ``WARM_SECONDS``, then times up to so many rounds, none begun after ``TIMED_SECONDS``.

    Raises:
        EventRulerFailed: it does not run, or an event does not match its definition.
    """
    rules, rows = folder / "rules.tsv", folder / "events.tsv"
    rules.write_text("".join(f"{each.xid}\t{json.dumps(rule(each))}\n" for each in definitions), encoding="utf-8")
    count = 0
    with rows.open("w", encoding="utf-8") as file:
        for xid, event in events:
            file.write(f"{xid}\t{json.dumps(event)}\n")
            count += 1
    told = _run([str(rules), str(rows), str(WARM_SECONDS), str(rounds), str(TIMED_SECONDS)])
    found = [line.split() for line in told.splitlines()]
    timed = [
        (float(wall), float(cpu)) for kind, wall, cpu in (line for line in found if len(line) == 3) if kind == "round"
    ]
    compiled = next(float(line[1]) for line in found if line[0] == "compile")
    return Timing(
        compiled,
        count / statistics.median(wall for wall, _ in timed),
        count / statistics.median(cpu for _, cpu in timed),
    )


def _run(arguments: Sequence[str]) -> str:
    """Run the program from its source, which the JDK compiles in memory, and return what it prints."""
    classpath = os.pathsep.join(map(str, fetch_jars(EVENT_RULER_PINS)))
    command = [str(find_java()), "-Xmx1g", "-XX:+UseSerialGC", "-cp", classpath, str(PROGRAM)]
    try:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise EventRulerFailed(f"event-ruler took over {RUN_LIMIT_SECONDS} s: ask for fewer rounds or rows") from error
    if done.returncode != 0:
        remedy = "it needs a JDK, not only a Java runtime, to compile its program; --no-ruler leaves it out"
        raise EventRulerFailed(f"event-ruler ended with {done.returncode} ({remedy}):\n{done.stderr[-2000:]}")
    return done.stdout
