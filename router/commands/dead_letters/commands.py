"""``xrouter dead-letters``: the group, ``list`` and ``replay``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import typer
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bindings.private_files import set_umask_for
from router.commands.arguments import ConfigArgument, JsonLines, JsonObject, OutputFormat, Reveal
from router.commands.match import ExplanationWriter
from router.dead_letters import reading
from router.dead_letters.dead_letter import (
    DeadLetter,
    body_to_json,
    cut,
    format_body,
    format_time,
    iter_values,
    sanitize,
)
from router.dead_letters.redaction import Redaction, load_catalog_and_marks, make_redactor
from router.dead_letters.retention import purge
from router.errors import INTERRUPTED, RouterError, StateError
from router.logs import configure_logs
from router.settings import load_settings
from router.settings.checks import iter_retention_warnings
from router.settings.values import parse_duration
from router.state.ledger import HistoryEntry, LedgerEntry, LetterLedger, PendingReplay, Standing, instant, parse_instant
from router.terminal import (
    MAX_LISTED,
    WIDE,
    plural,
    print_json,
    print_json_lines,
    print_row,
    print_table,
    print_text,
    terminal,
    to_text,
)

if TYPE_CHECKING:
    from router.replay.batches import ReplayOutcome, Summary
    from router.replay.replay import ReplayOptions

# ``xrouter dead-letters list``: counts of dead letters, and the newest ones.

_COLUMNS: Final = ("letter", "written", "reason", "endpoint", "attempts", "standing", "detail")
_DETAIL: Final = 100
_ID: Final = 12
"""Maximum characters of a detail and of an id on a terminal; output for other programs has all of them."""


def list_letters(
    config: ConfigArgument,
    reason: reading.Reasons = None,
    endpoint: reading.Endpoints = None,
    message: reading.Messages = None,
    since: reading.Since = None,
    until: reading.Until = None,
    standing: Annotated[
        Literal["open", "replayed", "parked", "all"],
        typer.Option("--standing", help="Status: open, replayed, parked, or all."),
    ] = "open",
    limit: Annotated[int, typer.Option(min=0, help="How many of the newest to list.")] = 20,
    reveal: Reveal = False,
    format: JsonLines = "text",
) -> None:
    """List dead letters: counts by reason, endpoint and nearest definition, then the newest.

    Example: xrouter dead-letters list router.yaml --reason no-match --since 2h
    """
    settings = load_settings(config)
    configure_logs(settings.log)
    standings: Sequence[Standing] = () if standing == "all" else (standing,)
    selection = reading.build_filter(
        reasons=reason, endpoints=endpoint, messages=message, since=since, until=until, standings=standings
    )
    _, marks = load_catalog_and_marks(settings)
    redactor = make_redactor(marks, reveal=reveal)
    letters = reading.read_dead_letters(settings, bodies=redactor.redacts_bodies)
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        page = reading.list_dead_letters(letters, ledger, selection, redactor, get_args(reading.GroupBy), limit)
    if format == "json":
        print_json_lines(_iter_json_objects(page))
    elif page.total:
        _print_page(page)
    elif page.seen:
        there = f"there {'is' if page.seen == 1 else 'are'} {plural(page.seen, 'dead letter')}"
        print_text(f"nothing listed: {there}, none match (`--standing all` includes all)", err=True)
    else:
        print_text("there are no dead letters; `xrouter top` shows records not yet processed", err=True)


def _iter_json_objects(page: reading.DeadLetterCounts) -> Iterator[dict[str, object]]:
    for by, counts in page.counts.items():
        for value, number in counts.most_common():
            yield {"by": by, "value": value, "letters": number}
    yield from page.newest


def _print_page(page: reading.DeadLetterCounts) -> None:
    """Print counts, then dead letters; on a terminal each has one line, and its detail below."""
    console = terminal()
    for by, counts in page.counts.items():
        shown = counts.most_common(MAX_LISTED if console.is_terminal else None)
        rows = [(sanitize(value), str(number)) for value, number in shown]
        if len(counts) > len(shown):
            rows.append(("and others", str(page.total - sum(number for _, number in shown))))
        if console.is_terminal:
            console.print(f"dead letters by {by}: {page.total:,d}")
        print_table((by, "letters"), rows)
    if not console.is_terminal:
        if page.newest:
            print_table(_COLUMNS, map(_make_row, page.newest))
        return
    console.print(f"the newest {len(page.newest)} of {page.total}; `xrouter dead-letters show CONFIG ID` shows one")
    widest = max((len(each["reason"]) for each in page.newest), default=0)
    for row in map(_make_row, page.newest):
        letter, written, reason, endpoint, attempts, standing, detail = row
        first = to_text((letter[:_ID], "bold"), f"  {written}  {reason:{widest}}  {endpoint}")
        console.print(first, no_wrap=True, overflow="ellipsis")
        summary = f"{standing}, {plural(int(attempts), 'attempt')}: {cut(detail, _DETAIL)}"
        console.print(Padding(to_text(summary), (0, 0, 0, 2)))


def _make_row(listed: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        listed["letter"],
        format_time(parse_instant(listed["failed"]), short=True),
        listed["reason"],
        sanitize(listed["endpoint"] or "-"),
        str(listed["attempts"]),
        listed["standing"],
        sanitize(listed["detail"], 0),
    )


# ``xrouter dead-letters replay``: route dead letters again, or preview their outcomes.


def replay(
    config: ConfigArgument,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of dead letters; all by default.")] = None,
    reason: reading.Reasons = None,
    endpoint: reading.Endpoints = None,
    message: reading.Messages = None,
    since: reading.Since = None,
    until: reading.Until = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the outcomes, and change nothing.")] = False,
    rate: Annotated[str | None, typer.Option(metavar="N/s", help="Maximum dead letters per second.")] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Dead letters per batch; at most 64 MiB.")
    ] = 10_000,
    parked: Annotated[bool, typer.Option("--parked", help="Include parked ones.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum number of dead letters.")] = None,
    format: Annotated[OutputFormat, typer.Option(help="Output format.")] = "text",
) -> None:
    """Route dead letters with the current catalog and settings; those that still match nothing stay dead letters.

    Can run while the router is running. Each dead letter is replayed once. The next replay finishes an interrupted one.

    Example: xrouter dead-letters replay router.yaml --reason no-match --dry-run
    """
    from router.replay.replay import ReplayOptions  # brings Spark along, which no other command needs

    selection = reading.build_filter(
        ids=ids, reasons=reason, endpoints=endpoint, messages=message, since=since, until=until
    )
    options = ReplayOptions(parked, limit, _parse_rate(rate), batch)
    if dry_run:
        from router.replay.replay import dry_run as look

        _print_preview(look(load_settings(config), selection, options), format)
    else:
        _run_replay(config, selection, options, format)


def _run_replay(
    config: Path, selection: reading.DeadLetterFilter, options: ReplayOptions, format: OutputFormat
) -> None:
    """Replay dead letters, and print progress and result.

    Raises:
        RouterError: the replay fails, or no sink has a dead letter with a given id.
    """
    from router.replay.replay import count_matching as matching
    from router.replay.replay import replay as run

    console = terminal(err=True, soft_wrap=True)
    total = matching(load_settings(config), selection, options) if console.is_terminal else None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=total is None) as bar:
        summary = run(config, selection, options, _Reporter(bar, total))
    _print_result(summary, format)
    if summary.interrupted:
        raise typer.Exit(INTERRUPTED)
    if summary.unknown:
        hint = "`xrouter dead-letters list` shows the ids"
        raise RouterError(f"no dead letter has the id {', '.join(summary.unknown[:5])}", hint=hint)


def _parse_rate(text: str | None) -> float | None:
    """Parse a rate such as ``100/s``, ``100`` or ``0.5/s``.

    Raises:
        RouterError: the rate is not valid.
    """
    if text is None:
        return None
    try:
        rate = float(text.strip().removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise RouterError(f"--rate {text!r} is not a rate", hint="write --rate 100/s for 100 dead letters per second")
    return rate


class _Reporter:
    """Reports the progress of a replay: in a *bar* on a terminal, else in lines on standard error."""

    def __init__(self, bar: Progress, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("replaying", total=total)

    def resumed(self, pending: PendingReplay) -> None:
        self._bar.console.print(f"finishing {plural(len(pending.letters), 'letter')} of an earlier replay first")

    def progress(self, summary: Summary) -> None:
        self._bar.update(self._task, completed=summary.settled, description="replaying")
        if self._bar.disable:
            routed, dead = summary.routed.total(), summary.dead.total()
            self._bar.console.print(f"{plural(summary.settled, 'letter')}: {routed} routed, {dead} still dead")

    def held(self, reason: str, seconds: float) -> None:
        text = f": {reason}; retry in {seconds:g} s (interrupting loses nothing)"
        self._bar.console.print(to_text(("blocked", "yellow"), text))
        self._bar.update(self._task, description="blocked")


def _print_preview(verdicts: Iterable[ReplayOutcome], format: OutputFormat) -> None:
    """Print how many dead letters a replay would send to which sinks."""
    counts = Counter((each.message, each.reason, each.sinks) for each in verdicts)
    forms: list[dict[str, Any]] = [
        {
            "outcome": "dead-letter" if reason else "routed",
            "message": message,
            "reason": reason,
            "sinks": sinks,
            "letters": count,
        }
        for (message, reason, sinks), count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    ]
    if format == "json":
        print_json_lines([forms])
        return
    table = Table("outcome", "definition or reason", "sinks", "letters", title="What a replay would do now")
    for each in forms:
        lacking = "-" if each["reason"] else "none: its route no longer has the sinks that lack it"
        named = each["message"] or each["reason"] or ""
        table.add_row(each["outcome"], named, ", ".join(each["sinks"]) or lacking, str(each["letters"]))
    terminal(width=WIDE).print(table if forms else "no letter to replay")


def _print_result(summary: Summary, format: OutputFormat) -> None:
    """Print the result of a replay."""
    form: dict[str, Any] = {
        "routed": summary.routed.total(),
        "definitions": dict(summary.routed.most_common()),
        "dead": dict(summary.dead.most_common()),
        "parked": summary.parked,
        "gone": summary.gone,
        "skipped": dict(summary.skipped),
        "unknown": list(summary.unknown),
        "interrupted": bool(summary.interrupted),
    }
    if format == "json":
        print_json_lines([form])
        return
    table = Table("letters", "count", title="Replay interrupted" if summary.interrupted else "Replay")
    table.add_row("routed", str(form["routed"]))
    rows = {f"still dead, {reason}": count for reason, count in form["dead"].items()}
    rows |= {"parked now": form["parked"], "removed meanwhile": form["gone"]}
    rows |= {f"skipped, {standing}": count for standing, count in form["skipped"].items()}
    for name, count in rows.items():
        if count:
            table.add_row(name, str(count))
    console = terminal(width=WIDE)
    console.print(table)
    if summary.interrupted:
        console.print("The current batch is kept; the next replay starts with it.")


# ``xrouter dead-letters show``, ``purge`` and ``release``.

# ``xrouter dead-letters show``: one dead letter in full, and its outcome with the current catalog.

_FACTS: Final = ("reason", "detail", "endpoint", "protocol", "position", "received", "failed", "epoch")
_STATUS: Final = ("attempts", "standing", "behind", "sink")


def show(
    config: ConfigArgument,
    letter: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter, or its beginning.")],
    reveal: Reveal = False,
    format: JsonObject = "text",
) -> None:
    """Show one dead letter in full, its reason, and its outcome with the current catalog.

    Example: xrouter dead-letters show router.yaml 8f03d1d0e38d
    """
    settings = load_settings(config)
    configure_logs(settings.log)
    dead_letter = reading.find_dead_letter(reading.read_dead_letters(settings), letter)
    catalog, marks = load_catalog_and_marks(settings)
    redaction = make_redactor(marks, reveal=reveal).redact(dead_letter)
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        entry = ledger.entries([dead_letter.id]).get(dead_letter.id)
        history = [_history_entry_to_json(each, redaction) for each in ledger.history(dead_letter.id)]
        behind = ledger.order.count_behind(dead_letter.id)
    now = (
        None
        if catalog is None
        else reading.redact_explanation(reading.explain_with_catalog(dead_letter, catalog, settings), redaction)
    )
    form = {
        **_letter_to_json(redaction.letter, entry),
        "behind": behind,
        "history": history,
        "now": None if now is None else [dict(event.outcome) for event in now.events],
    }
    if format == "json":
        print_json(form)
        return
    _print_letter(form, redaction.letter)
    if now is None:
        print_text("now: unknown, since the catalog cannot be read")
        return
    print_text("with the current catalog:")
    ExplanationWriter().write(now)


def _letter_to_json(letter: DeadLetter, entry: LedgerEntry | None) -> dict[str, Any]:
    return {
        **reading.letter_to_json(letter, entry),
        "nearest": list(letter.nearest),
        "protocol": letter.protocol,
        "native": letter.native,
        **body_to_json(letter.body),
        "epoch": letter.epoch,
        "position": letter.position,
        "received": None if letter.received is None else instant(letter.received),
    }


def _history_entry_to_json(entry: HistoryEntry, redaction: Redaction) -> dict[str, Any]:
    at = None if entry.at is None else instant(entry.at)
    form: dict[str, Any] = {"at": at, "what": entry.what, "replay": entry.replay}
    detail = redaction.redact_detail(entry.reason, entry.detail)
    return form | ({"reason": entry.reason, "detail": detail} if entry.reason else {})


def _print_letter(form: Mapping[str, Any], letter: DeadLetter) -> None:
    facts = [(name, _format_fact(form[name])) for name in (*_FACTS, *_STATUS) if name != "behind" or form[name]]
    _print_table(f"dead letter {letter.id}", ("", "value"), facts)
    columns = ("property", "expected", "found")
    for near in letter.nearest:
        rows = [[_format_fact(each.get(name)) for name in columns] for each in near.get("mismatches") or ()]
        _print_table(f"nearest: {near.get('message')}", columns, rows)
    _print_table("native record", ("property", "value"), iter_values(letter.native))
    _print_table("body", ("body",), ([line] for line in format_body(letter.body)))
    if form["history"]:
        rows = [
            [*(_format_fact(each[name]) for name in ("at", "what", "replay")), _format_cause(each)]
            for each in form["history"]
        ]
        _print_table("history", ("when", "what", "replay", "why"), rows)


def _format_fact(value: object) -> str:
    return "-" if value is None or value == "" else sanitize(str(value))


def _format_cause(entry: Mapping[str, Any]) -> str:
    return sanitize(f"{entry['reason']}: {entry['detail']}") if "reason" in entry else "-"


def _print_table(title: str, columns: tuple[str, ...], rows: Iterable[Sequence[str]]) -> None:
    """Print rows as a table on a terminal, else as tab-separated lines below their title."""
    print_text(title)
    if sys.stdout.isatty():
        print_table(columns, rows)
    else:
        for row in (columns, *rows):
            print_row(("", *row))


# ``xrouter dead-letters purge``: apply retention manually.


def purge_letters(
    config: ConfigArgument,
    older: Annotated[
        str | None, typer.Option(metavar="AGE", help="Remove only dead letters older than this, such as 30d.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
) -> None:
    """Remove old dead letters from tables and folders, by `dead_letters.retention` or --older.

    Can run while the router is running.

    Example: xrouter dead-letters purge router.yaml --older 30d
    """
    settings = load_settings(config)
    configure_logs(settings.log)
    set_umask_for(settings.readable_by)
    retention = settings.dead_letters.retention
    if older is None and not retention.on:
        hint = "give --older AGE, or set dead_letters.retention in the settings"
        raise RouterError("there is no limit by which to remove dead letters", hint=hint)
    age, size = (retention.age, retention.size) if older is None else (_parse_age(older), 0)
    for _, caution in iter_retention_warnings(settings):
        print_text(f"xrouter: {caution}", err=True)
    removals = purge(settings, age, size, dry_run=dry_run)
    for removed in removals:
        verb = "would be removed" if dry_run else "removed"
        print_text(f"{removed.sink}: {removed.letters} letters {verb}, {removed.size} bytes")
    if not removals:
        print_text("nothing to remove")


def _parse_age(text: str) -> timedelta:
    try:
        age = parse_duration(text)
    except ValueError as error:
        raise RouterError(f"--older {error}") from error
    if not isinstance(age, timedelta) or not age:
        raise RouterError("--older 0 would remove every dead letter", hint="to do that, give an age such as 1ms")
    return age


# ``xrouter dead-letters release``: unblock keys whose dead letter cannot be replayed (``dead_letters.order: park``).


def release(
    config: ConfigArgument,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of dead letters, or their beginnings.")],
) -> None:
    """Unblock the keys of dead letters, so that later records with these keys can be replayed.

    The dead letters themselves stay. This is for `dead_letters.order: park`.

    Example: xrouter dead-letters release router.yaml 8f03d1d0e38d
    """
    settings = load_settings(config)
    with LetterLedger.open(Path(settings.state)) as ledger, ledger.exclusive():
        if ledger.pending() is not None:
            # A repeated batch must block the same dead letters as before.
            raise StateError(
                "no dead letter can be released while a replay is unfinished",
                hint="run `xrouter dead-letters replay` again to finish it",
            )
        known = ledger.order.positions()
        chosen = [_find_blocking_letter(known, text) for text in ids]
        waiting = sum(ledger.order.count_behind(letter) for letter in chosen)
        ledger.order.release(chosen)
    print_text(
        f"released {len(chosen)}; {waiting} blocked dead letters can be replayed with `xrouter dead-letters replay`"
    )


def _find_blocking_letter(known: dict[str, int], text: str) -> str:
    matches = [letter for letter in known if letter.startswith(text.strip().lower())] if text.strip() else []
    if len(matches) != 1:
        what = "several dead letters that block a key start" if matches else "no dead letter that blocks a key starts"
        raise RouterError(f"{what} with {text!r}", hint="`xrouter dead-letters list` shows ids; give more of one")
    return matches[0]
