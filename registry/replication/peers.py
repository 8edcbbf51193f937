"""Replication with peers: pull or push changes, a page at a time, from the last position."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from bindings.background import Backoff
from catalog.documents.connecting import Logins
from catalog.documents.fetching import Fetcher
from catalog.documents.registry_api import post_json
from catalog.findings import DocumentError
from registry.core.requests import RequestSender
from registry.core.service import RegistryService
from registry.replication.applying import MAX_REPORTED, ChangeApplier
from registry.replication.entities import (
    ChangePage,
    ReplicatedChange,
    entity_state,
    has_authority_suffix,
    home_of,
    parse_page,
)
from registry.store.entities import EntityReader, Version
from registry.store.history import MESSAGE_GROUPS, MODEL_XID, Mark, Marks

# Changes for other catalogs: current entities, in the order in which this catalog received them.

PAGE_CHANGES: Final = 200
"""Changes in a page."""
PAGE_BYTES: Final = 4 * 2**20
"""Size of a page in bytes; a single change may be larger."""


def changes_after(reader: EntityReader, position: int, authority: str, limit: int = PAGE_CHANGES) -> ChangePage:
    """Return a page of changes after a position; *authority* is the default of versions that name none.

    A resource's meta follows its versions in each page that has one, so that it arrives with the last of them. The
    model comes before entities of its types, and again at its own position, when the entities that it forbids have been
    deleted.
    """
    marks = Marks(reader.connection)
    entries = marks.marks_after(position, min(limit, PAGE_CHANGES) + 1)
    page, more = entries[: min(limit, PAGE_CHANGES)], len(entries) > min(limit, PAGE_CHANGES)
    live = [f"{each.owner}/versions/{each.name}" for each in page if each.owner and not each.deleted]
    versions = reader.versions_by_xid(live)
    changes: list[ReplicatedChange] = []
    weight = 0
    model = marks.mark_of(MODEL_XID)
    if model is not None and model.position > position:
        changes += filter(None, (_entity_change(model, reader),))
    first = len(changes)
    owners: dict[str, None] = {}
    for each in page:
        owner = _resource_of(each) if not each.owner and not each.deleted else ""
        change = _definition_change(each, versions, authority) if each.owner else _entity_change(each, reader)
        if change is not None:
            weight += len(msgspec.json.encode(change))
            full = len(changes) + len(owners) + bool(owner) >= PAGE_CHANGES
            if len(changes) + len(owners) > first and (full or weight > PAGE_BYTES):
                more = True
                break
            if not owner or owner != each.group:
                changes.append(change)
            if owner:
                owners[owner] = None
        position = each.position
    if owners:
        known = marks.marks_by_xid(list(owners))
        given = (_entity_change(known[xid], reader) for xid in owners if xid in known and not known[xid].deleted)
        changes += filter(None, given)
    return ChangePage(catalog=marks.catalog, authority=authority, position=position, changes=changes, more=more)


def _resource_of(mark: Mark) -> str:
    """Return the xid of the resource of a mark (of itself or of a version); '' for groups and the model."""
    return "/".join(mark.group.split("/")[:5]) if mark.group.count("/") >= 4 else ""


def _entity_change(mark: Mark, reader: EntityReader) -> ReplicatedChange | None:
    if mark.group.startswith(MESSAGE_GROUPS) and mark.group.count("/") == 2 and has_authority_suffix(mark.group):
        return None  # each catalog creates those groups itself
    state = None if mark.deleted else entity_state(reader, mark.group)
    if state is None and not mark.deleted:
        return None
    return ReplicatedChange(xid=mark.group, stamp=mark.stamp, origin=mark.origin, seen=mark.seen, attributes=state)


def _definition_change(mark: Mark, versions: Mapping[str, Version], authority: str) -> ReplicatedChange | None:
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
        createdat="" if mark.deleted or version is None else version.createdat,
        attributes=None if mark.deleted or version is None else version.attributes,
    )


_logger = logging.getLogger(__name__)
Direction = Literal["pull", "push", "both"]
_STATUS_OK: Final = 200
_LAST_POSITION: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Peer:
    """Another catalog, by the URL of its message catalog; ``interval`` is the seconds between two rounds."""

    url: str
    direction: Direction = "both"
    interval: float = 10.0
    logins: Logins = field(default_factory=Logins)

    @property
    def directions(self) -> tuple[Literal["pull", "push"], ...]:
        """The directions of a round, in order."""
        return ("pull", "push") if self.direction == "both" else (self.direction,)


@dataclass(slots=True)
class ReplicationRound:
    """The result of a round: changes transferred, changes that took effect, and refused ones.

    ``reported`` has the first refused changes with the reason. ``answered`` is whether the peer accepted a page,
    and ``renewed`` whether it is another catalog than before.
    """

    sent: int = 0
    applied: int = 0
    refused: int = 0
    reported: list[tuple[str, str]] = field(default_factory=list)
    answered: bool = False
    renewed: bool = False

    def add(self, sent: int, applied: int, refused: int, reported: Sequence[tuple[str, str]]) -> None:
        """Add the result of a page."""
        self.sent += sent
        self.applied += applied
        self.refused += refused
        self.reported += reported[: MAX_REPORTED - len(self.reported)]


class _TooLarge(DocumentError):
    """The page is too large for the peer."""


class _PushReply(msgspec.Struct):
    catalog: str
    applied: int
    refused: list[tuple[str, str]]
    refusedcount: int


class PeerExchange:
    """Pulls changes from peers in rounds. The position is stored in the same transaction as the changes."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def run(
        self,
        peer: Peer,
        direction: Literal["pull", "push"],
        stopping: threading.Event | None = None,
        result: ReplicationRound | None = None,
    ) -> ReplicationRound:
        """Continue from the last position until there are no more changes, or until *stopping* is set.

        The results are added to *result*, page by page.

        Raises:
            DocumentError: the peer is unreachable, refuses us, or is not a catalog; earlier pages stay applied.
        """
        result = ReplicationRound() if result is None else result
        more = True
        while more and not (stopping is not None and stopping.is_set()):
            more = (self._pull if direction == "pull" else self._push)(peer, result)
        return result

    def _pull(self, peer: Peer, result: ReplicationRound) -> bool:
        name = f"pull {peer.url}"
        with self._service.session(writing=False) as session:
            catalog, position = Marks(session.reader.connection).peer_position(name)
        page = self._fetch_page(peer, position)
        if page.catalog != catalog:
            if catalog:
                _record_renewal(peer, result)
                page = self._fetch_page(peer, 0)
            position = 0
        if page.position == position and not page.more:
            return False
        if page.more and page.position <= position:
            raise DocumentError(f"{peer.url} sends the same changes again and again", file=peer.url)
        with self._service.session(writing=True) as session:
            applier = ChangeApplier(session, RequestSender(f"replication of {peer.url}", True), self._own_authority)
            if applier.marks.catalog == page.catalog:
                raise DocumentError(f"{peer.url} is this catalog itself", file=peer.url, hint="use another URL")
            taken = applier.apply(page)
            applier.marks.set_peer_position(name, page.catalog, page.position)
        result.add(len(page.changes), taken.applied, taken.refused, taken.reported)
        return page.more

    def _push(self, peer: Peer, result: ReplicationRound) -> bool:
        """Push a page; the first of a round is empty, to learn whether the peer is there, and who it is."""
        name, first = f"push {peer.url}", not result.answered
        for limit in (PAGE_CHANGES, 1):
            with self._service.session(writing=False) as session:
                catalog, position = Marks(session.reader.connection).peer_position(name)
                if first:
                    ours = Marks(session.reader.connection).catalog
                    page = ChangePage(catalog=ours, authority=self._own_authority, position=position, changes=[])
                else:
                    page = changes_after(session.reader, position, self._own_authority, limit)
            if not first and page.position == position:
                return False
            try:
                answer = self._send_page(peer, page)
                break
            except _TooLarge:
                if first:  # it refuses all, and misses no change for good
                    raise
                _logger.debug("%s refused a page of %d changes as too large", peer.url, len(page.changes))
        else:
            return self._skip_change(peer, page, name, result)
        if answer.catalog == page.catalog:
            raise DocumentError(f"{peer.url} is this catalog itself", file=peer.url, hint="use another URL")
        result.answered = True
        changed = bool(catalog) and answer.catalog != catalog
        if changed:
            _record_renewal(peer, result)
        if changed or page.position != position:
            with self._service.session(writing=True) as session:
                marks = Marks(session.reader.connection)
                marks.set_peer_position(name, answer.catalog, 0 if changed else page.position)
        result.add(len(page.changes), answer.applied, answer.refusedcount, answer.refused)
        return first or page.more or changed

    def _skip_change(self, peer: Peer, page: ChangePage, name: str, result: ReplicationRound) -> bool:
        """Skip a change that is too large for a peer; it counts as refused."""
        with self._service.session(writing=True) as session:
            marks = Marks(session.reader.connection)
            marks.set_peer_position(name, marks.peer_position(name)[0], page.position)
        subject = page.changes[-1].xid or page.changes[-1].group
        _logger.warning("skipped a change of %s: it is too large for %s", subject, peer.url)
        result.add(len(page.changes), 0, len(page.changes), [(subject, "too large for the peer")])
        return page.more

    @property
    def _own_authority(self) -> str:
        return self._service.authority

    def _fetch_page(self, peer: Peer, position: int) -> ChangePage:
        by = Fetcher(network=True, logins=peer.logins)
        url = f"{peer.url}?changes={position}"
        page = parse_page(by.fetch(url))
        if page is None or not 0 <= page.position <= _LAST_POSITION:
            hint = "use the URL of the message catalog of an xrouter registry"
            raise DocumentError(f"{by.address(url)} did not return changes of a catalog", file=peer.url, hint=hint)
        return page

    def _send_page(self, peer: Peer, page: ChangePage) -> _PushReply:
        by = Fetcher(network=True, logins=peer.logins)
        receipt = post_json(peer.url, msgspec.json.encode(page), by)
        if receipt.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise _TooLarge(f"a page is too large for {by.address(peer.url)}", file=peer.url)
        if receipt.status != _STATUS_OK:
            text = f"{by.address(peer.url)} does not accept changes: it answered {receipt.status}"
            raise DocumentError(text, file=peer.url, hint="check the URL, and whether this registry may write there")
        try:
            return msgspec.json.decode(receipt.data, type=_PushReply)
        except msgspec.MsgspecError as error:
            hint = "use the URL of the message catalog of an xrouter registry"
            raise DocumentError(f"{by.address(peer.url)} is not a catalog", file=peer.url, hint=hint) from error


