"""``xrouter wait``: returns when a router or a registry that was just started takes what it is sent."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer

from router.commands.top import metrics_address, reached
from router.errors import BrokerUnreachable, RouterError
from router.settings import Settings, load_settings
from router.settings.load import read_file
from router.terminal import say

POLL_SECONDS: Final = 0.2
ANSWER_SECONDS: Final = 5.0
MOST_BYTES: Final = 64 * 1024
"""Of an answer, which is read for the reasons in it."""


def wait(
    target: Annotated[
        str, typer.Argument(metavar="CONFIG|URL", help="Settings of the router or registry, or an address.")
    ],
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long; then the exit code is 5.")
    ] = 300.0,
) -> None:
    """Wait until a router is ready or a registry answers, on this machine; or until an address answers at all.

    A router is asked at its port of `metrics`. Why it is not ready yet goes to standard error, once for each reason.
    Nothing secret is sent, so certificates are not checked.

    Example: xrouter wait router.yaml --timeout 60
    """
    url = target if target.lower().startswith(("http://", "https://")) else _address(Path(target))
    until, said = time.monotonic() + timeout, ""
    with httpx.Client(timeout=ANSWER_SECONDS, trust_env=False, verify=_unchecked()) as client:
        while (problem := _problem(client, url)) is not None:
            if time.monotonic() > until:
                hint = "has it ended? Its log says why; `xrouter doctor CONFIG` says what a start waits for"
                raise BrokerUnreachable(f"not ready after {timeout:g} s: {problem}", hint=hint)
            if problem != said:
                say(f"waiting: {problem}", err=True)
                said = problem
            time.sleep(POLL_SECONDS)


def _address(config: Path) -> str:
    """Return where what runs by these settings says that it is ready."""
    written = read_file(config)
    if not written.keys() - Settings.model_fields.keys():
        return f"{metrics_address(load_settings(config).metrics)}/readyz"
    from router.commands.registry.settings import RegistryFile, load_registry

    if written.keys() - RegistryFile.model_fields.keys():
        return f"{metrics_address(load_settings(config).metrics)}/readyz"  # which says what it cannot read
    given, _ = load_registry(config)
    if given.metrics is not None and given.metrics.port:
        return f"{metrics_address(given.metrics)}/readyz"
    if not given.http.port:
        raise RouterError("http.port is 0: each start takes another port", hint="set http.port to one of its own")
    return f"{'https' if given.http.tls else 'http'}://{reached(given.http.host)}:{given.http.port}/"


def _problem(client: httpx.Client, url: str) -> str | None:
    """Return why it is not ready; None when it is. Who asks for a login answers as well."""
    try:
        with client.stream("GET", url) as answer:
            if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                return None
            return f"{url} answers {answer.status_code}{_reasons(answer)}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{url} does not answer: {str(error) or type(error).__name__}"


def _reasons(answer: httpx.Response) -> str:
    """Return what a router says of itself: why it is not ready."""
    body = next(answer.iter_bytes(MOST_BYTES), b"")
    try:
        told = httpx.Response(answer.status_code, content=body).json()
    except ValueError:
        return ""
    reasons = told.get("reasons") if isinstance(told, dict) else None
    return f": {'; '.join(map(str, reasons))}" if isinstance(reasons, list) and reasons else ""


def _unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
