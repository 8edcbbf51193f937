"""What a state folder must hold, as its ``format.json`` says: the format, and what must not go missing unnoticed.

A lost checkpoint would repeat every record, a lost inbox loses messages that were acknowledged, and neither leaves a
trace where it was. So what exists is noted here once it is durable: the newest generation of each query, the identity
of the inbox, and that offsets of topics were kept. After a crash in between, the next start notes it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from router.errors import StateError
from router.state.durable import damaged, missing, read_object, write_durably

FORMAT: Final = 1
NAME: Final = "format.json"
_TRACES: Final = ("checkpoints/*/*/generation.json", "batches/*/*", "plans/*.json")
"""Only a router that had written its format file writes these; inbox and letters' ledger may be there before."""


@dataclass(frozen=True, slots=True)
class NotedGeneration:
    """The newest generation of a query that was noted."""

    number: int
    id: str


@dataclass(frozen=True, slots=True)
class Holdings:
    """What is noted. ``inbox`` is the identity of the local inbox, '' before there is one."""

    generations: dict[str, NotedGeneration] = field(default_factory=dict)
    inbox: str = ""
    offsets: bool = False


class Inventory:
    """The ``format.json`` of one state folder. Whoever notes something has the folder's lock."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / NAME

    def create(self) -> None:
        """Write the file for a new folder; in one that has it already, check it.

        Raises:
            StateError: as :meth:`check`, or the file is missing from a folder that was in use.
        """
        if self.path.exists():
            self.check()
            return
        used = next((trace for pattern in _TRACES for trace in self._root.glob(pattern)), None)
        if used is not None:
            hint = f"restore it from a backup of the state folder, or choose another `state` folder than {self._root}"
            raise missing(self.path, f"the folder was in use, it has {used.relative_to(self._root)}", hint=hint)
        self._write(Holdings())

    def check(self) -> None:
        """Make sure that this router knows the folder's format.

        Raises:
            StateError: the format is newer or unknown, or the file is damaged.
        """
        self.holdings()

    def holdings(self) -> Holdings:
        """Return what the folder is to hold; nothing for one that an earlier router wrote.

        Raises:
            StateError: as :meth:`check`.
        """
        form = read_object(self.path) or {}
        if "format" not in form:
            raise damaged(self.path, "it names no format")
        if form["format"] != FORMAT:
            raise StateError(
                f"state folder {self._root} has format {form['format']}; this router knows {FORMAT}",
                hint="start the router version that wrote it, or choose another `state` folder",
            )
        try:
            return _holdings(form)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(self.path, f"what it says of the folder cannot be read ({error!r})") from error

    def note_generation(self, query: str, number: int, id: str) -> None:
        """Note that a query has a generation; what is noted already is not written again.

        Raises:
            StateError: the file is damaged.
            OSError: the disk refuses; the next start notes it.
        """
        known = self.holdings()
        self._replace(known, replace(known, generations={**known.generations, query: NotedGeneration(number, id)}))

    def note_inbox(self, identity: str) -> None:
        """Note which inbox the folder has; raises as :meth:`note_generation`."""
        known = self.holdings()
        self._replace(known, replace(known, inbox=identity))

    def note_offsets(self) -> None:
        """Note that offsets of topics are kept; raises as :meth:`note_generation`."""
        known = self.holdings()
        self._replace(known, replace(known, offsets=True))

    def _replace(self, known: Holdings, holdings: Holdings) -> None:
        if holdings != known:
            self._write(holdings)

    def _write(self, holdings: Holdings) -> None:
        write_durably(self.path, json.dumps({"format": FORMAT, **asdict(holdings)}, sort_keys=True).encode())


def _holdings(form: dict[str, Any]) -> Holdings:
    generations = {
        str(query): NotedGeneration(int(noted["number"]), str(noted["id"]))
        for query, noted in form.get("generations", {}).items()
    }
    return Holdings(generations, str(form.get("inbox", "")), bool(form.get("offsets", False)))
