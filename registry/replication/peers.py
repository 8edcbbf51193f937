"""One round with one peer: changes are taken from it or given to it, a page at a time, from where we have got."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from catalog.documents.fetching import Fetcher
from catalog.documents.logins import Logins
from catalog.documents.sending import post
from catalog.errors import DocumentError
from registry.core.service import RegistryService
from registry.replication.applying import MAX_REPORTED, Applier, Author
from registry.replication.changes import Changes, decoded, encoded
from registry.replication.feed import PAGE, changes_after
from registry.store.marks import Marks

_logger = logging.getLogger(__name__)
Direction = Literal["pull", "push", "both"]
_OK: Final = 200
_LAST_POSITION: Final = 2**63 - 1
_MOST_CHANGES: Final = 2_000
"""Changes of a page that are looked at: more than a peer gives, of whatever version it is."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another catalog, by the URL of its message catalog; ``interval`` are seconds between two rounds."""

    url: str
    direction: Direction = "both"
    interval: float = 10.0
    logins: Logins = field(default_factory=Logins)

    @property
    def directions(self) -> tuple[Literal["pull", "push"], ...]:
        """What a round with it does, in this order."""
        return ("pull", "push") if self.direction == "both" else (self.direction,)


@dataclass(slots=True)
class Round:
    """What a round did: changes that went over, those that changed something, and those that were refused.

    ``reported`` has the first refused changes, each with the reason. ``answered`` says that the peer took a page, and
    ``whole`` that it takes changes of all kinds of entities.
    ``renewed`` says that the peer is another catalog than before, which counts from its own start.
    """

    sent: int = 0
    applied: int = 0
    refused: int = 0
    reported: list[tuple[str, str]] = field(default_factory=list)
    answered: bool = False
    whole: bool = False
    renewed: bool = False

    def add(self, sent: int, applied: int, refused: int, reported: Sequence[tuple[str, str]]) -> None:
        """Add the outcome of a page."""
        self.sent += sent
        self.applied += applied
        self.refused += refused
        self.reported += reported[: MAX_REPORTED - len(self.reported)]


class _TooLarge(DocumentError):
    """A peer takes no page of that size."""


class _Answer(msgspec.Struct):
    catalog: str
    applied: int
    refused: list[tuple[str, str]]
    refusedcount: int = 0
    """Peers of earlier releases leave it out."""
    whole: bool = False
    """Whether it takes other changes than those of messages, which peers of earlier releases do not."""


