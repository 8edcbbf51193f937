"""What the inbox takes on disk is told as it was while nobody can look."""

from __future__ import annotations

import errno
import json
from pathlib import Path

from bindings.inbox.log import Inbox
from catalog.load import load
from router.evaluation.plan import Plan
from router.intake.intake import Intake, open_local_store
from router.settings import settings_from_dict
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus


def test_without_descriptors_the_last_size_is_told(tmp_path: Path) -> None:
    endpoint = {"usage": ["consumer"], "protocol": "HTTP", "protocoloptions": {"options": {"path": "/e"}}}
    (tmp_path / "c.json").write_text(json.dumps({"endpoints": {"e": {**endpoint, "messagegroups": []}}}))
    tables = {name: {"type": "table", "path": name} for name in ("lake", "dead")}
    told = {"sinks": tables, "routes": [{"to": ["lake"]}], "dead_letters": {"sinks": ["dead"]}, "http": {"port": 0}}
    settings = settings_from_dict(told, {}, tmp_path)
    sizes: list[int | OSError] = [7, OSError(errno.EMFILE, "too many open files"), 9]

    def size() -> int:
        found = sizes.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    def opened() -> Inbox:
        inbox = open_local_store(settings, state)
        inbox.measure_size = size  # type: ignore[method-assign]
        return inbox

    with StateFolder.open(tmp_path / "state") as state:
        intake = Intake(settings, Metrics(), RouterStatus(), opened)
        assert intake.inbox_size() == (0, settings.inbox.max_bytes)
        intake.receive_for_plan(Plan(load([tmp_path / "c.json"]), settings))
        try:
            assert [intake.inbox_size()[0] for _ in range(3)] == [7, 7, 9]
        finally:
            intake.close()
