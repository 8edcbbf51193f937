"""``xrouter tap``: records as they arrive, with their verdicts."""

from __future__ import annotations

import io
import select
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from catalog.findings import Declarations
from router.commands.arguments import usable_catalog
from router.commands.tap.samples import Follower, TapSample, TapSampler, choice_of, following, lines_of
from router.judging.plan import Plan
from router.letters.redaction import marks_of, marks_of_settings, redactor_of
from router.logs import configure_logs
from router.settings import load_settings
from router.settings.catalogs import fetcher_of
from router.terminal import counted, leave_output, say, say_json_lines, terminal


class TapFormat(StrEnum):
    """How samples are written out."""

    text = "text"
    json = "json"
    record = "record"


ROUND_SECONDS: Final = 0.5
"""Time between two looks at what arrived."""
RATE: Final = 10.0


def tap(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings of the router; it need not run.")],
    endpoint: Annotated[
        list[str] | None, typer.Option("--endpoint", metavar="XID", help="Records of this endpoint, `*` for any text.")
    ] = None,
    message: Annotated[
        list[str] | None, typer.Option("--message", metavar="XID", help="Records of this definition, `*` for any text.")
    ] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="`routed` or `dead-letter`.")] = None,
    reason: Annotated[
        list[str] | None, typer.Option("--reason", metavar="CODE", help="Dead letters of this reason; repeatable.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=GLOB",
            help="Or NAME!=GLOB, of attributes.X, context.X, native.X, or /a/b in a JSON body; all given must hold.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="End after so many samples.")] = None,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=1000, help="Samples a second at most.")] = RATE,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show what is marked as sensitive.")] = False,
    format: Annotated[
        TapFormat,
        typer.Option("--format", help="`json` is one object a line; `record` the record alone, as `match` takes it."),
    ] = TapFormat.text,
) -> None:
    """Show a live sample of records as they arrive: before, after, and with their verdicts, until Ctrl-C.

    Reads topics and the inbox, from now on beside the router, with a consumer of its own: nothing is committed, and
    the stream is not touched. They are judged by settings and catalog as they are when it starts. What comes faster
    than it is shown is passed over, and counted at the end. `xrouter test --record -` makes cases of what
    `--format record` gives.

    Example: xrouter tap router.yaml --outcome dead-letter --where native.topic=orders -n 5
    """
    choice = choice_of(endpoints=endpoint, messages=message, outcome=outcome, reasons=reason, where=where)
    settings = load_settings(config)
    configure_logs(settings.log)
    declarations, read = Declarations(), settings.catalog
    catalog = usable_catalog(list(read.source), fetcher_of(settings), base_uri=read.base_uri, declarations=declarations)
    redactor = redactor_of(
        marks_of(declarations, catalog) | marks_of_settings(settings.dead_letters.redact), reveal=reveal
    )
    plan = Plan(catalog, settings)
    sampling = TapSampler(plan, redactor, choice)
    write = {TapFormat.json: _json, TapFormat.record: _record, TapFormat.text: _text}[format]
    with following(plan, _note) as followers:
        _note(f"tapping {counted(len(plan.sources), 'source')}, epoch {plan.epoch}; Ctrl-C ends it")
        try:
            shown = _follow(followers, sampling, write, count, rate)
        except KeyboardInterrupt:
            leave_output()
            shown = None
        passed = sum(follower.passed_over for follower in followers)
    if passed or shown is None:
        over = f"at least {counted(passed, 'record')}" if passed else "no record known to be"
        _note(f"{counted(sampling.judged, 'outcome')} looked at, {over} passed over")


def _follow(
    followers: list[Follower],
    sampling: TapSampler,
    write: Callable[[TapSample], None],
    count: int | None,
    rate: float,
) -> int:
    """Show samples until there are enough."""
    shown, allowance, before = 0, 1.0, time.monotonic()
    gone = _reader_gone()
    while count is None or shown < count:
        began = time.monotonic()
        allowance = min(max(1.0, rate), allowance + (began - before) * rate)
        before = began
        for follower in followers:
            for chunk in follower.more():
                most = int(allowance) if count is None else min(int(allowance), count - shown)
                for sample in sampling.samples(chunk, most):
                    write(sample)
                    shown, allowance = shown + 1, allowance - 1
        if gone():
            raise BrokenPipeError
        if count is None or shown < count:
            time.sleep(max(0.0, began + ROUND_SECONDS - time.monotonic()))
    return shown


def _reader_gone() -> Callable[[], bool]:
    """Return a check whether nobody reads our output any more, which else is only noticed at the next sample."""
    try:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
    except (io.UnsupportedOperation, OSError):
        return lambda: False
    return lambda: any(event & select.POLLERR for _, event in output.poll(0))


def _json(sample: TapSample) -> None:
    say_json_lines([sample.document])


def _record(sample: TapSample) -> None:
    say_json_lines([sample.record.to_json()])


def _text(sample: TapSample) -> None:
    console = terminal(soft_wrap=True)
    for line in lines_of(sample):
        console.print(line)


def _note(text: str) -> None:
    say(text, err=True)
