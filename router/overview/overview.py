"""The requests of the status page, handled in bounded threads so that they cannot overload the stream.

Figures and records have one thread each, so that a slow store of dead letters does not delay the figures. Each thread
has a short queue; if it is full, a request is answered 503.
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
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs

from bindings.http.request import HttpProblem, Reply, RequestHead, body_too_large, unavailable_problem
from bindings.http.server import AcceptedRequest, AnswerCallback
from catalog.schemas.ids.client import RegistryUnavailableError
from router.dead_letters.dead_letter import DeadLetter
from router.errors import RouterError
from router.evaluation.plan import VERSION, Plan
from router.logs import get_logger
from router.overview import picture
from router.overview.records import PASTED, AccessGuard, RecordViews
from router.settings import Settings
from router.state.ledger import LetterLedger
from router.watching.coverage import CoverageView
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ``/status.json``: the figures of the status page, documented in deploy/STATUS.md.

FORMAT: Final = 1
"""Version of the document; it grows when a member is removed or changes its meaning, not for new members."""
KEPT_SECONDS: Final = 0.9
"""Seconds for which a document is cached for all clients."""

LEDGER_SECONDS: Final = 5.0
"""Interval at which the number of replayed dead letters is read."""


class StatusDocument:
    """Makes and caches the status document. Thread-safe."""

    def __init__(self, settings: Settings, metrics: Metrics, status: RouterStatus, replays: Replays | None) -> None:
        self.figures = picture.Figures(metrics.registry)
        self.door = AccessGuard(settings.metrics, records=replays is not None)
        self._status = status
        self._metrics = metrics
        self._replays = replays
        # A process without dead letters has no ledger of them.
        self._state = None if replays is None else Path(settings.state)
        self._settled: tuple[float, int | None] | None = None
        self._started = datetime.now(UTC)
        self._making = threading.Lock()
        self._ways: tuple[Plan, picture.RoutesByEndpoint] | None = None
        self._kept: tuple[float, dict[str, Any]] | None = None

    def get_document(self, plan: Plan | None) -> dict[str, Any]:
        """Return the document with the flow of a plan, not older than a second."""
        with self._making:
            now = time.monotonic()
            if self._kept is None or now - self._kept[0] >= KEPT_SECONDS:
                self._kept = (now, self._make_document(plan))
            return self._kept[1]

    def _make_document(self, plan: Plan | None) -> dict[str, Any]:
        alive, life = self._status.check_health()
        _, ready = self._status.check_readiness()
        reading = self.figures.get_reading()
        occurred = CoverageView(self._metrics.coverage.all_sightings())
        now = datetime.now(UTC)
        return {
            "format": FORMAT,
            "at": now.isoformat(timespec="milliseconds"),
            "router": {
                "version": VERSION,
                "started": self._started.isoformat(timespec="milliseconds"),
                "seconds": round((now - self._started).total_seconds()),
            },
            "access": {"records": self.door.record_readers, "replay": self.door.may_replay},
            "healthy": alive,
            **ready,
            "reasons": [*life["reasons"], *ready["reasons"]],
            "queries": self._queries_to_json(ready["queries"], reading),
            "flow": None if plan is None else self._make_flow(plan, reading, occurred),
            "latency": {"p50_seconds": reading.latency(0.5), "p95_seconds": reading.latency(0.95)},
            "history": self._history_to_json(),
            "coverage": occurred.unseen_to_json(),
            "inbox": {
                **ready["inbox"],
                "records": picture.to_int(reading.get_value(picture.INBOX_RECORDS)),
                "bytes": picture.to_int(reading.get_value(picture.INBOX_BYTES)),
                "oldest_seconds": reading.get_value(picture.INBOX_OLDEST),
            },
            "rest_records": picture.to_int(reading.get_value(picture.REST)),
            "replays": [] if self._replays is None else self._replays.recent(),
            "shadow": self._metrics.shadow.to_json(),
            "epochs": self._status.history_to_json(),
        }

    def _queries_to_json(self, queries: dict[str, Any], reading: picture.FigureReading) -> dict[str, Any]:
        times, holds = self._status.steps.to_json(), reading.list_blocked()
        return {
            name: {**query, "held_by": [sink for held, sink in holds if held == name], "time": times.get(name)}
            for name, query in queries.items()
        }

    def _make_flow(self, plan: Plan, reading: picture.FigureReading, occurred: CoverageView) -> dict[str, Any]:
        if self._ways is None or self._ways[0] is not plan:
            self._ways = (plan, picture.RoutesByEndpoint.from_plan(plan))
        flow = picture.make_picture(plan, self._ways[1], reading, occurred, self._metrics.problems.get)
        self._add_finished_records(flow["endpoints"])
        dead, settled = flow["totals"]["dead_letters"], self._count_settled()
        dead["open"] = None if settled is None else max(0, dead["records"] - settled)
        return flow

    def _add_finished_records(self, endpoints: list[dict[str, Any]]) -> None:
        """Add how much of the lag of each endpoint is already in its sinks.

        Lag falls when a whole batch is at all its sinks, and its sources are asked after that. What was written until
        then is known of a query as a whole: each of its endpoints gets its share.
        """
        by_query: dict[str, int] = {}
        for each in endpoints:
            by_query[each["query"]] = by_query.get(each["query"], 0) + (each["lag"] or 0)
        for each in endpoints:
            query, lag = each["query"], each["lag"]
            asked = None if query is None else self._metrics.backlogs.last_answer_time(query)
            worked = 0 if asked is None else self._status.steps.count_written(query, asked)
            whole = by_query[query]
            each["worked"] = None if lag is None else lag * min(worked, whole) // whole if whole else 0

    def _count_settled(self) -> int | None:
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

    def _history_to_json(self) -> dict[str, Any]:
        points = self.figures.list_points()
        return {
            "every_seconds": picture.POINT_SECONDS,
            **{name: [getattr(point, name) for point in points] for name in picture.Point._fields},
        }


# The last hour as small SVG charts, which pages can show without a script.
#
# Nothing in them comes from catalogs or records. They follow the browser's choice of light or dark.

WIDE, HIGH, TOP, BOTTOM = 320, 96, 16, 14
SMALL: Final = "small"
"""The query parameter for a chart without text, for a table cell."""
_SAFE: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response."""
_CHART_HEADERS: Final = (
    (b"content-type", b"image/svg+xml"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    *_SAFE,
)
_SHOWN: Final = {False: f"0 0 {WIDE} {HIGH}", True: f"0 {TOP - 2} {WIDE} {HIGH - TOP - BOTTOM + 4}"}
"""The part of a chart that is shown: of a small one what is between the lines of text."""


def _format_count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _format_seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"


CHARTS: Final[Mapping[str, tuple[Mapping[str, str], Callable[[float], str]]]] = {
    "records": ({"arriving": "arriving", "finished": "finished"}, _format_count),
    "lag": ({"lag": "lag"}, _format_count),
    "oldest": ({"oldest": "oldest"}, _format_seconds),
    "latency": ({"latency": "95 % within"}, _format_seconds),
}
"""All charts by file name: the lines, each a member of points with its label, and the format of its values."""


def draw_chart(name: str, points: Sequence[picture.Point], *, small: bool = False) -> str:
    """Return a chart as SVG, with the newest point at the right edge and an hour ago at the left."""
    lines, text = CHARTS[name]
    values: list[list[float | None]] = [[getattr(point, member) for point in points] for member in lines]
    most = max((each for line in values for each in line if each is not None), default=0.0)
    told = [
        f"{label} {'unknown' if not line or line[-1] is None else text(line[-1])}"
        for label, line in zip(lines.values(), values, strict=True)
    ]
    floor = HIGH - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{_SHOWN[small]}" role="img">',
        f"<title>{', '.join(told)}; at most {text(most)} in the last hour</title>",
        f"<style>{_read_asset('chart.css')}</style>",
        f'<line class="g" x1="0" y1="{TOP}" x2="{WIDE}" y2="{TOP}"/>',
        f'<line class="g" x1="0" y1="{floor}" x2="{WIDE}" y2="{floor}"/>',
    ]
    for place, line in enumerate(values):
        # A single line is filled as the second of two is.
        filled = place == len(values) - 1
        for run in _iter_known_runs(line):
            spots = [
                (
                    WIDE * (picture.HOUR_POINTS - len(line) + at) / (picture.HOUR_POINTS - 1),
                    floor - (floor - TOP) * (value / most if most else 0.0),
                )
                for at, value in run
            ]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
            if filled:
                parts.append(f'<path class="f" d="M{spots[0][0]:.1f} {floor}L{path}L{spots[-1][0]:.1f} {floor}Z"/>')
            parts.append(f'<path class="{"b" if filled else "a"}" d="M{path}h.1"/>')
    if small:
        return "".join((*parts, "</svg>"))
    minutes = round(picture.HOUR_POINTS * picture.POINT_SECONDS / 60)
    kinds = ("ta", "tb")[-len(told) :]
    named = ", ".join(f'<tspan class="{kind}">{label}</tspan>' for kind, label in zip(kinds, told, strict=True))
    parts += [
        f'<text x="0" y="11">{named}</text>',
        f'<text x="0" y="{HIGH - 2}">{minutes} min ago</text>',
        f'<text x="{WIDE}" y="{HIGH - 2}" text-anchor="end">now</text>',
        f'<text x="{WIDE}" y="11" text-anchor="end">at most {text(most)}</text></svg>',
    ]
    return "".join(parts)


