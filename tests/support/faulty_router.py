"""A real router with a fault of its own in a part beside the stream, once a test asks for it.

``python -m tests.support.faulty_router COMMAND...`` runs ``xrouter COMMAND...``. When the file that ``FAULT_FILE``
names is there, it is removed, and the part that asks the inbox what waits raises what nobody expects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from router.cli import main
from router.reading.backlogs import InboxBacklog
from router.watching.backlogs import Backlog

VARIABLE: Final = "FAULT_FILE"


def fail_on_demand(demand: Path) -> None:
    """Have the part fail once for each time that the file is there."""
    look = InboxBacklog.look

    def failing(self: InboxBacklog, offset: Mapping[str, Any] | None) -> Backlog:
        if demand.exists():
            demand.unlink()
            raise RuntimeError("a fault that a test asked for")
        return look(self, offset)

    InboxBacklog.look = failing  # type: ignore[method-assign]


if __name__ == "__main__":
    fail_on_demand(Path(os.environ[VARIABLE]))
    main(sys.argv[1:])
