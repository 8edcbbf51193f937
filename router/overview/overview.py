"""The requests of the status page: what each path is for, on threads beside the stream, which requests cannot overload.

Figures have one thread, records another, so that a slow store of dead letters does not hold up the figures. Each has a
short queue; a request that comes when it is full is asked to come again.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs

import msgspec

from bindings.http.connection import AcceptedRequest, Answer, too_large
from bindings.http.request import HttpProblem, Reply, RequestHead, unavailable
from catalog.schemas.ids.client import RegistryUnavailableError
from router.dead_letters.dead_letter import DeadLetter
from router.errors import RouterError
from router.evaluation.plan import VERSION, Plan
from router.logs import get_logger
from router.overview.picture import (
    HOUR_POINTS,
    INBOX_BYTES,
    INBOX_OLDEST,
    INBOX_RECORDS,
    POINT_SECONDS,
    REST,
    FigureReading,
    Figures,
    Occurred,
    Point,
    RoutesByEndpoint,
    picture,
)
from router.overview.records import PASTED, Doorkeeper, Records, ReplayPreview
from router.settings import Settings
from router.state.ledger import LetterLedger
from router.watching.status import CatalogDifference, CatalogEvent, RouterStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.watching.metrics import Metrics

# ``/status.json``: the figures of one router, as the status page shows them. deploy/STATUS.md says what they mean.

# The last catalogs: which took effect, what changed with each, which were refused, and why.

VALUE: Final = 500
"""Characters of a value before or after a change."""


def history(events: Sequence[CatalogEvent], differences: Mapping[str, CatalogDifference]) -> list[dict[str, Any]]:
    """Return what became of catalogs, newest first; the difference is that of the newest change to an epoch."""
    entries: list[dict[str, Any]] = []
    seen: set[str] = set()
    for event in reversed(events):
        difference = None if event.epoch is None or event.epoch in seen else differences.get(event.epoch)
        entries.append(
            {
                "at": event.at,
                "result": "refused" if event.epoch is None else "active",
                "epoch": event.epoch,
                "definitions": None if event.epoch is None else event.definitions,
                "difference": None if difference is None else _difference(difference),
                "findings": [asdict(finding) for finding in event.findings],
                "findings_total": event.total,
                "times": event.times,
            }
        )
        if event.epoch is not None:
            seen.add(event.epoch)
    return entries


def _difference(difference: CatalogDifference) -> dict[str, Any]:
    changes = [each.to_json() for each in difference.changes]
    return {
        "before": difference.before,
        "compatible": not difference.incompatible,
        "incompatible": difference.incompatible,
        "total": difference.total,
        "changes": [change | {side: _short(change[side]) for side in ("before", "after")} for change in changes],
    }


def _short(value: Any) -> Any:
    """Return a value as it may be shown: one that is long is cut, as text or as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "backslashreplace")
    return value if len(text) <= VALUE else text[:VALUE] + "…"


FORMAT: Final = 1
"""Grows when a member changes its meaning or goes; new members may come at any time."""
KEPT_SECONDS: Final = 0.9
"""Seconds for which one answer serves all clients, so that many cost as much as one."""

LEDGER_SECONDS: Final = 5.0
"""Time between two looks at how many dead letters were replayed."""

RecentReplays = Callable[[], list[dict[str, Any]]]
"""Returns how the last replays went."""


