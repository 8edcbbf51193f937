"""PySpark as one writes it by hand for a catalog of the load, without a router: the peer of many definitions.

Each definition of :mod:`tests.support.load` becomes a branch of one CASE WHEN. The program does what makes the outcome:
attributes of CloudEvents in binary mode are read once for each record, types compared before patterns, context
attributes taken out, native records made events, headers of lineage added, and what meets no condition becomes a dead
letter. It was given what is known to help: no header is looked for twice, columns are built once for all batches, and
branches choose among literals, while values are taken out once for each shape of templates: a CASE WHEN whose branches
take them out is not compiled in minutes at 200 definitions, and twice as slow at 50.

Arguments: bootstrap servers, catalog, topic, prefix of the topics for events, topic of dead letters, a folder.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HEADERS: Final = "array<struct<key:string,value:binary>>"
_SOURCE: Final = "/endpoints/plant"
_EPOCH: Final = "0123456789abcdef"
_BATCH: Final = 50_000
_TEXTS: Final = {
    "specversion": "ce_specversion",
    "id": "ce_id",
    "type": "ce_type",
    "source": "ce_source",
    "subject": "ce_subject",
    "kind": "kind",
    "media": "content-type",
}
"""The headers that conditions look at."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """What stands in the program for one definition, as SQL over :func:`read_headers`."""

    condition: str
    choice: str
    shape: str
    context: str
    made: str


def read_off(catalog: Mapping[str, Any]) -> list[ByHand]:
    """Return what one would write for each definition of a catalog of :func:`tests.support.load.catalog`."""
    return [
        _of_definition(f"/messagegroups/{group}/messages/{name}", definition)
        for group, members in catalog["messagegroups"].items()
        for name, definition in members["messages"].items()
    ]


def _of_definition(xid: str, definition: Mapping[str, Any]) -> ByHand:
    attributes = definition["envelopemetadata"]
    kind = attributes["type"]["value"]
    if "protocoloptions" in definition:
        options = definition["protocoloptions"]
        template = options["key"]["value"]
        conditions = [f"kind = '{options['headers'][0]['value']}'", _matches("key_text", template)]
        conditions.append("specversion IS NULL")
        taken = _taken("key_text", template)
        subject = f"concat_ws('/', {', '.join(taken.values())})"
        made = {"specversion": "'1.0'", "id": "position", "type": "choice.type", "source": f"'{_SOURCE}'"}
        made |= {"subject": subject, "partitionkey": subject}
        made["time"] = "date_format(timestamp, \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\")"
        return _by_hand(xid, kind, conditions, {"key": template}, taken, made)
    templates = {name: told["value"] for name, told in attributes.items() if name != "type"}
    conditions = [f"type = '{kind}'", "specversion = '1.0'", "id <> ''"]
    conditions += [_matches(name, template) for name, template in templates.items()]
    context: dict[str, str] = {}
    for name, template in templates.items():
        context |= _taken(name, template)
    return _by_hand(xid, kind, conditions, templates, context, {})


def _by_hand(
    xid: str,
    kind: str,
    conditions: Sequence[str],
    templates: Mapping[str, str],
    context: Mapping[str, str],
    made: Mapping[str, str],
) -> ByHand:
    shape = ", ".join(f"{name} {template}" for name, template in templates.items())
    members = ", ".join(f"'{name}', {value}" for name, value in sorted(context.items()))
    entries = (f"named_struct('key', 'ce_{name}', 'value', CAST({value} AS BINARY))" for name, value in made.items())
    return ByHand(
        " AND ".join(conditions),
        f"named_struct('message', '{xid}', 'group', '{xid.split('/')[2]}', 'type', '{kind}', 'shape', '{shape}')",
        shape,
        f"to_json(map({members}))",
        f"CAST(array({', '.join(entries)}) AS {_HEADERS})",
    )


def _pattern(template: str) -> str:
    return "^" + re.sub(r"\{\w+\}", "([^/]+?)", template) + "$"


def _matches(column: str, template: str) -> str:
    return f"{column} RLIKE '{_pattern(template)}'"


def _taken(column: str, template: str) -> dict[str, str]:
    """Return the expression of each placeholder's value."""
    names = re.findall(r"\{(\w+)\}", template)
    return {name: f"regexp_extract({column}, '{_pattern(template)}', {at})" for at, name in enumerate(names, 1)}


