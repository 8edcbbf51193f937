"""A running router, asked over HTTP: ``xrouter top`` shows its figures live, ``xrouter wait`` waits for it."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import msgspec
import typer
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from router.commands.arguments import OutputFormat
from router.errors import BrokerUnreachable, RouterError
from router.settings import Settings, load_settings
from router.settings.load import read_yaml
from router.settings.model import MetricsSettings
from router.terminal import Terminal, plural, print_row, print_text, terminal, to_text, write_document

# ``/status.json`` of a running router (deploy/STATUS.md), asked for over HTTP and read into types.

FORMAT: Final = 1
ANSWER_SECONDS: Final = 5.0
"""How long commands wait for a router on this machine, which needs milliseconds but after a large reload."""
_HINT: Final = "is a router running with these settings? check `metrics.host` and `metrics.port`"


Status = Mapping[str, Any]
"""The status document, or a part of it; deploy/STATUS.md says what it has."""


def fetch_status(client: httpx.Client, address: str) -> tuple[bytes, Status]:
    """Return the current status of the router at an address, raw and parsed.

    Raises:
        RouterError: nobody answers there, or it is no router, or one of another version.
    """
    url = f"{address}/status.json"
    try:
        response = client.get(url)
    except httpx.HTTPError as error:
        raise RouterError(f"{url} does not respond: {_describe_error(error)}", hint=_HINT) from None
    if response.status_code != httpx.codes.OK:
        raise RouterError(f"{url} returns {response.status_code}", hint=_HINT)
    try:
        status = msgspec.json.decode(response.content, type=dict[str, Any])
        if status.get("format", FORMAT) != FORMAT:
            message = f"{url} has format {status['format']}, and this is for format {FORMAT}"
            raise RouterError(message, hint="use the xrouter of the version that runs there")
        list(iter_rows(status))
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = str(error) if isinstance(error, msgspec.MsgspecError) else repr(error)
        raise RouterError(f"{url} is not a router's status: {reason}", hint=_HINT) from error
    return response.content, status


def metrics_address(metrics: MetricsSettings) -> str:
    """Return the URL of ``metrics`` on this machine.

    Raises:
        RouterError: it says no port.
    """
    if not metrics.port:
        raise RouterError("metrics.port is 0: the port differs at each start", hint="set metrics.port to a fixed port")
    return f"http://{local_address(metrics.host)}:{metrics.port}"


def local_address(host: str) -> str:
    """Return the address at which a listener on *host* is reachable from this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return str(address) if address.version == 4 else f"[{address}]"


def _describe_error(error: httpx.HTTPError) -> str:
    """Return why there is no response, in short."""
    if isinstance(error, httpx.TimeoutException):
        return f"no complete response in {ANSWER_SECONDS:.0f} s"
    text = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    return text[0].lower() + text[1:]


# What ``xrouter top`` shows: tables that fit a terminal, or rows for programs.

SHOWN_STEPS: Final = 3
"""Steps of a batch that are shown."""
_LINES_BESIDE: Final = 15
"""Lines other than rows: the header, table headings, and gaps."""
_MIN_ROWS: Final = 3
_MIN_NAME: Final = 24
Row = tuple[str, ...]
_HEADS: Final[dict[str, Row]] = {
    "endpoint": ("endpoint", "protocol", "routed/s", "dead/s", "waits", "oldest"),
    "definition": ("definition", "records/s", "records"),
    "sink": ("sink", "type", "written", "failed", "rejected", "holds"),
    "query": ("query", "state", "batch", "now", "last batch"),
}
_NUMBERS: Final = frozenset(
    {"routed/s", "dead/s", "waits", "oldest", "records/s", "records", "written", "failed", "rejected"}
)


