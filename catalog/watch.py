"""Has the catalog changed? The caller asks when it likes; there is no thread in here.

All that the last load has read is looked at, not the sources only: documents that they refer to, schemas, folders, and
every page of a registry. URLs are asked whether they changed, which costs a 304.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from catalog.declared import Declarations, Place
from catalog.documents.doubting import MAX_SHRINK, Doubtful, Sizes, candidates_of, first_of, sizes_of, unfinished
from catalog.documents.fetching import Cache, Fetcher
from catalog.documents.logins import Logins
from catalog.documents.reach import Reach
from catalog.errors import DocumentError
from catalog.findings import Findings
from catalog.linting.rules import refusing
from catalog.load import load
from catalog.model import Catalog, Finding

LOOK_SECONDS: Final = 45.0
"""What one look may wait for the network in all: less than a supervisor that waits for it is given."""
WAKE_SECONDS: Final = 0.5
"""Time between the starts of two looks, however often the watcher is woken."""


@dataclass(frozen=True, slots=True)
class RefusedCatalog:
    """A changed catalog that must not take effect, with all that is wrong with it; the last good one goes on."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that caused the refusal."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A catalog that cannot be reached for now, or refers to what cannot; the last good one goes on until it can.

    ``uris`` are what is waited for.
    """

    uris: tuple[str, ...]


def new_errors(catalog: Catalog, known: Sequence[Finding], *, elsewhere: bool = False) -> tuple[Finding, ...]:
    """Return the refusing errors that are not among those known: what a change made worse, not what was bad before.

    With *elsewhere* those known are of other files.
    """
    old = {("" if elsewhere else finding.file, finding.rule, finding.message) for finding in known}
    return tuple(
        finding
        for finding in refusing(catalog.findings)
        if ("" if elsewhere else finding.file, finding.rule, finding.message) not in old
    )


def _fit(catalog: Catalog) -> tuple[Finding, ...]:
    return ()


class CatalogWatcher:
    """Compares what the last load has read with what is there now, at most once per *interval* seconds.

    A catalog is refused for errors that the one in use does not have, and waits for what it refers to and cannot be
    reached (JUDGING.md#epochs-and-reloads); both only while another is in use.

    A change that looks unfinished (:mod:`catalog.documents.doubting`) is taken when the next look finds the same. One
    that is *unfit* for whoever uses the catalog is refused like one with errors.

    A change is answered once, as a catalog, a refusal or a wait; sources that cannot be read are refused once, or
    waited for where they are only unreachable, and looked at again every time. What changes without changing the
    meaning (the epoch) is answered with None, but for the first good catalog after a refusal or such a wait.
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        interval: float,
        *,
        network: bool = False,
        allow: Sequence[str] = (),
        logins: Logins | None = None,
        base_uri: str = "",
        max_shrink: float = MAX_SHRINK,
        current: Catalog | None = None,
        elsewhere: bool = False,
        unfit: Callable[[Catalog], tuple[Finding, ...]] = _fit,
        unread: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch *sources*; *current* is the catalog in use, so that an unchanged first look says nothing.

        With *elsewhere* it was read from other sources, and is not to give way to these. With *unread* the sources
        could not be read when it was taken into use: the first good look is told, changed or not.

        *allow* and *base_uri* are as for :func:`catalog.load.load`, *logins* are what registries are shown.
        A catalog, a document or an endpoint of it that lost more than *max_shrink* of its definitions (0 to 1) is taken
        at a second look only. *unfit* says why a changed catalog must not take effect, beside its own errors.
        """
        self._sources = tuple(sources)
        self._interval = interval
        self._network = network
        self._base_uri = base_uri
        self._clock = clock
        self._cache = Cache(clock=clock)
        self._reach = Reach(allow)
        self._logins = logins if logins is not None else Logins()
        self._epoch = current.epoch if current is not None else None
        self._tolerated: Sequence[Finding] = current.findings if current is not None else ()
        self._seen: Mapping[str, str] | None = None
        self._trouble = ""
        self._refused = unread
        self._awaited: tuple[str, ...] = ()
        self._elsewhere = elsewhere
        self._unfit = unfit
        self._max_shrink = max_shrink
        self._sizes = Sizes()
        if current is not None:
            self._sizes = Sizes(len(current.definitions), {}, candidates_of(current))
        self._held: tuple[Catalog, Sizes] | None = None
        self._doubts: tuple[str, ...] = ()
        self._due = clock()
        self._began = self._due - WAKE_SECONDS

    @property
    def due(self) -> bool:
        """Whether a poll would look; before that it returns None."""
        return self._clock() >= self._due

    def wake(self) -> None:
        """Make the next look due at once, since somebody says that the catalog changed; any thread may say so.

        A flood of calls makes one look each ``WAKE_SECONDS``. One that comes during a look makes another after it.
        """
        self._due = min(self._due, max(self._clock(), self._began + WAKE_SECONDS))

    @property
    def awaited(self) -> tuple[str, ...]:
        """What the catalog that was found last waits for; empty when it does not wait."""
        return self._awaited

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the catalog that was found last waits for a second look; empty when it does not."""
        return self._doubts

    def poll(self) -> Catalog | RefusedCatalog | Waiting | Doubtful | None:
        """Return a new catalog, the refusal of one with errors, what one waits for, why one is doubted, or None.

        None when nothing changed, when it is too early, and when a file is being written just now.
        """
        if not self.due:
            return None
        self._began = self._clock()
        self._due = self._began + self._interval
        fetcher = self._fetcher()
        if self._seen is not None and not fetcher.changed(self._seen):
            return self._second_look()
        before, declarations = self._seen or {}, Declarations()
        self._held, self._doubts = None, ()
        try:
            catalog = load(self._sources, fetcher=fetcher, declarations=declarations, base_uri=self._base_uri)
        except DocumentError as error:
            self._seen = fetcher.seen
            return self._unreadable(error)
        if self._fetcher().changed(fetcher.seen, local=True):
            return None  # it is being written just now; the next look decides
        self._seen = fetcher.seen
        self._trouble = ""
        sizes = sizes_of(catalog, declarations)
        self._doubts = self._doubted(catalog, sizes, fetcher, before)
        if self._doubts:
            self._held = (catalog, sizes)
            return Doubtful(self._doubts)
        return self._judged(catalog, sizes)

    def _doubted(self, catalog: Catalog, sizes: Sizes, fetcher: Fetcher, before: Mapping[str, str]) -> tuple[str, ...]:
        """Return why a catalog that could take effect needs a second look."""
        if self._epoch in (None, catalog.epoch) or catalog.pending or self._new_errors(catalog):
            return ()
        doubts = (*sizes.shrunk(self._sizes, self._max_shrink), *unfinished(fetcher, before))
        # What is refused anyway is said at once.
        emptied = () if doubts or self._unfit(catalog) else sizes.emptied(self._sizes, self._max_shrink)
        return first_of((*doubts, *emptied))

    def _second_look(self) -> Catalog | RefusedCatalog | Waiting | None:
        """Take what was doubted, since it is still the same."""
        if self._held is None:
            return None
        held, self._held, self._doubts = self._held, None, ()
        return self._judged(*held)

    def _judged(self, catalog: Catalog, sizes: Sizes) -> Catalog | RefusedCatalog | Waiting | None:
        errors = self._new_errors(catalog)
        if errors:
            return self._refusal(errors)
        if catalog.epoch == self._epoch and not self._refused:
            self._awaited = ()
            self._sizes = sizes
            return None
        if catalog.pending and self._epoch not in (None, catalog.epoch):
            reported, self._awaited = self._awaited, catalog.pending
            return Waiting(catalog.pending) if reported != catalog.pending else None
        if not catalog.definitions:
            # This is a slip or an outage far more often than intended, and all records would become dead letters.
            return self._refusal((Finding("", "", "error", "no-definitions", "the catalog has no usable definition"),))
        unfit = self._unfit(catalog) if self._epoch not in (None, catalog.epoch) else ()
        if unfit:
            return self._refusal(unfit)
        self._refused = False
        self._awaited = ()
        self._epoch = catalog.epoch
        if not self._elsewhere:
            self._tolerated = catalog.findings
        self._sizes = sizes
        return catalog

    def _new_errors(self, catalog: Catalog) -> tuple[Finding, ...]:
        return new_errors(catalog, self._tolerated, elsewhere=self._elsewhere)

    def _fetcher(self) -> Fetcher:
        return Fetcher(
            network=self._network,
            cache=self._cache,
            reach=self._reach,
            logins=self._logins,
            load_seconds=LOOK_SECONDS,
        )

    def _unreadable(self, error: DocumentError) -> RefusedCatalog | Waiting | None:
        if self._trouble == str(error):
            return None
        self._trouble = str(error)
        if error.transient and self._epoch is not None:
            self._refused = True
            reported, self._awaited = self._awaited, (error.file,)
            return Waiting(self._awaited) if reported != self._awaited else None
        findings = Findings()
        findings.error(Place(error.file, error.pointer), "unreadable-document", str(error), error.hint)
        return self._refusal(findings.sorted())

    def _refusal(self, findings: tuple[Finding, ...]) -> RefusedCatalog:
        """Note that the sources are unfit to take effect: nothing is awaited, and the next fit catalog is reported."""
        self._refused = True
        self._awaited = ()
        return RefusedCatalog(findings)