def read_headers(rows: DataFrame) -> DataFrame:
    """Return records of Spark's Kafka source with the texts that conditions look at."""
    from pyspark.sql import functions as F

    def text(header: str) -> Column:
        return F.get(F.filter("headers", lambda each: each["key"] == header), F.lit(0))["value"].cast("string")

    return rows.select(
        "key",
        "value",
        "timestamp",
        "headers",
        F.concat_ws("-", "topic", "partition", "offset").alias("position"),
        F.col("key").cast("string").alias("key_text"),
        *(text(header).alias(name) for name, header in _TEXTS.items()),
    )


def case_when(definitions: Sequence[ByHand], out: str, dead: str) -> Callable[[DataFrame], DataFrame]:
    """Return what makes rows of the source records for Kafka, by one CASE WHEN with a branch for each definition."""
    from pyspark.sql import functions as F

    branches = " ".join(f"WHEN {each.condition} THEN {each.choice}" for each in definitions)
    choice = F.expr(f"CASE {branches} END").alias("choice")
    shapes = {each.shape: each for each in definitions}
    contexts = " ".join(f"WHEN '{shape}' THEN {each.context}" for shape, each in shapes.items())
    made = " ".join(f"WHEN '{shape}' THEN {each.made}" for shape, each in shapes.items())
    values = [
        F.expr(f"CASE choice.shape {told} END").alias(name) for name, told in (("context", contexts), ("made", made))
    ]
    lost = F.col("choice").isNull()
    topic = F.when(lost, dead).otherwise(event_topic(out))
    columns = kafka_record(topic, F.when(lost, letter_headers()).otherwise(event_headers()))
    return lambda rows: read_headers(rows).select("*", choice).select("*", *values).select(*columns)


def event_topic(out: str) -> Column:
    from pyspark.sql import functions as F

    before, group, after = out.partition("{messagegroup}")
    return F.concat(F.lit(before), F.col("choice.group"), F.lit(after)) if group else F.lit(out)


def kafka_record(topic: Column, headers: Column) -> list[Column]:
    from pyspark.sql import functions as F

    return [topic.alias("topic"), F.col("key"), F.col("value"), headers.alias("headers")]


def event_headers() -> Column:
    from pyspark.sql import functions as F

    lineage = {"message": F.col("choice.message"), "endpoint": F.lit(_SOURCE), "context": F.col("context")}
    return F.concat(F.col("made"), _came(), _ours(lineage))


def letter_headers() -> Column:
    from pyspark.sql import functions as F

    missing = F.expr("coalesce(id, '') = '' OR coalesce(type, '') = '' OR coalesce(source, '') = ''")
    invalid = F.col("specversion").isNotNull() & (missing | F.expr("NOT is_valid_utf8(type)"))
    structured = F.coalesce(F.col("media").startswith("application/cloudevents"), F.lit(False))
    told = {
        "letter": F.substring(F.sha2("position", 256), 1, 32),
        "reason": F.when(invalid | structured, "invalid-cloudevent").otherwise("no-match"),
        "received": F.date_format("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"),
        "failed": F.current_timestamp().cast("string"),
    }
    return F.concat(_came(), _ours(told))


def _came() -> Column:
    from pyspark.sql import functions as F

    return F.coalesce("headers", F.array().cast(_HEADERS))


def _ours(named: Mapping[str, Column]) -> Column:
    from pyspark.sql import functions as F

    whole = {**named, "epoch": F.lit(_EPOCH), "position": F.col("position")}
    entries = (
        F.struct(F.lit(f"xrouter-{name}").alias("key"), whole[name].cast("binary").alias("value")) for name in whole
    )
    return F.array(*entries)


def main(bootstrap: str, catalog: str, topic: str, out: str, dead: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    definitions = read_off(json.loads(Path(catalog).read_bytes()))
    rows = (
        SparkSession.builder.getOrCreate()
        .readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", _BATCH)
        .load()
    )
    writer = case_when(definitions, out + "{messagegroup}", dead)(rows).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("checkpointLocation", folder)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
