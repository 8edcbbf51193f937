"""``xrouter dead-letters replay``: dead letters through the router again, or what would become of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from router.commands.arguments import OutputFormat
from router.errors import RouterError
from router.letters.filters import Endpoints, Filter, Messages, Reasons, Since, Until, filter_of
from router.settings import load_settings
from router.terminal import WIDE, Terminal, counted, say, say_json_lines, styled, terminal

if TYPE_CHECKING:
    from router.replay.dry_run import Verdict
    from router.replay.replay import ReplayOptions, Result
    from router.replay.replaying import Summary
    from router.state.ledger import PendingReplay

INTERRUPTED: Final = 130
"""Exit code of a replay that was asked to end; the next one goes on."""


def replay(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of letters; none is all.")] = None,
    reason: Reasons = None,
    endpoint: Endpoints = None,
    message: Messages = None,
    since: Since = None,
    until: Until = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would become of them, and change nothing.")
    ] = False,
    rate: Annotated[str | None, typer.Option(metavar="N/s", help="At most so many letters a second.")] = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Letters at a time, or 64 MiB.")] = 10_000,
    parked: Annotated[bool, typer.Option("--parked", help="Also those that are parked.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many letters.")] = None,
    format: Annotated[OutputFormat, typer.Option(help="How the summary is written.")] = OutputFormat.text,
) -> None:
    """Route dead letters under the catalog and settings of now; those that no definition takes stay dead letters.

    It may run beside the router. What was replayed is not replayed again; what is interrupted is finished by the next.

    Example: xrouter dead-letters replay router.yaml --reason no-match --dry-run
    """
    from router.replay.replay import ReplayOptions  # brings Spark along, which no other command needs

    selection = filter_of(ids=ids, reasons=reason, endpoints=endpoint, messages=message, since=since, until=until)
    options = ReplayOptions(parked, limit, _rate_of(rate), batch)
    if dry_run:
        from router.replay.replay import dry_run as look

        _tell_verdicts(look(load_settings(config), selection, options), format)
    else:
        _run(config, selection, options, format)


def _run(config: Path, selection: Filter, options: ReplayOptions, format: OutputFormat) -> None:
    """Replay, and report it.

    Raises:
        RouterError: also when letters were asked for by ids that no sink has.
    """
    from router.replay.replay import matching
    from router.replay.replay import replay as run

    console = terminal(err=True)
    total = matching(load_settings(config), selection, options) if console.is_terminal else None
    with _watcher(console, total) as watcher:
        result = run(config, selection, options, watcher)
    _tell_result(result, format)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.unknown:
        hint = "`xrouter dead-letters list` shows those there are"
        raise RouterError(f"no dead letter has the id {', '.join(result.unknown[:5])}", hint=hint)


def _rate_of(text: str | None) -> float | None:
    """Read ``100/s``, ``100`` or ``0.5/s``.

    Raises:
        RouterError: it is none of them.
    """
    if text is None:
        return None
    try:
        rate = float(text.strip().removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise RouterError(f"--rate {text!r} is no rate", hint="write --rate 100/s for 100 letters a second")
    return rate


class _Lines:
    """Reports a replay in lines on standard error, where there is no terminal."""

    def resumed(self, pending: PendingReplay) -> None:
        _say(f"finishing {counted(len(pending.letters), 'letter')} of an earlier replay first")

    def progress(self, summary: Summary) -> None:
        routed, dead = summary.routed.total(), summary.dead.total()
        _say(f"{counted(summary.settled, 'letter')}: {routed} routed, {dead} still dead")

    def held(self, reason: str, seconds: float) -> None:
        _say(f"held: {reason}; again in {seconds:g} s (an interrupt loses nothing)")


class _Bar:
    """Reports a replay by a progress bar."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("replaying", total=total)

    def resumed(self, pending: PendingReplay) -> None:
        self._progress.console.print(f"finishing {counted(len(pending.letters), 'letter')} of an earlier replay first")

    def progress(self, summary: Summary) -> None:
        self._progress.update(self._task, completed=summary.settled, description="replaying")

    def held(self, reason: str, seconds: float) -> None:
        self._progress.console.print(styled(("held", "yellow"), f": {reason}; again in {seconds:g} s"))
        self._progress.update(self._task, description="held")


@contextmanager
def _watcher(console: Terminal, total: int | None) -> Iterator[_Lines | _Bar]:
    if total is None:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield _Bar(progress, total)


def _say(line: str) -> None:
    say(line, err=True)


def _tell_verdicts(verdicts: Iterable[Verdict], format: OutputFormat) -> None:
    """Write how many letters would go where."""
    counts = Counter((each.message, each.reason, each.sinks) for each in verdicts)
    rows = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    if format is OutputFormat.json:
        names = ("message", "reason", "sinks")
        say_json_lines(
            [[{"outcome": _outcome(key[1]), **dict(zip(names, key, strict=True)), "letters": n} for key, n in rows]]
        )
        return
    table = Table("outcome", "definition or reason", "sinks", "letters", title="What a replay would do now")
    for (message, reason, sinks), count in rows:
        where = ", ".join(sinks) or ("-" if reason else "none: those that lack it are not in its route any more")
        table.add_row(_outcome(reason), message or reason or "", where, str(count))
    _print(table if rows else "no letter to replay")


def _outcome(reason: str | None) -> str:
    return "dead-letter" if reason else "routed"


def _tell_result(result: Result, format: OutputFormat) -> None:
    """Write what a replay did."""
    summary = result.summary
    if format is OutputFormat.json:
        form: dict[str, Any] = {
            "routed": summary.routed.total(),
            "definitions": dict(summary.routed.most_common()),
            "dead": dict(summary.dead.most_common()),
            "parked": summary.parked,
            "gone": summary.gone,
            "skipped": dict(result.skipped),
            "unknown": list(result.unknown),
            "interrupted": result.interrupted,
        }
        say_json_lines([form])
        return
    table = Table("letters", "count", title="Replay interrupted" if result.interrupted else "Replay")
    table.add_row("routed", str(summary.routed.total()))
    for reason, count in summary.dead.most_common():
        table.add_row(f"still dead, {reason}", str(count))
    others = {"parked now": summary.parked, "gone before their turn": summary.gone}
    others |= {f"left out, {standing}": count for standing, count in result.skipped.items()}
    for name, count in others.items():
        if count:
            table.add_row(name, str(count))
    _print(table)
    if result.interrupted:
        _print("The batch in hand is kept; the next replay begins with it.")


def _print(what: Table | str) -> None:
    terminal(width=WIDE).print(what)
