"""Which of many bodies may be events in plain JSON; the exact answer is :func:`bindings.events.looks_like_event`."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from bindings.columns.texts import beginnings, raw
from bindings.entries import Bool

_OPENING: Final = np.frombuffer(b"{ \t\r\n", np.uint8)
"""What an object begins with, blanks before it too."""
MENTIONS: Final = (b"specversion", b"\\u")
"""One of them is in every event in JSON: its member ``specversion``, or what that name may be written with."""


def may_be_events(bodies: pa.BinaryArray) -> Bool:
    """Tell which bodies may be a JSON object with the member ``specversion``; never False for one that is."""
    mentions = np.zeros(len(bodies), bool)
    objects = np.isin(beginnings(bodies), _OPENING)
    if objects.any():
        chosen = bodies.filter(pa.array(objects))
        data, offsets = raw(chosen)
        text = data[offsets[0] : offsets[-1]].tobytes()
        places = np.flatnonzero(objects)
        for sought in MENTIONS:
            at = text.find(sought)
            while at >= 0:
                row = int(np.searchsorted(offsets, at + offsets[0], "right")) - 1
                mentions[places[row]] = True
                at = text.find(sought, int(offsets[row + 1] - offsets[0]))
    return mentions
