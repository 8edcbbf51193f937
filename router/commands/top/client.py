"""``/status.json`` of a running router (deploy/STATUS.md), asked for over HTTP and read into types."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec

from router.errors import RouterError
from router.settings import Settings
from router.settings.model import MetricsSettings

FORMAT: Final = 1
SECONDS: Final = 5.0
"""For an answer; a router makes one in milliseconds, but for the first after a reload of thousands of definitions."""
MOST_BYTES: Final = 8 * 2**20
_HINT: Final = "is a router running with these settings? `metrics.host` and `metrics.port` say where it is asked"


class Count(msgspec.Struct, frozen=True):
    """Records in all, and a second over the last minute."""

    records: int = 0
    rate: float | None = None


class EndpointStatus(msgspec.Struct, frozen=True):
    """An endpoint that is read."""

    endpoint: str
    routed: Count
    dead_letters: Count
    protocol: str | None = None
    pushed: bool = False
    lag: int | None = None
    oldest_seconds: float | None = None


class DefinitionStatus(msgspec.Struct, frozen=True):
    """A definition, with what matched it."""

    definition: str
    records: int = 0
    rate: float | None = None


class Sink(msgspec.Struct, frozen=True):
    """A sink, with its writes by result, and the queries whose batch it holds."""

    sink: str
    type: str
    writes: dict[str, int]
    error_rate: float | None = None
    holds: list[str] = []


class FlowStatus(msgspec.Struct, frozen=True):
    """What goes through."""

    endpoints: list[EndpointStatus]
    definitions: list[DefinitionStatus]
    sinks: list[Sink]
    left_out: dict[str, int] = {}


class Now(msgspec.Struct, frozen=True):
    """The step of a batch under way, and for how many seconds it has taken."""

    step: str
    step_seconds: float


class StepStatus(msgspec.Struct, frozen=True):
    """A step of a batch."""

    step: str
    seconds: float


class Last(msgspec.Struct, frozen=True):
    """The last batch that has ended."""

    records: int
    seconds: float
    steps: list[StepStatus]


class Times(msgspec.Struct, frozen=True):
    """Where the batches of a query spend their time."""

    now: Now | None = None
    last: Last | None = None


class Query(msgspec.Struct, frozen=True):
    """A query of Spark."""

    state: str
    since: str
    batch: int | None = None
    reason: str = ""
    time: Times | None = None


class CatalogStatus(msgspec.Struct, frozen=True):
    """The catalog in force, and how many findings refused a newer one."""

    epoch: str | None = None
    definitions: int = 0
    refused_findings: int = 0
    held: str = ""


class Router(msgspec.Struct, frozen=True):
    """The process."""

    version: str
    seconds: int


class InboxStatus(msgspec.Struct, frozen=True):
    """What waits of all endpoints whose messages are pushed."""

    records: int | None = None
    oldest_seconds: float | None = None


class StatusFigures(msgspec.Struct, frozen=True):
    """The document, as far as it is shown."""

    format: int
    router: Router
    ready: bool
    reasons: list[str]
    catalog: CatalogStatus
    queries: dict[str, Query]
    flow: FlowStatus | None = None
    inbox: InboxStatus = InboxStatus()


class StatusVersion(msgspec.Struct, frozen=True):
    """What every version of the document has."""

    format: int


@dataclass(frozen=True, slots=True)
class StatusResponse:
    """The document as it came, and as it was read."""

    document: bytes
    status: StatusFigures


class StatusClient:
    """Asks one router; it keeps its connection. Close it, or use :func:`status_client`."""

    def __init__(self, address: str) -> None:
        self.address = address
        # The environment's proxies lead away from the machine.
        self._client = httpx.Client(timeout=SECONDS, trust_env=False)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def ask(self) -> StatusResponse:
        """Return what the router says now.

        Raises:
            RouterError: nobody answers there, or it is no router, or one of another version.
        """
        url = f"{self.address}/status.json"
        try:
            with self._client.stream("GET", url) as response:
                body = _bounded(response, url, time.monotonic() + SECONDS)
        except httpx.HTTPError as error:
            raise RouterError(f"{url} does not answer: {_problem(error)}", hint=_HINT) from None
        if response.status_code != httpx.codes.OK:
            raise RouterError(f"{url} answers {response.status_code}", hint=_HINT)
        try:
            form = msgspec.json.decode(body, type=StatusVersion)
            if form.format == FORMAT:
                return StatusResponse(body, msgspec.json.decode(body, type=StatusFigures))
        except msgspec.MsgspecError as error:
            raise RouterError(f"{url} is not what a router answers: {error}", hint=_HINT) from None
        message = f"{url} has format {form.format}, and this is for format {FORMAT}"
        raise RouterError(message, hint="use the xrouter of the version that runs there")


@contextmanager
def status_client(settings: Settings) -> Iterator[StatusClient]:
    """Yield a client for the router that runs by these settings on this machine.

    Raises:
        RouterError: they do not say at which port.
    """
    client = StatusClient(metrics_address(settings.metrics))
    try:
        yield client
    finally:
        client.close()


def metrics_address(metrics: MetricsSettings) -> str:
    """Return the address of ``metrics`` as it is reached on this machine.

    Raises:
        RouterError: it says no port.
    """
    if not metrics.port:
        raise RouterError("metrics.port is 0: each start takes another port", hint="set metrics.port to one of its own")
    return f"http://{reached(metrics.host)}:{metrics.port}"


def reached(host: str) -> str:
    """Return where something that listens at *host* is reached from here."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return str(address) if address.version == 4 else f"[{address}]"


def _bounded(response: httpx.Response, url: str, until: float) -> bytes:
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > MOST_BYTES:
            raise RouterError(f"{url} answers with more than {MOST_BYTES >> 20} MiB", hint=_HINT)
        if time.monotonic() > until:
            raise httpx.ReadTimeout(f"not whole in {SECONDS:.0f} s")
    return bytes(body)


def _problem(error: httpx.HTTPError) -> str:
    """Return why there is no answer, in a few words."""
    if isinstance(error, httpx.TimeoutException):
        return f"no whole answer in {SECONDS:.0f} s"
    text = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    return text[0].lower() + text[1:]
