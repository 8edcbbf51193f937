"""The status page: one HTML document with its style and script in it; browsers run nothing else, by hashes.

Nothing is loaded from elsewhere and no text becomes markup: the content security policy forbids both, so that names in
catalogs and records can do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from bindings.http.problems import Reply

SCRIPTS: Final = ("dom.js", "picture.js", "figures.js", "letters.js", "shadow.js", "main.js")
"""The parts of the script, in order."""
_FOLDER: Final = "assets"


@cache
def page() -> Reply:
    """Return the page with the headers that it is served with."""
    style = _text("page.css")
    script = "'use strict';\n" + "".join(map(_text, SCRIPTS))
    html = _text("page.html").replace("<style></style>", f"<style>{style}</style>")
    html = html.replace("<script></script>", f"<script>{script}</script>")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "connect-src 'self'",
            "img-src 'self' data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode("ascii")),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
    )
    return Reply(HTTPStatus.OK, headers, html.encode("utf-8"))


def _text(name: str) -> str:
    return files("router.overview").joinpath(_FOLDER, name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