def render_screen(status: Status, address: str, size: ConsoleDimensions, problem: str = "") -> RenderableType:
    """Return the screen for a terminal of that size; *problem* is why it is outdated."""
    rows = dict(_iter_tables(status))
    room = size.height - _LINES_BESIDE - len(status["reasons"]) - len(rows["sink"]) - len(rows["query"])
    half = min(len(rows["endpoint"]), room // 2)
    shown = {"endpoint": max(_MIN_ROWS, half), "definition": max(_MIN_ROWS, room - half)}
    parts: list[RenderableType] = [*_iter_header(status, address, problem)]
    for kind, given in rows.items():
        if given:
            parts += [Text(""), _make_table(_HEADS[kind], given[: shown.get(kind)], size.width)]
    return Group(*parts)


def iter_rows(status: Status) -> Iterator[Row]:
    """Yield the same as tab-separated rows, each starting with its kind."""
    router, catalog = status["router"], status["catalog"]
    yield "router", "ready" if status["ready"] else "not ready", router["version"], f"{router['seconds']}"
    yield "catalog", catalog.get("epoch") or "-", f"{catalog.get('definitions', 0)}"
    yield "inbox", _format_count(status["inbox"].get("records"))
    for reason in status["reasons"]:
        yield "reason", reason
    for kind, rows in _iter_tables(status):
        for row in rows:
            yield kind, *row


def _iter_header(status: Status, address: str, problem: str) -> Iterator[RenderableType]:
    router, catalog, inbox = status["router"], status["catalog"], status["inbox"]
    ready = ("ready", "green") if status["ready"] else ("not ready", "bold red")
    yield to_text(f"xrouter {router['version']} at {address}, up {_format_age(router['seconds'])}, ", ready)
    text = f"catalog {catalog.get('epoch') or '-'}, {plural(catalog.get('definitions', 0), 'definition')}"
    if catalog.get("refused_findings"):
        yield to_text(text, (f"; a newer one is refused: {plural(catalog['refused_findings'], 'error')}", "red"))
    elif catalog.get("held"):
        yield to_text(text, (f"; a newer one waits: {catalog['held']}", "yellow"))
    else:
        yield to_text(text)
    if inbox.get("records") is not None:
        oldest = f", the oldest for {_format_age(inbox['oldest_seconds'])}" if inbox.get("oldest_seconds") else ""
        yield to_text(f"inbox: {plural(inbox['records'], 'record')} waiting{oldest}")
    for reason in status["reasons"]:
        yield to_text((reason, "red"))
    if problem:
        yield to_text((problem, "bold red"))


def _iter_tables(status: Status) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each table, busiest first, as the router sorts them."""
    flow = status["flow"] or {"endpoints": (), "definitions": (), "sinks": ()}
    definitions = flow["definitions"]
    yield "endpoint", [_make_endpoint_row(each) for each in flow["endpoints"]]
    yield "definition", [(one["definition"], _format_rate(one["rate"]), f"{one['records']:,}") for one in definitions]
    yield "sink", [_make_sink_row(each) for each in flow["sinks"]]
    yield "query", [_make_query_row(name, each) for name, each in status["queries"].items()]


def _make_endpoint_row(each: Status) -> Row:
    rates = (_format_rate(each[name]["rate"]) for name in ("routed", "dead_letters"))
    waits = "inbox" if each["pushed"] and each["lag"] is None else _format_count(each["lag"])
    oldest = _format_age(each["oldest_seconds"]) if each["oldest_seconds"] else ""
    return (each["endpoint"], each["protocol"] or "-", *rates, waits, oldest)


def _format_count(value: int | None) -> str:
    """Return a number as text; an unknown one is not 0."""
    return "?" if value is None else f"{value:,}"


def _make_sink_row(each: Status) -> Row:
    writes = (f"{each['writes'].get(result, 0):,}" for result in ("ok", "error", "rejected"))
    return each["sink"], each["type"], *writes, ", ".join(each["holds"])


def _make_query_row(name: str, each: Status) -> Row:
    times = each.get("time") or {}
    now, last, batch = times.get("now"), times.get("last"), each.get("batch")
    step = f"{now['step']} for {now['step_seconds']:.1f} s" if now else "idle"
    summary = "-"
    if last:
        steps = sorted(last["steps"], key=lambda one: -float(one["seconds"]))[:SHOWN_STEPS]
        longest = ", ".join(f"{one['step']} {one['seconds']:.2f}" for one in steps)
        summary = f"{plural(last['records'], 'record')} in {last['seconds']:.2f} s ({longest})"
    return name, each["state"], "-" if batch is None else f"{batch}", step, summary


def _make_table(head: Row, rows: Sequence[Row], width: int) -> Table:
    """Return rows as a table; long names in the first column are cut at the beginning, since their ends differ."""
    table = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    beside = sum(max(len(row[place]) for row in (head, *rows)) for place in range(1, len(head)))
    longest = max(_MIN_NAME, width - beside - 2 * len(head))
    for name in head:
        number = name in _NUMBERS
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for name, *others in rows:
        table.add_row(name if len(name) <= longest else f"…{name[1 - longest :]}", *others)
    return table


def _format_rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _format_age(seconds: float) -> str:
    """Return a duration as text, in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def top(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings of a router on this machine.")],
    every: Annotated[
        float, typer.Option("--every", min=0.5, max=3600, metavar="SECONDS", help="Refresh interval.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is /status.json unchanged.")] = "text",
) -> None:
    """Show throughput, lag and blocked batches of a running router, until Ctrl-C.

    Reads /status.json of the `metrics` port (deploy/STATUS.md), like the status page. If the output is not a terminal,
    prints one snapshot as rows that start with their kind.

    Example: xrouter top router.yaml
    """
    address = metrics_address(load_settings(config).metrics)
    # The environment's proxies lead away from the machine.
    with httpx.Client(timeout=ANSWER_SECONDS, trust_env=False) as client:
        console = terminal()
        document, status = fetch_status(client, address)
        if format == "json":
            write_document(document)
        elif once or not console.is_terminal:
            for row in iter_rows(status):
                print_row(row)
        else:
            _refresh_until_stopped(lambda: fetch_status(client, address)[1], address, console, status, every)


def _refresh_until_stopped(
    fetch: Callable[[], Status], address: str, console: Terminal, status: Status, every: float
) -> None:
    """Refresh the screen until interrupted; while the router does not respond, show its last status and the problem."""
    problem = ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(render_screen(status, address, console.size, problem), refresh=True)
            try:
                time.sleep(every)
                status, problem = fetch(), ""
            except KeyboardInterrupt:
                return
            except RouterError as error:
                problem = f"{error.message}; what follows is what it said before"


# ``xrouter wait``

POLL_SECONDS: Final = 0.2


def wait(
    target: Annotated[str, typer.Argument(metavar="CONFIG|URL", help="Settings of the router or registry, or a URL.")],
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Give up after this time, with exit code 5.")
    ] = 300.0,
) -> None:
    """Wait until a router or registry on this machine is ready, or until a URL responds.

    A router is asked at its `metrics` port. Each reason why it is not ready is printed once, on standard error.
    Certificates are not verified, since no secret is sent.

    Example: xrouter wait router.yaml --timeout 60
    """
    url = target if target.lower().startswith(("http://", "https://")) else _find_readiness_url(Path(target))
    until, reported = time.monotonic() + timeout, ""
    with httpx.Client(timeout=ANSWER_SECONDS, trust_env=False, verify=False) as client:
        while (problem := _find_problem(client, url)) is not None:
            if time.monotonic() > until:
                hint = "if it has stopped, see its log; `xrouter doctor CONFIG` shows what startup waits for"
                raise BrokerUnreachable(f"not ready after {timeout:g} s: {problem}", hint=hint)
            if problem != reported:
                print_text(f"waiting: {problem}", err=True)
                reported = problem
            time.sleep(POLL_SECONDS)


