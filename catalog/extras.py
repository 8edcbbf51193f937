"""Libraries that only some uses need: which extra installs each, and what an import says where one is missing."""

# Small: every package of ours loads it first.

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

OURS: Final = frozenset({"catalog", "bindings", "registry", "router", "xrouter"})
EXTRAS: Final = {
    "spark": ("pyspark", "py4j", "deltalake"),
    "brokers": ("confluent_kafka", "paho", "proton", "nats", "nkeys", "httptools", "uvloop"),
    "registry": ("sqlalchemy", "alembic", "psycopg", "jinja2", "markupsafe"),
    "protobuf": ("google", "grpc_tools"),
    "telemetry": ("opentelemetry", "requests"),
    "cloudevents": ("cloudevents",),
}
"""The extras, and what our modules import of each."""
_IMPORTING: Final = frozenset({"importlib", "_frozen_importlib", "pkgutil"})
_EXTRA_OF: Final = {name: extra for extra, names in EXTRAS.items() for name in names}


class MissingExtraError(ModuleNotFoundError):
    """A library is not installed; the message has the command that installs it."""


class _MissingExtras:
    """Comes behind all that finds modules; looks only at what our own modules import."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise MissingExtraError for a library of an extra."""
        root = name.partition(".")[0]
        if root in _EXTRA_OF and _importer() in OURS:
            command = f"pip install 'xregistry-router[{_EXTRA_OF[root]}]'"
            raise MissingExtraError(f"{root} is not installed, which this needs: {command}", name=name)


def _importer() -> str:
    """Return the package of the module that is importing."""
    frame = sys._getframe(2)
    while _package_of(frame) in _IMPORTING and frame.f_back is not None:
        frame = frame.f_back
    return _package_of(frame)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


sys.meta_path.append(_MissingExtras)
