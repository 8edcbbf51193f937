"""Another kind of sink for the time of a test, as a line in the list of kinds would add it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field

from router.settings import Settings, load
from router.settings.sinks import kinds
from router.settings.sinks.contract import SinkSettings


@contextmanager
def registered(kind: type[SinkSettings]) -> Iterator[None]:
    """Add a kind to :data:`router.settings.sinks.kinds.KINDS`; what was built of the list is built again."""
    before = kinds.KINDS
    try:
        _build((*before, kind))
        yield
    finally:
        _build(before)


def _build(listed: tuple[type[SinkSettings], ...]) -> None:
    for module in (kinds, load):
        module.KINDS = listed  # type: ignore[attr-defined]
    union: Any = reduce(or_, listed)
    field = Settings.model_fields["sinks"]
    field.annotation = dict[str, Annotated[union, Field(discriminator="type")]]
    Settings.model_rebuild(force=True)