def _find_readiness_url(config: Path) -> str:
    """Return the URL of the readiness of the router or registry of these settings."""
    written = read_yaml(config)
    if not written.keys() - Settings.model_fields.keys():
        return f"{metrics_address(load_settings(config).metrics)}/readyz"
    from router.commands.registry.settings import RegistryFile, load_registry

    if written.keys() - RegistryFile.model_fields.keys():
        return f"{metrics_address(load_settings(config).metrics)}/readyz"  # load_settings reports the unknown keys
    registry, _ = load_registry(config)
    if registry.metrics is not None and registry.metrics.port:
        return f"{metrics_address(registry.metrics)}/readyz"
    if not registry.http.port:
        raise RouterError("http.port is 0: the port differs at each start", hint="set http.port to a fixed port")
    return f"{'https' if registry.http.tls else 'http'}://{local_address(registry.http.host)}:{registry.http.port}/"


def _find_problem(client: httpx.Client, url: str) -> str | None:
    """Return why it is not ready; None when it is. A server that requires a login is ready."""
    try:
        with client.stream("GET", url) as answer:
            if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                return None
            answer.read()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{url} does not respond: {str(error) or type(error).__name__}"
    return f"{url} returns {answer.status_code}{_read_reasons(answer)}"


def _read_reasons(answer: httpx.Response) -> str:
    """Return the reasons of a ``/readyz`` response as text."""
    try:
        document = answer.json()
    except ValueError:
        return ""
    reasons = document.get("reasons") if isinstance(document, dict) else None
    return f": {'; '.join(map(str, reasons))}" if isinstance(reasons, list) and reasons else ""
