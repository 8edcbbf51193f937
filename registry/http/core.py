"""The core API of xRegistry 1.0, which is the face at the root."""

from __future__ import annotations

from bindings.http.problems import Reply
from bindings.http.request import Head
from registry.core.places import Place
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.face import Call
from registry.http.replies import options_of, refusal_of, reply_of
from registry.http.requests import asked, request_of


class CoreFace:
    """See :class:`registry.http.face.Face`."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: Call) -> Reply:
        """Carry a request out."""
        place: Place | str | None = None
        try:
            given = asked(call.head)
            place = self._service.find(given.segments, given.path)
            if call.head.method == "OPTIONS":
                return options_of(call.url, place)
            request = request_of(call.head, call.body, given, place, call.url, call.writer, call.pages, call.max_answer)
            return reply_of(call.head, request, place, self._service.perform(request))
        except Refusal as refusal:
            return refusal_of(call.head, call.url, refusal, place)

    def refused(self, head: Head, url: str, refusal: Refusal) -> Reply:
        """Report a refusal that concerns no place."""
        return refusal_of(head, url, refusal)
