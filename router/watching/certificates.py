"""When the certificates that the settings name end."""

from __future__ import annotations

from bindings.certificates import CertificateCollector
from router.settings import Settings
from router.settings.certificates import certificates

_RENEWED = "catalog."
"""How the keys begin whose files are read anew when they change; all others are read at the start alone."""


def certificate_collector(settings: Settings) -> CertificateCollector:
    """Return what tells of them."""
    files = certificates(settings)
    renewed = {key: path for key, path in files.items() if key.startswith(_RENEWED)}
    return CertificateCollector({key: path for key, path in files.items() if key not in renewed}, renewed)