class StatusDocument:
    """Makes the document. Any thread may call it; one at a time makes it."""

    def __init__(
        self,
        status: RouterStatus,
        figures: Figures,
        metrics: Metrics,
        door: Doorkeeper,
        replays: RecentReplays,
        state: Path | None,
    ) -> None:
        """*state* is the folder with the ledger of dead letters; None where there is none."""
        self._status = status
        self._coverage = metrics.coverage
        self._sinks = metrics.sinks
        self._backlogs = metrics.backlogs
        self._state = state
        self._settled: tuple[float, int | None] | None = None
        self._figures = figures
        self._door = door
        self._replays = replays
        self._shadow = metrics.shadow.to_json
        self._started = datetime.now(UTC)
        self._making = threading.Lock()
        self._plan: Plan | None = None
        self._ways: tuple[Plan, RoutesByEndpoint] | None = None
        self._kept: tuple[float, dict[str, Any]] | None = None

    def follow(self, plan: Plan) -> None:
        """Show this plan from now on."""
        self._plan = plan

    def current(self) -> dict[str, Any]:
        """Return the document, not older than a second."""
        with self._making:
            now = time.monotonic()
            if self._kept is None or now - self._kept[0] >= KEPT_SECONDS:
                self._kept = (now, self._document())
            return self._kept[1]

    def _document(self) -> dict[str, Any]:
        alive, life = self._status.healthy()
        _, ready = self._status.ready()
        reading = self._figures.reading()
        plan = self._plan
        occurred = Occurred(self._coverage.known())
        now = datetime.now(UTC)
        return {
            "format": FORMAT,
            "at": now.isoformat(timespec="milliseconds"),
            "router": {
                "version": VERSION,
                "started": self._started.isoformat(timespec="milliseconds"),
                "seconds": round((now - self._started).total_seconds()),
            },
            "access": {"records": self._door.records_for, "replay": self._door.may_replay},
            "healthy": alive,
            **ready,
            "reasons": [*life["reasons"], *ready["reasons"]],
            "queries": self._queries(ready["queries"], reading),
            "flow": None if plan is None else self._flow(plan, reading, occurred),
            "latency": {"p50_seconds": _ms(reading.latency(0.5)), "p95_seconds": _ms(reading.latency(0.95))},
            "history": self._history(),
            "coverage": occurred.never(),
            "inbox": {
                **ready["inbox"],
                "records": _whole(reading, INBOX_RECORDS),
                "bytes": _whole(reading, INBOX_BYTES),
                "oldest_seconds": reading.value(INBOX_OLDEST),
            },
            "rest_records": _whole(reading, REST),
            "replays": self._replays(),
            "shadow": self._shadow(),
            "epochs": history(self._status.catalogs, self._status.differences),
        }

    def _queries(self, queries: dict[str, Any], reading: FigureReading) -> dict[str, Any]:
        times, holds = self._status.steps.to_json(), reading.held()
        return {
            name: {**query, "held_by": [sink for held, sink in holds if held == name], "time": times.get(name)}
            for name, query in queries.items()
        }

    def _flow(self, plan: Plan, reading: FigureReading, occurred: Occurred) -> dict[str, Any]:
        flow = picture(plan, self._ways_of(plan), reading, occurred, self._sinks.problem)
        self._work_off(flow["endpoints"])
        dead, settled = flow["totals"]["dead_letters"], self._letters_settled()
        dead["open"] = None if settled is None else max(0, dead["records"] - settled)
        return flow

    def _work_off(self, endpoints: list[dict[str, Any]]) -> None:
        """Add how much of the lag of each endpoint is at its sinks already.

        Lag falls when a whole batch is at all its sinks, and its sources are asked after that. What was written until
        then is known of a query as a whole: each of its endpoints gets its share.
        """
        by_query: dict[str, int] = {}
        for each in endpoints:
            by_query[each["query"]] = by_query.get(each["query"], 0) + (each["lag"] or 0)
        for each in endpoints:
            query, lag = each["query"], each["lag"]
            asked = None if query is None else self._backlogs.answered_at(query)
            worked = 0 if asked is None else self._status.steps.worked(query, asked)
            whole = by_query[query]
            each["worked"] = None if lag is None else lag * min(worked, whole) // whole if whole else 0

    def _letters_settled(self) -> int | None:
        """Return how many dead letters were replayed or removed, not older than five seconds; None if unknown."""
        if self._state is None:
            return None
        now = time.monotonic()
        if self._settled is None or now - self._settled[0] >= LEDGER_SECONDS:
            try:
                with LetterLedger.open(self._state, create=False) as ledger:
                    self._settled = (now, ledger.count_settled())
            except (RouterError, OSError):
                self._settled = (now, None)
        return self._settled[1]

    def _history(self) -> dict[str, Any]:
        points = self._figures.history.points()
        return {
            "every_seconds": POINT_SECONDS,
            **{name: [getattr(point, name) for point in points] for name in Point._fields},
        }

    def _ways_of(self, plan: Plan) -> RoutesByEndpoint:
        if self._ways is None or self._ways[0] is not plan:
            self._ways = (plan, RoutesByEndpoint.of(plan))
        return self._ways[1]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _whole(reading: FigureReading, metric: str) -> int | None:
    value = reading.value(metric)
    return None if value is None else int(value)


