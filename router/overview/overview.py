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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs

from bindings.http.connection import AcceptedRequest, Answer, too_large
from bindings.http.request import HttpProblem, Reply, RequestHead, unavailable
from catalog.schemas.ids.client import RegistryUnavailableError
from router.errors import RouterError
from router.judging.plan import Plan
from router.letters.letter import Letter
from router.logs import get_logger
from router.overview.charts import CHARTS, SMALL, drawn
from router.overview.document import StatusDocument
from router.overview.picture import Figures
from router.overview.records import PASTED, Doorkeeper, Records, ReplayPreview
from router.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

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

    def replay(self, plan: Plan, letter: Letter) -> dict[str, Any]:
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
                _log.debug("the status page ended before an answer")

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
        _log.exception("a request of the status page failed")
        return HttpProblem(HTTPStatus.INTERNAL_SERVER_ERROR, "this failed; the log says why").reply()


def _encoded(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _nothing() -> list[dict[str, Any]]:
    return []


def _allow(head: RequestHead, *methods: str) -> None:
    if head.method not in methods:
        allowed = ", ".join(methods)
        detail = f"this path takes {allowed}, not {head.method}"
        raise HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, detail, (b"allow", allowed.encode("ascii")))
