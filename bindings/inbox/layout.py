"""What an inbox on disk says about itself: ``format.json`` with format version, identity and number of partitions."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bindings.inbox.errors import InboxFormatError
from bindings.inbox.segments import partition_directory
from bindings.private import private_folder, replaced, sync_path
from catalog.parsing.regular import read_regular

FORMAT: Final = 1
NAME: Final = "format.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """Identity and shape of one inbox; none of it ever changes."""

    format: int
    inbox: str
    partitions: int


def read_layout(path: Path) -> Layout:
    """Read ``format.json`` of the inbox at *path*.

    Raises:
        InboxFormatError: there is no inbox, or it is of an unknown version.
    """
    file = path / NAME
    try:
        form = json.loads(read_regular(file))
        layout = Layout(format=int(form["format"]), inbox=str(form["inbox"]), partitions=int(form["partitions"]))
    except FileNotFoundError:
        raise InboxFormatError(f"{path} is no inbox: {NAME} is missing; start the gateways first") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InboxFormatError(f"{file} cannot be read ({error!r}); restore it from a backup") from error
    if layout.format != FORMAT:
        raise InboxFormatError(
            f"{file} has format {layout.format}, this version reads {FORMAT}; use the version that wrote it"
        )
    return layout


def open_layout(path: Path, partitions: int) -> Layout:
    """Return the layout of the inbox at *path*; a new one is made, durably, where there is none.

    Raises:
        InboxFormatError: the inbox is of an unknown version, or has another number of partitions. That number is
            fixed: order holds per partition, and a row's partition depends on it.
    """
    private_folder(path)
    if not (path / NAME).exists():
        if any(path.glob("*/*.log")):
            raise InboxFormatError(f"{path} has segments but no {NAME}; restore it from a backup")
        _create(path, Layout(format=FORMAT, inbox=uuid.uuid4().hex, partitions=partitions))
    layout = read_layout(path)
    if layout.partitions != partitions:
        raise InboxFormatError(
            f"{path} has {layout.partitions} partitions, {partitions} were asked for; keep {layout.partitions}, "
            f"or let the router drain the inbox and remove it"
        )
    return layout


def _create(path: Path, layout: Layout) -> None:
    for partition in range(layout.partitions):
        private_folder(partition_directory(path, partition))
    with replaced(path / NAME, path / f"{NAME}.tmp") as file:
        file.write(json.dumps(asdict(layout)).encode())
    sync_path(path.parent)
