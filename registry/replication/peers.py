"""One round with one peer: changes are taken from it or given to it, a page at a time, from where we have got."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec

from bindings.background import Backoff
from catalog.documents.connecting import Logins
from catalog.documents.fetching import Fetcher
from catalog.documents.registry_api import post
from catalog.findings import DocumentError
from registry.core.service import RegistryService
from registry.replication.applying import MAX_REPORTED, Applier, Author
from registry.replication.entities import (
    ChangePage,
    ReplicatedChange,
    ancestors,
    decoded,
    encoded,
    home_of,
    is_aside,
    state_at,
)
from registry.store.entities import EntityReader
from registry.store.history import MODEL, SCOPE, Mark, WriteMarks, is_by_xid

# What a catalog gives to others: its groups and versions as they are, in the order in which it learnt of them.

PAGE: Final = 200
"""Changes of one page."""
PAGE_BYTES: Final = 4 * 2**20
"""Bytes at which a page ends; one change may be larger."""


def changes_after(
    reader: EntityReader, position: int, authority: str, limit: int = PAGE, *, whole: bool = False
) -> ChangePage:
    """Return the changes after a position, a page of them; *authority* is that of what names none.

    Only with *whole* changes of other entities than messages and their groups are among them. What a resource says of
    its versions then follows them in each page that has one, so that it is known when the last of them is. The model
    comes before all that may be of its types, and once more where it is due: what it forbids is gone by then.
    """
    marks = WriteMarks(reader.connection)
    entries = marks.after(position, min(limit, PAGE) + 1)
    page, more = entries[: min(limit, PAGE)], len(entries) > min(limit, PAGE)
    live = [f"{each.owner}/versions/{each.name}" for each in page if each.owner and not each.deleted]
    versions = reader.versions_of(live)
    changes: list[ReplicatedChange] = []
    weight = 0
    model = marks.group(MODEL) if whole else None
    if model is not None and model.position > position:
        changes += filter(None, (_change_by_xid(model, reader),))
    first = len(changes)
    owners: dict[str, None] = {}
    for each in page:
        by_xid = not each.owner and is_by_xid(each.group)
        if by_xid and not whole:
            position = each.position
            continue
        owner = _resource_of(each) if by_xid and not each.deleted else ""
        change = _change_by_xid(each, reader) if by_xid else _change(each, reader, versions, authority)
        if change is not None:
            weight += len(msgspec.json.encode(change))
            full = len(changes) + len(owners) + bool(owner) >= PAGE
            if len(changes) + len(owners) > first and (full or weight > PAGE_BYTES):
                more = True
                break
            if not owner or owner != each.group:
                changes.append(change)
            if owner:
                owners[owner] = None
        position = each.position
    if owners:
        known = marks.named(list(owners))
        given = (_change_by_xid(known[xid], reader) for xid in owners if xid in known and not known[xid].deleted)
        changes += filter(None, given)
    return ChangePage(catalog=marks.catalog, authority=authority, position=position, changes=changes, more=more)


def _resource_of(mark: Mark) -> str:
    """Return the xid of the resource that a mark is of, or of whose version; '' for groups and the model."""
    return "/".join(mark.group.split("/")[:5]) if mark.group.count("/") >= 4 else ""


def _change_by_xid(mark: Mark, reader: EntityReader) -> ReplicatedChange | None:
    state = None if mark.deleted else state_at(reader, mark.group)
    if state is None and not mark.deleted:
        return None
    if state is not None and mark.group.count("/") == 4:
        state["ancestors"] = ancestors(reader, mark.group)
    return ReplicatedChange(
        group="", xid=mark.group, stamp=mark.stamp, origin=mark.origin, seen=mark.seen, attributes=state
    )


def _change(mark: Mark, reader: EntityReader, versions: Any, authority: str) -> ReplicatedChange | None:
    if not mark.owner:
        name = mark.group.removeprefix(SCOPE)
        group = None if mark.deleted else reader.group(mark.group)
        if is_aside(name) or (group is None and not mark.deleted):
            return None  # each catalog makes those groups by itself
        attributes = None if group is None else group.attributes
        return ReplicatedChange(group=name, stamp=mark.stamp, origin=mark.origin, seen=mark.seen, attributes=attributes)
    version = versions.get(f"{mark.owner}/versions/{mark.name}")
    if version is None and not mark.deleted:
        return None
    controls = mark.authority or authority
    group_name, name = home_of(mark.owner, controls)
    return ReplicatedChange(
        group=group_name,
        definition=name,
        uid=mark.uid,
        name=mark.name,
        stamp=mark.stamp,
        origin=mark.origin,
        seen=mark.seen,
        authority=controls,
        createdat="" if mark.deleted else version.createdat,
        attributes=None if mark.deleted else version.attributes,
    )


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


class PeerExchange:
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
            catalog, position = WriteMarks(session.reader.connection).reached(name)
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
                catalog, position = WriteMarks(session.reader.connection).reached(name)
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
            WriteMarks(session.reader.connection).reach(name, answer.catalog, 0 if changed else page.position)
        done.add(len(page.changes), answer.applied, max(answer.refusedcount, len(answer.refused)), answer.refused)
        return page.more or changed

    def _pass_over(self, peer: Peer, page: ChangePage, name: str, done: Round) -> bool:
        """Go on behind a change that is too large for a peer: it is refused, as others are that it cannot take."""
        with self._service.session(writing=True) as session:
            marks = WriteMarks(session.reader.connection)
            marks.reach(name, marks.reached(name)[0], page.position)
        subject = page.changes[-1].xid or page.changes[-1].group
        _logger.warning("a change of %s is not taken: it is too large for %s", subject, peer.url)
        done.add(len(page.changes), 0, len(page.changes), [(subject, "it is too large for the peer")])
        return page.more

    def _begin(self, peer: Peer, done: Round) -> None:
        """Push nothing: the answer says whether the peer is there, what it takes, and which catalog it is."""
        with self._service.session(writing=False) as session:
            ours = WriteMarks(session.reader.connection).catalog
        answer = self._sent(peer, ChangePage(catalog=ours, authority=self._authority, position=0, changes=[]))
        if answer.catalog == ours:
            raise DocumentError(f"{peer.url} is this very catalog", file=peer.url, hint="name another one")
        done.whole, done.answered = answer.whole, True
        name = _pushed(peer, whole=done.whole)
        with self._service.session(writing=False) as session:
            catalog, _ = WriteMarks(session.reader.connection).reached(name)
        if catalog and answer.catalog != catalog:
            _renew(peer, done)
            with self._service.session(writing=True) as session:
                WriteMarks(session.reader.connection).reach(name, answer.catalog, 0)

    @property
    def _authority(self) -> str:
        return self._service.authority

    def _fetched(self, peer: Peer, position: int) -> ChangePage:
        by = Fetcher(network=True, logins=peer.logins)
        url = f"{peer.url}?changes={position}&whole"
        page = decoded(by.fetch(url))
        if page is None or len(page.changes) > _MOST_CHANGES or not 0 <= page.position <= _LAST_POSITION:
            hint = "give the URL of the message catalog of an xrouter registry"
            raise DocumentError(f"{by.address(url)} gives no changes of a catalog", file=peer.url, hint=hint)
        return page

    def _sent(self, peer: Peer, page: ChangePage) -> _Answer:
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


# Replication beside a server: a thread for each peer begins a round at intervals, and pauses longer after faults.
#
# One process of those that share a database is enough; several do no harm, since each round takes up where any has got.

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 300.0


@dataclass(slots=True)
class PeerTally:
    """The counts of one direction with one peer, since the start.

    ``alike`` is when the last completed round began, which took or gave all that there was then; before the first it is
    the start. ``success`` is when that round ended, 0 without one. Both are in seconds since 1970.
    """

    alike: float
    success: float = 0.0
    changes: int = 0
    applied: int = 0
    refused: int = 0
    failures: int = 0


class Replication:
    """Keeps up with peers until it is stopped. ``tallies`` are by URL and direction; any thread may read them."""

    def __init__(self, service: RegistryService, peers: Sequence[Peer]) -> None:
        self.tallies: Final = {
            (peer.url, direction): PeerTally(time.time()) for peer in peers for direction in peer.directions
        }
        self._exchange = PeerExchange(service)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(each,), name=f"replication-{number}", daemon=True)
            for number, each in enumerate(peers)
        ]

    def start(self) -> None:
        """Begin."""
        for each in self._threads:
            each.start()

    def end(self) -> None:
        """Have all rounds end after the pages that are under way."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Wait for the rounds to have ended; all together have so many seconds."""
        deadline = time.monotonic() + seconds
        for each in self._threads:
            if each.is_alive():
                each.join(max(0.0, deadline - time.monotonic()))

    def _follow(self, peer: Peer) -> None:
        backoff = Backoff(min(_FIRST_PAUSE, peer.interval), max(_LONGEST_PAUSE, peer.interval))
        failing = False
        tally = self.tallies[peer.url, peer.directions[0]]
        while not self._stopping.is_set():
            try:
                for direction in peer.directions:
                    tally = self.tallies[peer.url, direction]
                    self._round(peer, direction, tally)
            except DocumentError as error:
                tally.failures += 1
                pause = backoff.pause()
                # The first of several faults is a warning; the others are for debugging.
                level = logging.DEBUG if failing else logging.WARNING
                _logger.log(level, "replication stands still: %s; next try in %.1f s", error, pause)
                failing = True
            except Exception:  # nobody waits for this thread, so its end would go unnoticed
                tally.failures += 1
                pause = backoff.pause()
                _logger.exception("replication with %s failed; next try in %.1f s", peer.url, pause)
                failing = True
            else:
                if failing:
                    _logger.warning("replication with %s goes on", peer.url)
                failing, pause = False, peer.interval
                backoff.reset()
            self._stopping.wait(pause)

    def _round(self, peer: Peer, direction: Literal["pull", "push"], tally: PeerTally) -> None:
        begun, done = time.time(), Round()
        try:
            self._exchange.run(peer, direction, self._stopping, done)
        finally:
            tally.changes += done.sent
            tally.applied += done.applied
            tally.refused += done.refused
        if not self._stopping.is_set():
            tally.alike, tally.success = begun, time.time()
        if done.sent:
            figures = (direction, peer.url, done.sent, done.applied, done.refused)
            _logger.info("replication: %s %s, changes %d, new %d, refused %d", *figures)