# The last hour as small charts: SVG that the router draws, so that a page shows it without a script.
#
# Nothing in them comes from catalogs or records. They follow the browser's choice of light or dark.

WIDE, HIGH, TOP, BOTTOM = 320, 96, 16, 14
SMALL: Final = "small"
"""The parameter with which a chart has no text, for a cell of a table."""
_STYLE: Final = (
    ":root{color-scheme:light dark}text{font:11px system-ui,sans-serif;fill:#56606b}"
    ".a{fill:none;stroke:#a3561c;stroke-width:1.6}.b{fill:none;stroke:#0b5c8a;stroke-width:1.6}"
    ".f{fill:#0b5c8a;opacity:.16}.g{stroke:#d9d8d2;stroke-width:1}"
    ".ta{fill:#a3561c}.tb{fill:#0b5c8a}@media(prefers-color-scheme:dark){text{fill:#a3adb7}.ta{fill:#e5a36b}.tb{fill:#7cc0ea}.a{stroke:#e5a36b}.b{stroke:#7cc0ea}.f{fill:#7cc0ea}"
    ".g{stroke:#343c44}}"
)
_HEADERS: Final = (
    (b"content-type", b"image/svg+xml"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_SHOWN: Final = {False: f"0 0 {WIDE} {HIGH}", True: f"0 {TOP - 2} {WIDE} {HIGH - TOP - BOTTOM + 4}"}
"""The part of a chart that is shown: of a small one what is between the lines of text."""
Value = Callable[[Point], float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its lines by what they are called, the second of them filled, and how a value is written."""

    lines: tuple[tuple[str, Value], ...]
    text: Callable[[float], str]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"


CHARTS: Final = {
    "records": Chart((("arriving", lambda at: at.arriving), ("finished", lambda at: at.finished)), _count),
    "lag": Chart((("lag", lambda at: at.lag),), _count),
    "oldest": Chart((("oldest", lambda at: at.oldest),), _seconds),
    "latency": Chart((("95 % within", lambda at: at.latency),), _seconds),
}
"""The charts there are, by the names of their files."""


def drawn(name: str, points: Sequence[Point], *, small: bool) -> Reply:
    """Return a chart as a picture; a *small* one has no text but its title."""
    return Reply(HTTPStatus.OK, _HEADERS, svg(CHARTS[name], points, small=small).encode())


def svg(chart: Chart, points: Sequence[Point], *, small: bool = False) -> str:
    """Return a chart: the newest point is at its right edge, an hour ago at its left."""
    values = [[value(point) for point in points] for _, value in chart.lines]
    most = max((each for line in values for each in line if each is not None), default=0.0)
    told = [
        f"{label} {'unknown' if not line or line[-1] is None else chart.text(line[-1])}"
        for (label, _), line in zip(chart.lines, values, strict=True)
    ]
    floor = HIGH - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{_SHOWN[small]}" role="img">',
        f"<title>{', '.join(told)}; at most {chart.text(most)} in the last hour</title><style>{_STYLE}</style>",
        f'<line class="g" x1="0" y1="{TOP}" x2="{WIDE}" y2="{TOP}"/>',
        f'<line class="g" x1="0" y1="{floor}" x2="{WIDE}" y2="{floor}"/>',
    ]
    for place, line in enumerate(values):
        # A single line is filled as the second of two is.
        filled = place == len(values) - 1
        for run in _runs(line):
            spots = [_spot(at, value, len(line), most) for at, value in run]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
            if filled:
                parts.append(f'<path class="f" d="M{spots[0][0]:.1f} {floor}L{path}L{spots[-1][0]:.1f} {floor}Z"/>')
            parts.append(f'<path class="{"b" if filled else "a"}" d="M{path}h.1"/>')
    if small:
        return "".join((*parts, "</svg>"))
    minutes = round(HOUR_POINTS * POINT_SECONDS / 60)
    kinds = ("ta", "tb")[-len(told) :]
    named = ", ".join(f'<tspan class="{kind}">{text}</tspan>' for kind, text in zip(kinds, told, strict=True))
    parts += [
        f'<text x="0" y="11">{named}</text>',
        f'<text x="0" y="{HIGH - 2}">{minutes} min ago</text>',
        f'<text x="{WIDE}" y="{HIGH - 2}" text-anchor="end">now</text>',
        f'<text x="{WIDE}" y="11" text-anchor="end">at most {chart.text(most)}</text></svg>',
    ]
    return "".join(parts)


def _runs(line: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Yield the points that are known, as far as they follow each other."""
    run: list[tuple[int, float]] = []
    for at, value in enumerate(line):
        if value is not None:
            run.append((at, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _spot(at: int, value: float, count: int, most: float) -> tuple[float, float]:
    x = WIDE * (HOUR_POINTS - count + at) / (HOUR_POINTS - 1)
    return x, HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * (value / most if most else 0.0)


# The status page: one HTML document with its style and script in it; browsers run nothing else, by hashes.
#
# Nothing is loaded from elsewhere and no text becomes markup: the content security policy forbids both, so that names
# in catalogs and records can do nothing.

SCRIPTS: Final = ("dom.js", "picture.js", "figures.js", "letters.js", "shadow.js", "main.js")
"""The parts of the script, in order."""
_FOLDER: Final = "assets"


@cache
def page() -> Reply:
    """Return the page with the headers that it is served with."""
    style = _text("page.css")
    script = "'use strict';\n" + "".join(map(_text, SCRIPTS))
    html = _text("page.html").replace("<style></style>", f"<style>{style}</style>")
    html = html.replace("<script></script>", f"<script>{script}</script>")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "connect-src 'self'",
            "img-src 'self' data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode("ascii")),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
    )
    return Reply(HTTPStatus.OK, headers, html.encode("utf-8"))


def _text(name: str) -> str:
    return files("router.overview").joinpath(_FOLDER, name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


WAITING: Final = 8
"""Requests of one kind that wait for its thread."""
_SAFE: Final = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_READING: Final = ("GET", "HEAD")
_LETTER: Final = re.compile(rb"/letters/([0-9a-f]{32})(\.json|/replay)")
_CHART: Final = re.compile(rb"/history/([a-z]{1,20})\.svg")
_log = get_logger()
Work = Callable[[bytes], Any]
"""Takes the body of a request and gives what is answered, as JSON."""


class Replays(ReplayPreview, Protocol):
    """What replays letters, as :class:`router.replay.replay.SingleReplays` does."""

    def begin(self, spark: SparkSession) -> None:
        """Replay in this session from now on."""

    def end(self) -> None:
        """Begin no replay any more."""

    def replay(self, plan: Plan, letter: DeadLetter) -> dict[str, Any]:
        """Begin to replay a letter, and return how that stands."""

    def recent(self) -> list[dict[str, Any]]:
        """Return how the last replays went, newest first."""


class _Lane:
    """One thread with a short queue; nobody waits for it at the end of the process, whatever it waits for itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def take(self, work: Callable[[], None]) -> bool:
        """Let *work* be done; False when too much waits already, or nothing more is done."""
        with self._lock:
            if self._closed:
                return False
            try:
                self._work.put_nowait(work)
            except queue.Full:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            return True

    def close(self) -> None:
        """Do nothing more; what is under way ends by itself, and nobody waits for it."""
        with self._lock:
            self._closed = True
            with suppress(queue.Empty):
                while True:
                    self._work.get_nowait()
            self._work.put_nowait(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class Overview:
    """What clients see of a router besides metrics and health; made before it has a catalog."""

    def __init__(self, settings: Settings, metrics: Metrics, status: RouterStatus, replays: Replays | None) -> None:
        """*replays* None is for a process that has no dead letters: it shows figures alone."""
        self._replays = replays
        self._records = None if replays is None else Records(replays)
        self._page = page()
        self._door = Doorkeeper(settings.metrics, records=replays is not None)
        self._figures = Figures(metrics.registry)
        recent = _nothing if replays is None else replays.recent
        # A process without dead letters has no ledger of them.
        state = None if replays is None else Path(settings.state)
        self._document = StatusDocument(status, self._figures, metrics, self._door, recent, state)
        self._figures_lane, self._records_lane = _Lane("status-figures"), _Lane("status-records")
        self._plan: Plan | None = None

    def follow(self, plan: Plan) -> None:
        """Show this plan from now on."""
        self._plan = plan
        self._document.follow(plan)

    def tick(self) -> None:
        """Take samples for rates; call it every second or so."""
        self._figures.tick()

    def begin(self, spark: SparkSession) -> None:
        """Let letters be replayed in this session."""
        if self._replays is not None:
            self._replays.begin(spark)

    def end(self) -> None:
        """Let no letter be replayed any more."""
        if self._replays is not None:
            self._replays.end()

    def close(self) -> None:
        """End the threads."""
        self._figures_lane.close()
        self._records_lane.close()

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply | None:
        """Take a request, or say why not; None for a path that is not of the status page."""
        try:
            return self._admitted(head)
        except HttpProblem as problem:
            return problem.reply()

    def _admitted(self, head: RequestHead) -> AcceptedRequest | Reply | None:
        if head.path == b"/status.json":
            _allow(head, *_READING)
            return _Request(self._figures_lane, lambda body: self._document.current(), 0)
        if head.path == b"/":
            _allow(head, *_READING)
            return self._page
        chart = _CHART.fullmatch(head.path)
        if chart is not None and chart[1].decode("ascii") in CHARTS:
            _allow(head, *_READING)
            # A few hundred numbers: less work than to hand it to a thread.
            asked = parse_qs(head.query.decode("latin-1"), keep_blank_values=True, errors="replace")
            points = self._figures.history.points(asked.get("endpoint", [""])[-1])
            return drawn(chart[1].decode("ascii"), points, small=SMALL in asked)
        if self._records is None or self._replays is None:
            return None
        return self._of_records(head, self._records, self._replays)

    def _of_records(self, head: RequestHead, records: Records, replays: Replays) -> AcceptedRequest | None:
        if head.path == b"/letters.json":
            _allow(head, *_READING)
            self._door.records(head)
            return _Request(self._records_lane, lambda body: records.newest(self._plan_now()), 0)
        if head.path == b"/verdict":
            _allow(head, "POST")
            self._door.records(head)
            self._door.same_origin(head)
            return self._with_body(head, lambda body: records.pasted(self._plan_now(), body))
        letter = _LETTER.fullmatch(head.path)
        if letter is None:
            return None
        letter_id = letter[1].decode("ascii")
        if letter[2] == b".json":
            _allow(head, *_READING)
            self._door.records(head)
            return _Request(self._records_lane, lambda body: records.whole(self._plan_now(), letter_id), 0)
        _allow(head, "POST")
        self._door.replays(head)
        self._door.same_origin(head)
        return self._with_body(head, lambda body: self._replay(letter_id, records, replays))

    def _with_body(self, head: RequestHead, work: Work) -> _Request:
        if head.length is not None and head.length > PASTED:
            raise too_large(PASTED)
        return _Request(self._records_lane, work, PASTED)

    def _replay(self, letter: str, records: Records, replays: Replays) -> dict[str, Any]:
        plan = self._plan_now()
        return replays.replay(plan, records.letter(plan, letter))

    def _plan_now(self) -> Plan:
        if self._plan is None:
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "no catalog is active yet")
        return self._plan


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that was let through, whose body is still to come."""

    lane: _Lane
    work: Work
    max_body: int

    def take(self, body: bytes, answer: Answer) -> None:
        """Do the work on the thread of the lane, and answer on the server's own."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            reply = _reply(self.work, body)
            try:
                loop.call_soon_threadsafe(answer, reply)
            except RuntimeError:
                _log.debug("the status page client disconnected before the response")

        if not self.lane.take(run):
            answer(unavailable("too many requests wait; ask again", 1).reply())

    def late(self) -> Reply:
        """Say that it took too long."""
        return unavailable("this takes too long now; ask again", 5).reply()


def _reply(work: Work, body: bytes) -> Reply:
    try:
        return Reply(HTTPStatus.OK, _SAFE, _encoded(work(body)))
    except HttpProblem as problem:
        return problem.reply()
    except RegistryUnavailableError as error:
        return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)).reply()
    except RouterError as error:
        detail = f"{error.message}; {error.hint}" if error.hint else error.message
        return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail).reply()
    except Exception:
        # Whatever it is, the stream goes on; the log has it, and the client does not see what may quote a record.
        _log.exception("a status page request failed")
        return HttpProblem(HTTPStatus.INTERNAL_SERVER_ERROR, "request failed; see the log").reply()


def _encoded(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _nothing() -> list[dict[str, Any]]:
    return []


def _allow(head: RequestHead, *methods: str) -> None:
    if head.method not in methods:
        allowed = ", ".join(methods)
        detail = f"this path takes {allowed}, not {head.method}"
        raise HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, detail, (b"allow", allowed.encode("ascii")))
