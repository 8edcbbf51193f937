"""``xrouter registry serve``: what ends it before it serves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from registry.http.server import RegistryServer
from router.commands.registry import serve
from router.errors import StateError


def test_a_store_that_fails_as_serving_begins_ends_it_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: RegistryServer) -> None:
        raise OperationalError("SELECT 1", {}, Exception("the disk is gone"))

    config = tmp_path / "registry.yaml"
    config.write_text("open: true\n")
    monkeypatch.setattr(RegistryServer, "start", failing)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(serve, "configure_logs", lambda _: None)
    with pytest.raises(StateError, match=r"registry\.db does not answer: the disk is gone"):
        serve.serve(config)
