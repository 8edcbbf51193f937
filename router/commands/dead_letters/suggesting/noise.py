"""Properties that no draft asks for: ids, times, tracing, what transports add, and anything that may be a secret."""

from __future__ import annotations

import re
from typing import Final

from catalog.protocols.properties import ANY_VOCABULARY, NAMED, VOCABULARIES

_ATTRIBUTES: Final = frozenset(
    """
    id time specversion datacontenttype sequence sequencetype recordedtime expirytime sampledrate partitionkey
    correlationid causationid dataref
    """.split()
)
_SECTIONS: Final = ("header.", "footer.", "delivery-annotations.", "message-annotations.")
_TRANSPORT: Final = re.compile(
    r"""
    (?:accept|access-control|cf|if|nats|proxy|sec|x-amz|x-amzn|x-envoy|x-forwarded|xrouter)-.*
    | (?:content-(?:length|encoding|md5|digest|disposition|language)|transfer-encoding|connection|keep-alive|te|trailer)
    | (?:host|user-agent|accept|date|via|forwarded|origin|referer|expect|range|upgrade|pragma|cache-control|age|server)
    | (?:x-real-ip|x-powered-by|dnt|priority|kafka_.*|digest|etag|expires|last-modified|vary)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TRACING: Final = re.compile(
    r"""
    (?:traceparent|tracestate|baggage|b3|x-b3-.*|uber-trace-id|sentry-trace|diagnostic-id|x-cloud-trace-context)
    | (?:x-)?(?:request|correlation|causation|trace|span|message|idempotency)[-_]?(?:id|key)
    | .*(?:timestamp|[-_]time|[-_]date|delivery|[-_]nonce)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SECRET: Final = re.compile(
    r"auth(?:orization)?$|cookie|token|secret|passw|pwd|credential|signature|hmac|api[-_]?key|access[-_]?key|session",
    re.IGNORECASE,
)
"""What may be a secret, or is computed of one; a literal of it would be published with the catalog."""


def is_noise(key: str, protocol: str) -> bool:
    """Tell whether a property, by its key ``e.NAME`` or ``p.PATH``, says nothing about what kind of message it is."""
    side, _, path = key.partition(".")
    if side == "e":
        return path in _ATTRIBUTES or _TRACING.fullmatch(path) is not None or _SECRET.search(path) is not None
    if path in VOCABULARIES.get(protocol, ANY_VOCABULARY).fleeting or path.startswith(_SECTIONS):
        return True
    for prefix in NAMED:
        if path.startswith(prefix):
            name = path[len(prefix) :]
            return any((_TRANSPORT.fullmatch(name), _TRACING.fullmatch(name), _SECRET.search(name)))
    return path in ("response_topic", "properties.content-encoding")