def _iter_known_runs(line: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Yield each run of consecutive known points."""
    for known, run in groupby(enumerate(line), lambda each: each[1] is not None):
        if known:
            yield [(at, value) for at, value in run if value is not None]


# The status page: one HTML document with its style and script in it; browsers run nothing else, by hashes.
#
# Nothing is loaded from elsewhere and no text becomes markup: the content security policy forbids both, so that names
# in catalogs and records can do nothing.

SCRIPTS: Final = ("dom.js", "picture.js", "figures.js", "letters.js", "shadow.js", "main.js")
"""The parts of the script, in order."""
_FOLDER: Final = "assets"


@cache
def make_page() -> Reply:
    """Return the response with the status page."""
    style = _read_asset("page.css")
    script = "'use strict';\n" + "".join(map(_read_asset, SCRIPTS))
    html = _read_asset("page.html").replace("<style></style>", f"<style>{style}</style>")
    html = html.replace("<script></script>", f"<script>{script}</script>")
    policy = (
        f"default-src 'none'; script-src {_csp_hash(script)}; style-src {_csp_hash(style)}; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    )
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode("ascii")),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        *_SAFE,
    )
    return Reply(HTTPStatus.OK, headers, html.encode("utf-8"))


@cache
def _read_asset(name: str) -> str:
    return files("router.overview").joinpath(_FOLDER, name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


WAITING: Final = 8
"""Maximum queued requests per thread."""
_READING: Final = ("GET", "HEAD")
_LETTER: Final = re.compile(rb"/letters/([0-9a-f]{32})(\.json|/replay)")
_CHART: Final = re.compile(rb"/history/([a-z]{1,20})\.svg")
_log = get_logger()
Work = Callable[[bytes], Any]
"""Takes the body of a request and returns the JSON of the response."""


class Replays(Protocol):
    """What replays dead letters, as :class:`router.replay.replay.SingleReplays` does."""

    def begin(self, spark: SparkSession) -> None:
        """Replay in this session from now on."""

    def end(self) -> None:
        """Start no further replays."""

    def verdict(self, plan: Plan, letter: DeadLetter) -> Mapping[str, Any]:
        """Return what a replay would do: ``outcome``, ``message``, ``sinks``, ``reason`` and ``detail``."""

    def replay(self, plan: Plan, letter: DeadLetter) -> dict[str, Any]:
        """Start replaying a dead letter, and return the status of the replay."""

    def recent(self) -> list[dict[str, Any]]:
        """Return the results of the last replays, newest first."""


class _WorkerThread:
    """One daemon thread with a short queue."""

    def __init__(self, name: str) -> None:
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def take(self, work: Callable[[], None]) -> bool:
        """Queue *work*; return False if the queue is full or closed."""
        with suppress(queue.Full):
            if not self._closed:
                self._work.put_nowait(work)
                return True
        return False

    def close(self) -> None:
        """Discard queued work and stop after the current one, without waiting."""
        self._closed = True
        with suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        with suppress(queue.Full):
            self._work.put_nowait(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class Overview:
    """What clients see of a router besides metrics and health; made before it has a catalog."""

    def __init__(self, settings: Settings, metrics: Metrics, status: RouterStatus, replays: Replays | None) -> None:
        """*replays* is None for a process without dead letters, which shows only figures."""
        self._replays = replays
        self._records = None if replays is None else RecordViews(replays.verdict)
        self._page = make_page()
        self._document = StatusDocument(settings, metrics, status, replays)
        self._figures_lane, self._records_lane = _WorkerThread("status-figures"), _WorkerThread("status-records")
        self._plan: Plan | None = None

    def show_plan(self, plan: Plan) -> None:
        """Show this plan from now on."""
        self._plan = plan

    def take_sample(self) -> None:
        """Take samples for rates; call it every second or so."""
        self._document.figures.take_sample()

    def enable_replays(self, spark: SparkSession) -> None:
        """Allow replays in this session."""
        if self._replays is not None:
            self._replays.begin(spark)

    def disable_replays(self) -> None:
        """Stop allowing replays."""
        if self._replays is not None:
            self._replays.end()

    def close(self) -> None:
        """End the threads."""
        self._figures_lane.close()
        self._records_lane.close()

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply | None:
        """Answer or accept a request; return None if the path is not of the status page."""
        try:
            return self._answer(head)
        except HttpProblem as problem:
            return problem.to_reply()

    def _answer(self, head: RequestHead) -> AcceptedRequest | Reply | None:
        chart = _CHART.fullmatch(head.path)
        name = chart[1].decode("ascii") if chart is not None else ""
        if head.path in (b"/", b"/status.json") or name in CHARTS:
            _require_method(head, *_READING)
            if head.path == b"/":
                return self._page
            if name not in CHARTS:
                return _queue(self._figures_lane, lambda body: self._document.get_document(self._plan))
            # A few hundred numbers: less work than to hand it to a thread.
            asked = parse_qs(head.query.decode("latin-1"), keep_blank_values=True, errors="replace")
            points = self._document.figures.list_points(asked.get("endpoint", [""])[-1])
            return Reply(HTTPStatus.OK, _CHART_HEADERS, draw_chart(name, points, small=SMALL in asked).encode())
        if self._records is None or self._replays is None:
            return None
        return self._answer_records(head, self._records, self._replays)

    def _answer_records(self, head: RequestHead, records: RecordViews, replays: Replays) -> AcceptedRequest | None:
        door, plan = self._document.door, self._require_plan
        letter = _LETTER.fullmatch(head.path)
        letter_id = letter[1].decode("ascii") if letter is not None else ""
        if head.path == b"/letters.json" or (letter is not None and letter[2] == b".json"):
            _require_method(head, *_READING)
            door.admit_reading(head)
            if letter is None:
                return _queue(self._records_lane, lambda body: records.list_newest(plan()))
            return _queue(self._records_lane, lambda body: records.describe(plan(), letter_id))
        if head.path != b"/verdict" and letter is None:
            return None
        _require_method(head, "POST")
        if letter is None:
            door.admit_reading(head)
        else:
            door.admit_replay(head)
        door.require_same_origin(head)
        if head.length is not None and head.length > PASTED:
            raise body_too_large(PASTED)
        if letter is None:
            return _queue(self._records_lane, lambda body: records.evaluate_pasted(plan(), body), PASTED)
        return _queue(
            self._records_lane,
            lambda body: replays.replay(active := plan(), records.get_letter(active, letter_id)),
            PASTED,
        )

    def _require_plan(self) -> Plan:
        if self._plan is None:
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "no catalog is active yet")
        return self._plan


def _queue(lane: _WorkerThread, work: Work, max_body: int = 0) -> AcceptedRequest:
    """Accept a request: its work is done in the worker thread, and answered in the server's thread."""

    def handle_body(body: bytes, answer: AnswerCallback) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            reply = _make_reply(work, body)
            try:
                loop.call_soon_threadsafe(answer, reply)
            except RuntimeError:
                _log.debug("the status page client disconnected before the response")

        if not lane.take(run):
            answer(unavailable_problem("too many requests wait; ask again", 1).to_reply())

    return AcceptedRequest(max_body, handle_body, unavailable_problem("this takes too long now; ask again", 5).to_reply)


def _make_reply(work: Work, body: bytes) -> Reply:
    try:
        text = json.dumps(work(body), ensure_ascii=False) + "\n"
        return Reply(
            HTTPStatus.OK, ((b"content-type", b"application/json"), *_SAFE), text.encode("utf-8", "backslashreplace")
        )
    except HttpProblem as problem:
        return problem.to_reply()
    except RegistryUnavailableError as error:
        return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)).to_reply()
    except RouterError as error:
        detail = f"{error.message}; {error.hint}" if error.hint else error.message
        return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail).to_reply()
    except Exception:
        # Whatever it is, the stream goes on; the log has it, and the client does not see what may quote a record.
        _log.exception("a status page request failed")
        return HttpProblem(HTTPStatus.INTERNAL_SERVER_ERROR, "request failed; see the log").to_reply()


def _require_method(head: RequestHead, *methods: str) -> None:
    if head.method not in methods:
        allowed = ", ".join(methods)
        detail = f"this path takes {allowed}, not {head.method}"
        raise HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, detail, (b"allow", allowed.encode("ascii")))
