"""When our own certificates expire, as a metric: one second later no connection can use them."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from catalog.parsing.regular import open_regular

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]{1,100000}-----END CERTIFICATE-----")
_SEQUENCE, _VERSION, _UTC_TIME, _GENERAL_TIME = 0x30, 0xA0, 0x17, 0x18
_LARGEST: Final = 1 << 20
"""Bytes of a file of certificates that are looked at."""


class CertificateCollector(Collector):
    """Tells when certificates end, by the keys of the settings that name their files; the first of a chain counts.

    Files of *kept* are read once, as the server that shows them does; files of *renewed* whenever they change.
    """

    def __init__(self, kept: Mapping[str, Path], renewed: Mapping[str, Path] | None = None) -> None:
        self._ends = {key: end for key, path in kept.items() if (end := _end_of(path)) is not None}
        self._renewed = dict(renewed or {})
        self._seen: dict[str, tuple[int, float | None]] = {}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Give the registry the name, so that no other collector can take it."""
        yield self._family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Give the ends, as they are now; a file that cannot be read has none."""
        family = self._family()
        for key, end in {**self._ends, **dict(self._ends_now())}.items():
            family.add_metric([key], end)
        yield family

    def _ends_now(self) -> Iterator[tuple[str, float]]:
        for key, path in self._renewed.items():
            try:
                stamp = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if self._seen.get(key, (None, None))[0] != stamp:
                self._seen[key] = (stamp, _end_of(path))
            end = self._seen[key][1]
            if end is not None:
                yield key, end

    @staticmethod
    def _family() -> GaugeMetricFamily:
        text = "When a certificate of ours ends, in seconds since 1970."
        return GaugeMetricFamily("xrouter_certificate_end_timestamp_seconds", text, labels=["certificate"])


def end_of(pem: str) -> float:
    """Return when the first certificate of a PEM text ends, in seconds since 1970.

    Raises:
        ValueError: there is none, or it is malformed.
    """
    block = _PEM.search(pem)
    if block is None:
        raise ValueError("there is no certificate")
    # The standard library gives the end of a peer's certificate only; finding it takes few steps (RFC 5280, 4.1).
    certificate = _part(ssl.PEM_cert_to_DER_cert(block[0]), _SEQUENCE)[0]
    rest = _part(certificate, _SEQUENCE)[0]
    if rest[:1] == bytes((_VERSION,)):
        rest = _part(rest, _VERSION)[1]
    for _ in ("serial number", "signature", "issuer"):
        rest = _part(rest)[1]
    validity = _part(rest, _SEQUENCE)[0]
    return _time(_part(validity)[1])


def _end_of(path: Path) -> float | None:
    try:
        with open(path, "rb", opener=open_regular) as file:
            return end_of(file.read(_LARGEST).decode("ascii", "replace"))
    except (OSError, ValueError):
        return None  # The server that shows the certificate reports what is wrong with it.


def _part(text: bytes, kind: int | None = None) -> tuple[bytes, bytes]:
    """Return the content of the first element of DER, and what is behind it."""
    if len(text) < 2 or (kind is not None and text[0] != kind):
        raise ValueError("it is no certificate")
    length, start = text[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(text[2:start], "big")
    if len(text) < start + length:
        raise ValueError("it is cut off")
    return text[start : start + length], text[start + length :]


def _time(element: bytes) -> float:
    content = _part(element)[0].decode("ascii")
    if element[0] == _UTC_TIME:
        content = ("19" if content[:2] >= "50" else "20") + content
    elif element[0] != _GENERAL_TIME:
        raise ValueError("it has no end")
    return datetime.strptime(content, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
