"""Reading dead letters back from the sinks that took them, as a stream.

Every sink gives the same letter for the same record, but for its name (and for texts that a header's cap cut off).
Reading gives the letters that were there when it began, and perhaps later ones; sinks may be written to meanwhile.
Letters that retention removes meanwhile are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, cast

from router.errors import ConfigError
from router.letters.letter import Letter
from router.settings import Settings, letter_sinks

_ID: Final = re.compile(r"[0-9a-f]{32}")


def read_letters(settings: Settings, *, sinks: Sequence[str] = (), bodies: bool = True) -> Iterator[Letter]:
    """Yield the dead letters of these sinks (none: all that can be read back), each id once, oldest first per sink.

    Without *bodies*, tables are not asked for them, which is much faster; letters may then have none.

    Raises:
        ConfigError: a sink is not one of dead letters, or cannot be read back; raised at once, before the first letter.
        SinkError: a sink cannot be read now.
    """
    return _once(settings, readable_sinks(settings, sinks), bodies)


def readable_sinks(settings: Settings, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the sinks to read dead letters from.

    Raises:
        ConfigError: one of *wanted* takes no dead letters or cannot be read back, or no sink at all can.
    """
    takers = letter_sinks(settings)
    readable = tuple(name for name in takers if settings.sinks[name].readable)
    others = (
        f"read {', '.join(readable)} instead" if readable else "add a table, a folder or a topic to dead_letters.sinks"
    )
    for name in wanted:
        if name not in takers:
            raise ConfigError(f"sink {name} takes no dead letters", key="dead_letters.sinks", hint=others)
        if name not in readable:
            raise ConfigError(f"dead letters in sink {name} cannot be read back", key=f"sinks.{name}", hint=others)
    if not readable:
        names = ", ".join(takers)
        raise ConfigError(f"dead letters in {names} cannot be read back", key="dead_letters.sinks", hint=others)
    return tuple(dict.fromkeys(wanted)) or readable


def _once(settings: Settings, names: Iterable[str], bodies: bool) -> Iterator[Letter]:
    # Ids are 32 hexadecimal digits; as integers they take a third of the room.
    seen: set[int | str] = set()
    for name in names:
        for letter in _read(name, settings, bodies):
            key = _compact(letter.id)
            if key not in seen:
                seen.add(key)
                yield letter


def _read(name: str, settings: Settings, bodies: bool) -> Iterator[Letter]:
    sink = settings.sinks[name]
    read = resolve_name(sink.reader)
    return cast(Iterator[Letter], read(name, sink, Path(settings.state) / "spill", bodies=bodies))


def _compact(letter: str) -> int | str:
    return int(letter, 16) if _ID.fullmatch(letter) else letter
