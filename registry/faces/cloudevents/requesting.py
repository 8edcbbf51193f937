"""Core requests that carry out what a client of this face asks for, all of them in one session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.documents import Given
from registry.core.places import Place
from registry.core.requests import ABSENT, Flags, Request, Verb
from registry.core.service import Session
from registry.errors import Refusal
from registry.faces.cloudevents.answers import Headers
from registry.faces.cloudevents.documents import JSON
from registry.http.face import Call
from registry.http.replies import MAX_FINDINGS, finding_header
from registry.http.requests import tags


class Requester:
    """Makes requests in the name of the sender of a call, and keeps what lint says of them."""

    def __init__(self, session: Session, call: Call) -> None:
        self._session = session
        self._call = call
        self._findings: list[tuple[bytes, bytes]] = []

    def perform(
        self,
        verb: Verb,
        place: Place,
        body: Any = ABSENT,
        *,
        document: Given | None = None,
        media: str = JSON,
        sticky: bool = False,
    ) -> None:
        """Do one thing at a place; with *sticky* the version that is written becomes the default one for good.

        Raises:
            Refusal: it cannot be done.
        """
        writer = self._call.writer
        request = Request(
            verb,
            tuple(place.xid.split("/")[1:]),
            place.xid,
            self._call.registry,
            Flags(setdefaultversionid="request") if sticky else Flags(),
            document is None,
            body,
            document,
            media,
            who=writer.name,
            administrator=writer.administrator,
            may_write=writer.may_write,
            max_answer=self._call.max_answer,
        )
        self._findings += [finding_header(each) for each in self._session.perform(request).findings]

    @property
    def findings(self) -> Headers:
        """The headers that show the first findings of lint about what was written."""
        return tuple(self._findings[:MAX_FINDINGS])

    def hold(self, tag: str, epoch: int, place: Place, *given: object) -> None:
        """Make sure that the sender knows the newest state: by conditions, and by epochs that are given.

        Raises:
            Refusal: ``precondition_failed``, ``mismatched_epoch``.
        """
        head, there = self._call.head, {"*", tag}
        matches, known = (tags(head.header(name)) for name in (b"if-match", b"if-none-match"))
        if (matches is not None and not there & set(matches)) or there & set(known or ()):
            raise Refusal("precondition_failed", place.xid)
        check_epoch(epoch, place.xid, *given)

    def absent(self, place: Place, epoch: int | None) -> None:
        """Make sure that the sender does not want to change what is not there.

        Raises:
            Refusal: ``precondition_failed``, ``mismatched_epoch``.
        """
        check_epoch(0, place.xid, epoch)
        if self._call.head.header(b"if-match") is not None:
            raise Refusal("precondition_failed", place.xid)


def check_epoch(epoch: int, xid: str, *given: object) -> None:
    """Make sure that each epoch that is given is the present one.

    Raises:
        Refusal: ``mismatched_epoch``.
    """
    for each in given:
        if each is not None and (isinstance(each, bool) or str(each) != str(epoch)):
            raise Refusal("mismatched_epoch", xid, bad_epoch=str(each), epoch=str(epoch))


def compare(body: Mapping[str, Any], name: str, xid: str, *expected: object) -> None:
    """Make sure that an identifier of a body is one of those expected.

    Raises:
        Refusal: ``mismatched_id``.
    """
    given = body.get(name)
    if given is not None and (isinstance(given, bool) or str(given) not in {str(each) for each in expected}):
        raise Refusal("mismatched_id", xid, singular=name, invalid_id=str(given), expected_id=str(expected[0]))
