"""Match records of brokers against the message definitions of an xRegistry catalog, from Python.

What the service ``xrouter run`` does with every record, without brokers, state or Spark::

    >>> import xrouter
    >>> catalog = xrouter.load({
    ...     "messagegroups": {"garden": {"messages": {"Moisture": {
    ...         "envelope": "CloudEvents/1.0",
    ...         "envelopemetadata": {
    ...             "type": {"value": "garden.moisture"},
    ...             "source": {"type": "uritemplate", "value": "/beds/{bed}"},
    ...         },
    ...     }}}},
    ... })
    >>> record = catalog.emit("Moisture", protocol="KAFKA", bed="7")
    >>> outcome = catalog.match(record)
    >>> outcome.message, outcome.context
    ('/messagegroups/garden/messages/Moisture', {'bed': '7'})

:func:`load` reads a catalog. :class:`LoadedCatalog` checks it, matches records one by one, in lists
or as Arrow tables, and emits sample records. :mod:`xrouter.spark` does the same with DataFrames.
"""

# Small: the public names; importing it must cost next to nothing.

from __future__ import annotations

from xrouter.packages import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from xrouter.matching import LoadedCatalog, MatchOutcome, load

__all__ = ["LoadedCatalog", "MatchOutcome", "load"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xrouter import matching

    return getattr(matching, name)


def __dir__() -> list[str]:
    return __all__
