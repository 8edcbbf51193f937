"""When the certificates that the settings name end."""

from __future__ import annotations

from bindings.certificates import CertificateCollector
from router.settings import Settings
from router.settings.certificates import certificates

_RENEWED = "catalog."
"""Begins the keys of files that are read again when they change; all others are read only at the start."""


def certificate_collector(settings: Settings) -> CertificateCollector:
    """Return the collector of their metrics."""
    files = certificates(settings)
    renewed = {key: path for key, path in files.items() if key.startswith(_RENEWED)}
    return CertificateCollector({key: path for key, path in files.items() if key not in renewed}, renewed)
