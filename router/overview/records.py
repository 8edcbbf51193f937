"""Records on the status page: the newest dead letters, one of them in full with its explanation, and pasted records.

What settings or catalog mark as sensitive is hidden, as in listings; only ``xrouter dead-letters show --reveal`` shows
it. The explanation is the one of ``xrouter match --explain``, under the catalog in force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from bindings.http.request import Access, Guard, HttpProblem, RequestHead
from bindings.protocols import binding_of
from catalog.findings import RecordError
from catalog.record import parse_record
from catalog.schemas.ids.deciding import FrameSettings
from router.dead_letters.dead_letter import (
    BODY_SHOWN,
    DeadLetter,
    cut,
    format_body,
    iter_values,
    shorten_nearest,
)
from router.dead_letters.reading import find_recent, letter_to_json, make_explainer, read_latest, redact_explanation
from router.dead_letters.redaction import Redaction, Redactor, SensitiveMarks, load_catalog_and_marks, make_redactor
from router.evaluation.plan import Plan
from router.matching.explanation import Explainer, RecordExplanation
from router.settings.checks import is_loopback
from router.settings.model import WatchSettings
from router.state.ledger import LedgerEntry, LetterLedger, instant

LISTED: Final = 50
"""Dead letters that are listed."""
PASTED: Final = 256 * 2**10
"""Bytes of a record that is pasted."""
TEXT: Final = 2_000
"""Characters of one text; the sink has all of it."""
MARKS_SECONDS: Final = 60.0
"""Seconds for which the marks of a catalog are taken to be unchanged."""
_EXPLAINERS: Final = 4


class RecordViews:
    """The JSON of records on the status page. Not thread-safe."""

    def __init__(self, verdict: Callable[[Plan, DeadLetter], Mapping[str, Any]]) -> None:
        """*verdict* returns what a replay would do."""
        self._verdict = verdict
        self._explainers: dict[tuple[str, str], Explainer] = {}
        # The redactor for the catalog of an epoch, and when it expires.
        self._known: tuple[str, Redactor, float] | None = None

    def list_newest(self, plan: Plan) -> dict[str, Any]:
        """Return the newest letters, newest first, with the nearest definition and the first mismatch of each."""
        letters = read_latest(plan.settings, LISTED)
        redactor = self._find_redactor(plan)
        with LetterLedger.open(Path(plan.settings.state), create=False) as ledger:
            entries = ledger.entries(letter.id for letter in letters)
        return {"letters": [_letter_to_json(redactor.redact(each), entries.get(each.id)) for each in letters]}

    def get_letter(self, plan: Plan, letter: str) -> DeadLetter:
        """Return one dead letter unchanged.

        Raises:
            HttpProblem: 404 for one that is not among the newest.
        """
        try:
            return find_recent(plan.settings, letter)
        except LookupError as error:
            raise HttpProblem(HTTPStatus.NOT_FOUND, str(error)) from error

    def describe(self, plan: Plan, letter_id: str) -> dict[str, Any]:
        """Return one dead letter in full, with its history, the explanation by candidate, and its replay outcome.

        Raises:
            HttpProblem: 404 for one that is not among the newest.
        """
        letter = self.get_letter(plan, letter_id)
        redaction = self._find_redactor(plan).redact(letter)
        with LetterLedger.open(Path(plan.settings.state), create=False) as ledger:
            entry = ledger.entries([letter.id]).get(letter.id)
            history = ledger.history(letter.id)
            behind = ledger.order.count_behind(letter.id)
        shown = redaction.letter
        return {
            **_letter_to_json(redaction, entry),
            "nearest": [shorten_nearest(each, TEXT) for each in shown.nearest],
            "protocol": shown.protocol,
            "native": [[_cut(name), _cut(text)] for name, text in iter_values(shown.native)],
            "body": "\n".join(format_body(shown.body)) if shown.body is not None else None,
            "body_bytes": None if letter.body is None else len(letter.body),
            "body_cut": letter.body is not None and len(letter.body) > BODY_SHOWN,
            "epoch": shown.epoch,
            "position": shown.position,
            "received": None if shown.received is None else instant(shown.received),
            "behind": behind,
            "history": [
                {
                    "at": None if each.at is None else instant(each.at),
                    "what": each.what,
                    "reason": each.reason,
                    "detail": _cut(redaction.redact_detail(each.reason, each.detail)),
                }
                for each in history
            ],
            "now": _outcome_to_json(self._explain(plan, letter), self._verdict(plan, letter), redaction),
        }

    def evaluate_pasted(self, plan: Plan, body: bytes) -> dict[str, Any]:
        """Return the outcome of a pasted record, a line of ``match``.

        Raises:
            HttpProblem: 400 for what is no record of a protocol that we speak.
        """
        try:
            record = parse_record(body)
            binding = binding_of(record.protocol)
            if binding is None:
                raise RecordError(f"protocol {record.protocol[:40]!r} is none that we speak")
            binding.split(record.native)
            if record.endpoint is None:
                raise RecordError("`endpoint` says by which endpoint it comes, which decides its definitions")
        except RecordError as error:
            raise HttpProblem(HTTPStatus.BAD_REQUEST, f"this is no record: {_cut(str(error))}") from error
        letter = replace(DeadLetter.to_evaluate(record), id="pasted", position="pasted")
        # Nothing is hidden: whoever pastes a record knows it.
        redaction = Redactor(SensitiveMarks()).redact(letter)
        return _outcome_to_json(self._explain(plan, letter), self._verdict(plan, letter), redaction)

    def _explain(self, plan: Plan, letter: DeadLetter) -> RecordExplanation:
        frames = plan.frames.get(letter.endpoint or "", FrameSettings())
        key = (plan.id, f"{frames.framing} {frames.registry.name if frames.registry is not None else ''}")
        explainer = self._explainers.get(key)
        if explainer is None:
            if len(self._explainers) >= _EXPLAINERS:
                self._explainers.clear()
            explainer = self._explainers[key] = make_explainer(plan.catalog, plan.settings, letter.endpoint)
        return explainer.explain(1, msgspec.json.encode(letter.to_record().to_json()))

    def _find_redactor(self, plan: Plan) -> Redactor:
        """Return the redactor for the sensitive values that the catalog at its source marks.

        A mark makes no other epoch, so they are looked for anew from time to time. Where the catalog cannot be read, or
        differs from the one in force, the last known marks of that one count, or everything is hidden.
        """
        epoch, redactor, until = self._known or ("", None, 0.0)
        if epoch != plan.epoch:
            redactor = None
        elif time.monotonic() < until and redactor is not None:
            return redactor
        catalog, marks = load_catalog_and_marks(plan.settings)
        if catalog is not None and catalog.epoch == plan.epoch:
            redactor = make_redactor(marks, reveal=False)
            self._known = (plan.epoch, redactor, time.monotonic() + MARKS_SECONDS)
        return redactor or make_redactor(SensitiveMarks(everything=True), reveal=False)


def _letter_to_json(redaction: Redaction, entry: LedgerEntry | None) -> dict[str, Any]:
    shown = redaction.letter
    nearest = shown.nearest[0] if shown.nearest else None
    mismatches = [] if nearest is None else shorten_nearest(nearest, TEXT)["mismatches"]
    return {
        **letter_to_json(shown, entry),
        "detail": _cut(shown.detail),
        "definition": None if nearest is None else _cut(str(nearest.get("message"))),
        "mismatch": mismatches[0] if mismatches else None,
    }


def _outcome_to_json(story: RecordExplanation, verdict: Mapping[str, Any], redaction: Redaction) -> dict[str, Any]:
    """Return the explanation of a record, and the outcome with the sinks of a replay."""
    shown = {**verdict, "detail": _cut(redaction.redact_detail(verdict["reason"], verdict["detail"]))}
    explained: dict[str, Any] = _shorten_texts(redact_explanation(story, redaction).to_json())
    return {"verdict": shown, "explained": explained}


def _shorten_texts(value: Any) -> Any:
    """Return a JSON value with truncated texts."""
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, Mapping):
        return {_cut(str(name)): _shorten_texts(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shorten_texts(each) for each in value]
    return value


def _cut(text: str) -> str:
    return cut(text, TEXT)


# Who may see records on the status page, and who may replay dead letters from it.
#
# Figures are for all who reach the port, as metrics are. Records are shown without a token only to those on the machine
# itself: where the port is on a loopback address, no token is set, and the request names such an address as its host (a
# page of another site cannot make a browser do that under a name of its own), and no proxy that it came through. A
# proxy that says nothing of itself looks like a browser here: behind one, set a token. With ``metrics.token`` every
# request for records needs it, in the header ``Authorization``, which no browser sends by itself. Replays always need
# it.

RecordsFor = Literal["all", "token", "nobody"]
_TOKEN_HINT: Final = "set metrics.token, and send it as `Authorization: Bearer TOKEN`"
_RELAYED: Final = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")
_OWN: Final = (b"same-origin", b"none")


class AccessGuard:
    """Decides by the head of a request whether it may see records or replay."""

    def __init__(self, settings: WatchSettings, *, records: bool = True) -> None:
        """*records* is whether this process has records to show."""
        token = settings.token
        self._any = records
        self._guard = None if token is None else Guard(Access(bearer={"metrics.token": token.get_secret_value()}))
        self._local = is_loopback(settings.host)

    @property
    def record_readers(self) -> RecordsFor:
        """Who sees records: all who reach the port, those with the token, or nobody."""
        if self._any and self._guard is not None:
            return "token"
        return "all" if self._any and self._local else "nobody"

    @property
    def may_replay(self) -> bool:
        """Whether anybody may replay from here."""
        return self._any and self._guard is not None

    def admit_reading(self, head: RequestHead) -> None:
        """Admit a request for records.

        Raises:
            HttpProblem: 401 without the token, 403 where there is none and the request is not of this machine.
        """
        if self._guard is not None:
            self._guard.authenticate(head._replace(query=b""))
        elif not self._local or not is_loopback(_host_of(f"//{_header_text(head, b'host')}", "hostname")):
            detail = f"records are shown without a token only at a loopback address, asked for as such: {_TOKEN_HINT}"
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)
        elif any(head.header(name) is not None for name in _RELAYED):
            detail = f"the request comes by way of a proxy, so perhaps from another machine: {_TOKEN_HINT}"
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)

    def admit_replay(self, head: RequestHead) -> None:
        """Admit a request for a replay.

        Raises:
            HttpProblem: as :meth:`admit_reading`, and 403 where no token is set.
        """
        if self._guard is None:
            raise HttpProblem(HTTPStatus.FORBIDDEN, f"nothing can be replayed from here: {_TOKEN_HINT}")
        self.admit_reading(head)

    @staticmethod
    def require_same_origin(head: RequestHead) -> None:
        """Admit a request from our own page, or from no page.

        Raises:
            HttpProblem: 403 for a page of another origin, 415 for a body that a form could send.
        """
        site, origin = head.header(b"sec-fetch-site"), head.header(b"origin")
        # A browser knows better than the address that we see: a proxy before us may have another, and TLS.
        own = (
            site in _OWN
            if site is not None
            else origin is None or _host_of(origin.decode("latin-1"), "netloc") == _header_text(head, b"host")
        )
        if not own:
            raise HttpProblem(HTTPStatus.FORBIDDEN, "a page of another origin may not ask this")
        if (head.header(b"content-type") or b"").partition(b";")[0].strip().lower() != b"application/json":
            raise HttpProblem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")


def _host_of(url: str, part: Literal["netloc", "hostname"]) -> str:
    try:
        return getattr(urlsplit(url), part) or ""
    except ValueError:
        return "?"  # no host, ours least of all


def _header_text(head: RequestHead, name: bytes) -> str:
    return (head.header(name) or b"").decode("latin-1")