def _record_renewal(peer: Peer, result: ReplicationRound) -> None:
    """Record that a peer is another catalog than before, which may happen once in a round."""
    if result.renewed:
        raise DocumentError(f"{peer.url} is a different catalog at each request", file=peer.url)
    result.renewed = True


# Continuous replication: a thread for each peer runs a round at intervals, and backs off after failures.
#
# One of the processes that share a database is enough; several do no harm, since they share the positions.

_FIRST_PAUSE = 0.5
_MAX_PAUSE = 300.0


@dataclass(slots=True)
class PeerTally:
    """The counts of one direction with one peer, since the start.

    ``equal_since`` is when the last completed round began, after which both sides were equal; before the first it is
    the start. ``success`` is when that round ended, 0 without one. Both are Unix seconds.
    """

    equal_since: float
    success: float = 0.0
    changes: int = 0
    applied: int = 0
    refused: int = 0
    failures: int = 0


class Replication:
    """Replicates with peers until stopped. ``tallies`` are by URL and direction; thread-safe."""

    def __init__(self, service: RegistryService, peers: Sequence[Peer]) -> None:
        self.tallies: Final = {
            (peer.url, direction): PeerTally(time.time()) for peer in peers for direction in peer.directions
        }
        self._exchange = PeerExchange(service)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run_rounds, args=(each,), name=f"replication-{number}", daemon=True)
            for number, each in enumerate(peers)
        ]

    def start(self) -> None:
        """Begin."""
        for each in self._threads:
            each.start()

    def request_stop(self) -> None:
        """Stop all rounds after their current pages."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Wait up to *seconds* in total for all rounds to end."""
        deadline = time.monotonic() + seconds
        for each in self._threads:
            if each.is_alive():
                each.join(max(0.0, deadline - time.monotonic()))

    def _run_rounds(self, peer: Peer) -> None:
        backoff = Backoff(min(_FIRST_PAUSE, peer.interval), max(_MAX_PAUSE, peer.interval))
        failing = False
        tally = self.tallies[peer.url, peer.directions[0]]
        while not self._stopping.is_set():
            try:
                for direction in peer.directions:
                    tally = self.tallies[peer.url, direction]
                    self._run_round(peer, direction, tally)
            except DocumentError as error:
                tally.failures += 1
                pause = backoff.next_pause()
                # Only the first of several failures is a warning.
                level = logging.DEBUG if failing else logging.WARNING
                _logger.log(level, "replication failed: %s; retrying in %.1f s", error, pause)
                failing = True
            except Exception:  # nobody joins this thread, so its death would go unnoticed
                tally.failures += 1
                pause = backoff.next_pause()
                _logger.exception("replication with %s failed; retrying in %.1f s", peer.url, pause)
                failing = True
            else:
                if failing:
                    _logger.warning("replication with %s resumed", peer.url)
                failing, pause = False, peer.interval
                backoff.reset()
            self._stopping.wait(pause)

    def _run_round(self, peer: Peer, direction: Literal["pull", "push"], tally: PeerTally) -> None:
        begun, done = time.time(), ReplicationRound()
        try:
            self._exchange.run(peer, direction, self._stopping, done)
        finally:
            tally.changes += done.sent
            tally.applied += done.applied
            tally.refused += done.refused
        if not self._stopping.is_set():
            tally.equal_since, tally.success = begun, time.time()
        if done.sent:
            figures = (direction, peer.url, done.sent, done.applied, done.refused)
            _logger.info("replication: %s %s, changes %d, new %d, refused %d", *figures)
