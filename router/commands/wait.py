"""``xrouter wait``: return when a router or registry is ready."""

# Small: one command.

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer

from router.commands.top import ANSWER_SECONDS, local_address, metrics_address
from router.errors import BrokerUnreachable, RouterError
from router.settings import Settings, load_settings
from router.settings.load import read_yaml
from router.terminal import print_text

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
    """Return the URL that tells whether the router or registry of these settings is ready."""
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
