"""The last hour as small charts: SVG that the router draws, so that a page shows it without a script.

Nothing in them comes from catalogs or records. They follow the browser's choice of light or dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from bindings.http.request import Reply
from router.overview.picture import HOUR_POINTS, POINT_SECONDS, Point

WIDE, HIGH, TOP, BOTTOM = 320, 96, 16, 14
SMALL: Final = "small"
"""The parameter with which a chart has no text, for a cell of a table."""
_STYLE: Final = (
    ":root{color-scheme:light dark}text{font:11px system-ui,sans-serif;fill:#56606b}"
    ".a{fill:none;stroke:#a3561c;stroke-width:1.6}.b{fill:none;stroke:#0b5c8a;stroke-width:1.6}"
    ".f{fill:#0b5c8a;opacity:.16}.g{stroke:#d9d8d2;stroke-width:1}"
    ".ta{fill:#a3561c}.tb{fill:#0b5c8a}@media(prefers-color-scheme:dark){text{fill:#a3adb7}.ta{fill:#e5a36b}.tb{fill:#7cc0ea}.a{stroke:#e5a36b}.b{stroke:#7cc0ea}.f{fill:#7cc0ea}"
    ".g{stroke:#343c44}}"
)
_HEADERS: Final = (
    (b"content-type", b"image/svg+xml"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_SHOWN: Final = {False: f"0 0 {WIDE} {HIGH}", True: f"0 {TOP - 2} {WIDE} {HIGH - TOP - BOTTOM + 4}"}
"""The part of a chart that is shown: of a small one what is between the lines of text."""
Value = Callable[[Point], float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its lines by what they are called, the second of them filled, and how a value is written."""

    lines: tuple[tuple[str, Value], ...]
    text: Callable[[float], str]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"


CHARTS: Final = {
    "records": Chart((("arriving", lambda at: at.arriving), ("finished", lambda at: at.finished)), _count),
    "lag": Chart((("lag", lambda at: at.lag),), _count),
    "oldest": Chart((("oldest", lambda at: at.oldest),), _seconds),
    "latency": Chart((("95 % within", lambda at: at.latency),), _seconds),
}
"""The charts there are, by the names of their files."""


def drawn(name: str, points: Sequence[Point], *, small: bool) -> Reply:
    """Return a chart as a picture; a *small* one has no text but its title."""
    return Reply(HTTPStatus.OK, _HEADERS, svg(CHARTS[name], points, small=small).encode())


def svg(chart: Chart, points: Sequence[Point], *, small: bool = False) -> str:
    """Return a chart: the newest point is at its right edge, an hour ago at its left."""
    values = [[value(point) for point in points] for _, value in chart.lines]
    most = max((each for line in values for each in line if each is not None), default=0.0)
    told = [
        f"{label} {'unknown' if not line or line[-1] is None else chart.text(line[-1])}"
        for (label, _), line in zip(chart.lines, values, strict=True)
    ]
    floor = HIGH - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{_SHOWN[small]}" role="img">',
        f"<title>{', '.join(told)}; at most {chart.text(most)} in the last hour</title><style>{_STYLE}</style>",
        f'<line class="g" x1="0" y1="{TOP}" x2="{WIDE}" y2="{TOP}"/>',
        f'<line class="g" x1="0" y1="{floor}" x2="{WIDE}" y2="{floor}"/>',
    ]
    for place, line in enumerate(values):
        # A single line is filled as the second of two is.
        filled = place == len(values) - 1
        for run in _runs(line):
            spots = [_spot(at, value, len(line), most) for at, value in run]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
            if filled:
                parts.append(f'<path class="f" d="M{spots[0][0]:.1f} {floor}L{path}L{spots[-1][0]:.1f} {floor}Z"/>')
            parts.append(f'<path class="{"b" if filled else "a"}" d="M{path}h.1"/>')
    if small:
        return "".join((*parts, "</svg>"))
    minutes = round(HOUR_POINTS * POINT_SECONDS / 60)
    kinds = ("ta", "tb")[-len(told) :]
    named = ", ".join(f'<tspan class="{kind}">{text}</tspan>' for kind, text in zip(kinds, told, strict=True))
    parts += [
        f'<text x="0" y="11">{named}</text>',
        f'<text x="0" y="{HIGH - 2}">{minutes} min ago</text>',
        f'<text x="{WIDE}" y="{HIGH - 2}" text-anchor="end">now</text>',
        f'<text x="{WIDE}" y="11" text-anchor="end">at most {chart.text(most)}</text></svg>',
    ]
    return "".join(parts)


def _runs(line: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Yield the points that are known, as far as they follow each other."""
    run: list[tuple[int, float]] = []
    for at, value in enumerate(line):
        if value is not None:
            run.append((at, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _spot(at: int, value: float, count: int, most: float) -> tuple[float, float]:
    x = WIDE * (HOUR_POINTS - count + at) / (HOUR_POINTS - 1)
    return x, HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * (value / most if most else 0.0)
