"""The core API of xRegistry 1.0, which is the face at the root."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bindings.http.problems import Reply
from bindings.http.request import Head
from registry.core.places import Place
from registry.core.requests import ABSENT
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.access import READING
from registry.http.face import Call
from registry.http.replies import json_reply, options_of, refusal_of, reply_of
from registry.http.requests import asked, repeated_keys, request_of

DISCOVERY: Final = (b"/.well-known/xregistry", b"/.xregistry")
"""Where clients ask which registries there are (core ``spec.md``, xRegistry Discovery)."""


class CoreFace:
    """See :class:`registry.http.face.Face`."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: Call) -> Reply:
        """Carry a request out."""
        place: Place | str | None = None
        try:
            if call.head.path in DISCOVERY and call.head.method in READING:
                return json_reply(call.url, {"registries": [call.url]})
            given = asked(call.head)
            place = self._service.find(given.segments, given.path)
            if call.head.method == "OPTIONS":
                return options_of(call.url, place)
            request = request_of(call.head, call.body, given, place, call.url, call.writer, call.pages, call.max_answer)
            answer = self._service.perform(request)
            if request.verb != "read" and request.document is None and request.body is not ABSENT:
                answer = replace(answer, findings=(*repeated_keys(call.body), *answer.findings))
            return reply_of(call.head, request, place, answer)
        except Refusal as refusal:
            return refusal_of(call.head, call.url, refusal, place)

    def refused(self, head: Head, url: str, refusal: Refusal) -> Reply:
        """Report a refusal that concerns no place."""
        return refusal_of(head, url, refusal)
