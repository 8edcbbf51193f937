"""AWS event-ruler over the benchmark's own definitions and rows: the yardstick beside our matcher.

It is needed for nothing but this, and resolved as all jars are (:mod:`router.spark.connectors`). What it is asked is
easier than what our engine does: a wildcard takes slashes too, a repeated placeholder may differ, no winner is chosen
and nothing is taken out. On the other hand it gets JSON, which it has to parse. The events are written before any clock
runs.
"""

from __future__ import annotations

import hashlib
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
from router.spark.connectors import Coordinate, JarRequest, find_java, resolve_jars

EVENT_RULER: Final = JarRequest(wanted=(Coordinate("software.amazon.event.ruler", "event-ruler", "2.1.0"),))
CHECKSUMS: Final[Mapping[str, str]] = {
    "event-ruler-2.1.0.jar": "0de916a30048f996f129d05eb3dc6871c89a462f1377c876fd2d34f2e04152fe",
    "fastdoubleparser-2.0.1.jar": "4242e2335299026524d331355a6cd75abdc38c8fed4402f25b5c7ce9d7668cc1",
    "jackson-annotations-2.22.jar": "21ddb598807d3a51a876704eb979d9296e1c6a6f47ab1826ff88c6d6a127a2d0",
    "jackson-core-2.22.2.jar": "ff167a6317be15895706c26668f45b898efe40ab8780970658210fe1393d52a6",
    "jackson-databind-2.22.2.jar": "d0da14c12b16b5d54719aa172d83b542ff4abeb8b0fb7db476fde8ceece760ca",
    "jsr305-3.0.2.jar": "766ad2a0783f2687962c8ad74ceecc38a28b9f72a2d085ee438b7813e928d0c7",
}
"""SHA-256 of every jar that the coordinate brings: the figures are of exactly these."""
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


def jars() -> tuple[Path, ...]:
    """Return event-ruler and what it needs, fetched once and checked against the pinned checksums.

    Raises:
        router.spark.connectors.IvyError: they are missing and cannot be fetched.
        EventRulerFailed: a jar is not the one that is pinned.
    """
    found = resolve_jars(EVENT_RULER)
    for jar in found:
        digest = hashlib.sha256(jar.read_bytes()).hexdigest()
        if CHECKSUMS.get(jar.name) != digest:
            raise EventRulerFailed(
                f"{jar} is not the pinned jar (SHA-256 {digest}): remove its folder to fetch it anew"
            )
    return found


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
    command = [str(find_java()), "-Xmx1g", "-XX:+UseSerialGC", "-cp", os.pathsep.join(map(str, jars())), str(PROGRAM)]
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