class Exchange:
    """Rounds with peers. How far we have got with each is stored in one transaction with what was taken from it."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def run(
        self,
        peer: Peer,
        direction: Literal["pull", "push"],
        stopping: threading.Event | None = None,
        done: Round | None = None,
    ) -> Round:
        """Go on from where the last round ended until there is nothing more, or after a page when *stopping* is set.

        What is done is added to *done*, page by page.

        Raises:
            DocumentError: the peer cannot be reached, refuses us, or is no catalog; what went before stays.
        """
        done = Round() if done is None else done
        more = True
        while more and not (stopping is not None and stopping.is_set()):
            more = (self._pull if direction == "pull" else self._push)(peer, done)
        return done

    def _pull(self, peer: Peer, done: Round) -> bool:
        name = f"pull all {peer.url}"  # a peer of which only messages were taken before is read from its start
        with self._service.session(writing=False) as session:
            catalog, position = Marks(session.reader.connection).reached(name)
        page = self._fetched(peer, position)
        if page.catalog != catalog:
            if catalog:
                _renew(peer, done)
                page = self._fetched(peer, 0)
            position = 0
        if page.position == position and not page.more:
            return False
        if page.more and page.position <= position:
            raise DocumentError(f"{peer.url} gives the same changes again and again", file=peer.url)
        with self._service.session(writing=True) as session:
            applier = Applier(session, Author(f"replication of {peer.url}", True), self._authority)
            if applier.marks.catalog == page.catalog:
                raise DocumentError(f"{peer.url} is this very catalog", file=peer.url, hint="name another one")
            taken = applier.apply(page)
            applier.marks.reach(name, page.catalog, page.position)
        done.add(len(page.changes), taken.applied, taken.refused, taken.reported)
        return page.more

    def _push(self, peer: Peer, done: Round) -> bool:
        if not done.answered:
            self._begin(peer, done)
            return True
        name = _pushed(peer, whole=done.whole)
        for limit in (PAGE, 1):
            with self._service.session(writing=False) as session:
                catalog, position = Marks(session.reader.connection).reached(name)
                page = changes_after(session.reader, position, self._authority, limit, whole=done.whole)
            if page.position == position:
                return False
            try:
                answer = self._sent(peer, page)
                break
            except _TooLarge:
                _logger.debug("%s takes no page of %d changes", peer.url, len(page.changes))
        else:
            return self._pass_over(peer, page, name, done)
        changed = bool(catalog) and answer.catalog != catalog
        if changed:
            _renew(peer, done)
        with self._service.session(writing=True) as session:
            Marks(session.reader.connection).reach(name, answer.catalog, 0 if changed else page.position)
        done.add(len(page.changes), answer.applied, max(answer.refusedcount, len(answer.refused)), answer.refused)
        return page.more or changed

    def _pass_over(self, peer: Peer, page: Changes, name: str, done: Round) -> bool:
        """Go on behind a change that is too large for a peer: it is refused, as others are that it cannot take."""
        with self._service.session(writing=True) as session:
            marks = Marks(session.reader.connection)
            marks.reach(name, marks.reached(name)[0], page.position)
        subject = page.changes[-1].xid or page.changes[-1].group
        _logger.warning("a change of %s is not taken: it is too large for %s", subject, peer.url)
        done.add(len(page.changes), 0, len(page.changes), [(subject, "it is too large for the peer")])
        return page.more

    def _begin(self, peer: Peer, done: Round) -> None:
        """Push nothing: the answer says whether the peer is there, what it takes, and which catalog it is."""
        with self._service.session(writing=False) as session:
            ours = Marks(session.reader.connection).catalog
        answer = self._sent(peer, Changes(catalog=ours, authority=self._authority, position=0, changes=[]))
        if answer.catalog == ours:
            raise DocumentError(f"{peer.url} is this very catalog", file=peer.url, hint="name another one")
        done.whole, done.answered = answer.whole, True
        name = _pushed(peer, whole=done.whole)
        with self._service.session(writing=False) as session:
            catalog, _ = Marks(session.reader.connection).reached(name)
        if catalog and answer.catalog != catalog:
            _renew(peer, done)
            with self._service.session(writing=True) as session:
                Marks(session.reader.connection).reach(name, answer.catalog, 0)

    @property
    def _authority(self) -> str:
        return self._service.authority

    def _fetched(self, peer: Peer, position: int) -> Changes:
        by = Fetcher(network=True, logins=peer.logins)
        url = f"{peer.url}?changes={position}&whole"
        page = decoded(by.fetch(url))
        if page is None or len(page.changes) > _MOST_CHANGES or not 0 <= page.position <= _LAST_POSITION:
            hint = "give the URL of the message catalog of an xrouter registry"
            raise DocumentError(f"{by.address(url)} gives no changes of a catalog", file=peer.url, hint=hint)
        return page

    def _sent(self, peer: Peer, page: Changes) -> _Answer:
        by = Fetcher(network=True, logins=peer.logins)
        receipt = post(peer.url, encoded(page), by, note="xRouter-Finding")
        if receipt.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise _TooLarge(f"a page is too large for {by.address(peer.url)}", file=peer.url)
        if receipt.status != _OK:
            text = f"{by.address(peer.url)} takes no changes: it answers {receipt.status}"
            raise DocumentError(text, file=peer.url, hint="check the URL, and whether we may write there")
        try:
            return msgspec.json.decode(receipt.data, type=_Answer)
        except msgspec.MsgspecError as error:
            hint = "give the URL of the message catalog of an xrouter registry"
            raise DocumentError(f"{by.address(peer.url)} is no catalog", file=peer.url, hint=hint) from error


def _pushed(peer: Peer, *, whole: bool) -> str:
    """Return the name under which it is kept how far a peer was pushed to: only of messages, or of all."""
    return f"push all {peer.url}" if whole else f"push {peer.url}"


def _renew(peer: Peer, done: Round) -> None:
    """Note that a peer is another catalog, which may happen once in a round."""
    if done.renewed:
        raise DocumentError(f"{peer.url} is another catalog each time", file=peer.url)
    done.renewed = True
