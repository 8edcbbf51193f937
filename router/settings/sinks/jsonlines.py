"""Sinks of type ``jsonl``: files of JSON lines, or standard output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from router.settings.places import is_url
from router.settings.sinks.contract import Fault, Filled, SinkSettings


class JsonLinesSink(SinkSettings):
    """JSON lines, one file for each batch in a folder, or standard output (at least once)."""

    opener = "router.sinks.jsonlines:open_lines"
    reader = "router.letters.jsonlines_reading:read_lines_of"
    latest = "router.letters.latest:in_files"
    retention = "router.letters.folder_retention:old_lines"

    type: Literal["jsonl"] = Field(description="`jsonl`.")
    path: str = Field("-", description="Folder of the files; `-` is standard output.", min_length=1)

    @property
    def is_stdout(self) -> bool:
        """Whether lines go to standard output, where nothing can be read back."""
        return self.path == "-"

    @property
    def readable(self) -> bool:
        """Whether there is a folder."""
        return not self.is_stdout

    @property
    def folder(self) -> str:
        """The folder of the files."""
        return "" if self.is_stdout else self.path

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield what is wrong with the folder."""
        if is_url(self.path):
            yield f"{key}.path", "must be a local folder; only delta tables can be at a URL"

    def destination(self, filled: Filled, *, letters: bool) -> str:
        """Return the folder."""
        return "standard output" if self.is_stdout else self.path
