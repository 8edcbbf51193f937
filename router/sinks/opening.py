"""From the settings of a sink to the sink."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Literal, cast

from catalog.model import Catalog
from router.settings.model import Settings
from router.settings.sinks.kinds import Sink
from router.sinks.contract import ArrowSink
from router.sinks.tables.unwrapping import Framings

Kind = Literal["events", "dead-letters"]


def open_sink(
    name: str, settings: Sink, kind: Kind, catalog: Catalog | None = None, framings: Framings | None = None
) -> ArrowSink:
    """Make the sink called *name* for events or dead letters. Touches neither disk nor network.

    *catalog* is for sinks that name an endpoint of it, *framings* of the sources for tables with typed payloads.

    Raises:
        SinkError: the endpoint is not in the catalog, or cannot be sent to as the settings say.
    """
    return cast(ArrowSink, resolve_name(settings.opener)(name, settings, kind, catalog or Catalog(), framings))


def check_endpoints(settings: Settings, catalog: Catalog) -> None:
    """Make sure that every sink which names an endpoint can send to it, as far as the catalog tells.

    Raises:
        SinkError: one cannot; names sink and endpoint.
    """
    for name, sink in settings.sinks.items():
        if sink.remote is not None and sink.remote.endpoint is not None:
            open_sink(name, sink, "events", catalog)
