"""The dead letter of a record that could not be judged or written, made without judging or mapping it.

It is ``undecodable``, its detail names the fault, and it goes where its endpoint's letters go. Only JVM expressions and
the rendering of the native record touch it; *bare*, the native record has no properties but its place, and what the
source gave is kept whole in ``state/spill``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from router.judging.kinds import Kind
from router.judging.plan import Plan
from router.judging.stages import MATCHED, RAW_COLUMNS, letter_id
from router.judging.tally import DEAD_LETTER, Tally
from router.routing.limits import LetterLimits
from router.settings.names import dead_letter_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON: Final = "undecodable"
_PLACE: Final[dict[str, tuple[str, ...]]] = {
    "kafka": ("topic", "partition", "offset", "timestamp", "timestampType", "value"),
    "inbox": ("endpoint", "protocol", "received", "body", "position"),
}
"""What a bare letter keeps of its row."""


def condemned(rows: DataFrame, kind: Kind, plan: Plan, fault: str, *, bare: bool = False) -> tuple[DataFrame, Tally]:
    """Return the one row in *rows* as the outcome of a dead letter, and its count.

    *rows* are those of :func:`router.judging.stages.prepared`. There is none when the source no longer has the record;
    then there is no outcome either.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    endpoint = _endpoint(rows, kind, plan)
    route = plan.routes.letters(endpoint, REASON)
    size: Column = F.lit(0)
    for name in ("key", "value") if kind == "kafka" else ("body",):
        size = size + F.coalesce(F.length(name), F.lit(0))
    spilled = size > F.lit(LetterLimits(plan.settings).of(route))
    given: dict[str, Column] = {
        "endpoint": F.lit(endpoint),
        "reason": F.lit(REASON),
        "detail": F.lit(fault),
        "replaced": F.lit(False),
        "route": F.lit(route),
        "spilled": spilled,
    }
    for name, template in plan.routes.letter_topics.items():
        given[f"letters_{name}"] = F.lit(template.expand(dead_letter_values(endpoint, REASON), escape="_"))
    members = (
        given.get(field.name, F.lit(None)).cast(from_arrow_type(field.type)).alias(field.name)
        for field in plan.judge.outputs.type
    )
    kept = _PLACE[kind] if bare else RAW_COLUMNS[kind]
    raw = (
        (F.col(name) if name in kept else F.lit(None).cast(rows.schema[name].dataType)).alias(name)
        for name in RAW_COLUMNS[kind]
    )
    tally = Tally()
    for spills, length in rows.select(spilled, size).collect():
        tally.add(Tally(spilled=int(spills), rows=1))
        tally.route(endpoint, route, 1, length)
        tally.records[(endpoint, DEAD_LETTER, REASON)] += 1
    return rows.select(*raw, F.struct(*members).alias(MATCHED)), tally


def raw_records(rows: DataFrame, kind: Kind, query: str) -> Iterator[tuple[str, bytes]]:
    """Yield letter and what the source gave, whole, as JSON that the JVM writes; bytes are in base64."""
    from pyspark.sql import functions as F

    position = F.concat_ws("-", "topic", "partition", "offset") if kind == "kafka" else F.col("position")
    lines = rows.select(letter_id(kind, query, position), F.to_json(F.struct(*RAW_COLUMNS[kind])))
    for letter, line in lines.toLocalIterator():
        yield letter, line.encode("utf-8", "surrogatepass")


def _endpoint(rows: DataFrame, kind: Kind, plan: Plan) -> str:
    """Return the endpoint whose letter it is: the one it came by, or the first that reads its topic; "" for none."""
    channel = next((row[0] for row in rows.select("topic" if kind == "kafka" else "endpoint").collect()), None)
    if kind != "kafka":
        return channel or ""
    return next((source.endpoint for source in plan.sources if source.topic == channel), "")
