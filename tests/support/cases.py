"""Cases as data: files of YAML, many of which are read again by each process that collects tests."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Final

import hypothesis
import pyarrow as pa
import pytest
import yaml
from pydantic import Field

from bindings.kafka.record_columns import SOURCE_SCHEMA
from bindings.protocols import BINDINGS
from catalog.documents.fetching import CASES
from catalog.model import Catalog
from catalog.record import parse_record
from router.cli import run_command_line
from router.evaluation.evaluator import to_kafka_row
from router.evaluation.plan import Evaluator, Plan
from router.settings import Settings, load, settings_from_dict
from router.settings.sinks import kinds
from router.settings.sinks.contract import SinkSettings
from tests.support.evaluating import outcome_lists


def read_cases(path: Path) -> Any:
    """Return what a file of YAML says, read by libyaml, which takes a tenth of the time."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def filled(value: Any, words: Mapping[str, str]) -> Any:
    """Return a value of YAML with words replaced in all its texts."""
    if isinstance(value, str):
        return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], value)
    if isinstance(value, dict):
        return {filled(key, words): filled(each, words) for key, each in value.items()}
    return [filled(each, words) for each in value] if isinstance(value, list) else value


def bytes_of(recipe: Any) -> bytes:
    """Return the bytes of a text, or of a recipe: parts one after the other, those in lists so many times; or hex."""
    if isinstance(recipe, str):
        return recipe.encode()
    if "gzip" in recipe:
        text, times = recipe["gzip"]
        return gzip.compress(text.encode() * times)
    read: Callable[[Any], bytes] = bytes.fromhex if "bytes" in recipe else bytes_of
    parts = recipe.get("bytes", recipe.get("parts"))
    return b"".join(read(part[0]) * part[1] if isinstance(part, list) else read(part) for part in parts)


# A plan asked about Kafka records without Spark: the very functions of the match UDF, on Arrow.

BROKER = "broker:9092"


def plan_of(catalog: Catalog, settings: Mapping[str, Any], folder: Path) -> Plan:
    """Return a plan; sinks without a type are Kafka topics of one broker."""
    sinks = {
        name: {"type": "kafka", "bootstrap_servers": BROKER, **sink} if "type" not in sink else sink
        for name, sink in settings["sinks"].items()
    }
    return Plan(
        catalog, settings_from_dict({"dead_letters": {"sinks": ["dead"]}, **settings, "sinks": sinks}, {}, folder)
    )


def kafka_rows(lines: Sequence[str]) -> pa.RecordBatch:
    """Return records of Kafka, one in each line, as rows of its source."""
    records = [parse_record(line) for line in lines]
    rows = [{**to_kafka_row(BINDINGS["KAFKA"].split(each.native)), "value": each.body} for each in records]
    return pa.RecordBatch.from_pylist(rows, SOURCE_SCHEMA)


def judged(judge: Evaluator, rows: pa.RecordBatch) -> list[list[dict[str, Any]]]:
    """Return the outcomes of each row, as the match UDF gives them."""
    lists, _ = outcome_lists("kafka", judge, rows)
    outcomes: list[list[dict[str, Any]]] = lists.to_pylist()
    return outcomes


# Another kind of sink for the time of a test, as a line in the list of kinds would add it.


@contextmanager
def registered(kind: type[SinkSettings]) -> Iterator[None]:
    """Add a kind to :data:`router.settings.sinks.kinds.KINDS`; what was built of the list is built again."""
    before = kinds.KINDS
    try:
        _build((*before, kind))
        yield
    finally:
        _build(before)


def _build(listed: tuple[type[SinkSettings], ...]) -> None:
    for module in (kinds, load):
        module.KINDS = listed  # type: ignore[attr-defined]
    union: Any = reduce(or_, listed)
    field = Settings.model_fields["sinks"]
    field.annotation = dict[str, Annotated[union, Field(discriminator="type")]]
    Settings.model_rebuild(force=True)


# The project's own sample catalogs, one source each: files, and folders that hold one document split over files.

FOLDER: Final = Path(__file__).resolve().parents[2] / "catalog" / "samples"


def samples() -> list[Path]:
    """Give the sources, sorted: no cases, and no folder without an index, which holds only what a sample refers to."""
    return sorted(
        each
        for each in FOLDER.iterdir()
        if (each.is_file() and not each.stem.endswith(CASES)) or (each / "index.json").is_file()
    )


# Files of cases for ``xrouter test``, and how tests run it.

GREENHOUSE: Final = FOLDER / "greenhouse.xreg.yaml"
VALVE: Final = "/messagegroups/Greenhouse.Plain/messages/Greenhouse.Plain.Valve"
XRouter = Callable[..., tuple[int, str, str]]


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> XRouter:
    """Return what runs ``test`` with arguments, and gives exit code, standard output and standard error."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        status = run_command_line(["test", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "fault of xrouter" not in err, err
        return status, out, err

    return run


def valve(subject: str = "valves.3.roof", turn: str = "0.75") -> dict[str, Any]:
    """Return a record of the greenhouse, which is no CloudEvent."""
    return {"protocol": "NATS", "native": {"subject": subject, "headers": [{"name": "turn", "value": turn}]}}


def written(path: Path, cases: list[dict[str, Any]], **head: Any) -> Path:
    """Write a file of cases for the greenhouse, or with a head of its own, in the form that its name says."""
    head = head or {"catalog": str(GREENHOUSE)}
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(form)}\n" for form in (head, *cases)))
    else:
        path.write_text(yaml.safe_dump({**head, "cases": cases}, sort_keys=False))
    return path


def reported(xrouter: XRouter, *arguments: object) -> dict[str, Any]:
    """Return the report in JSON."""
    _, out, err = xrouter(*arguments, "--format", "json")
    assert not err
    report: dict[str, Any] = json.loads(out)
    return report


# How many examples a test takes: a share in every run, all in the full one.
#
# Of property tests the profile says which run it is (``tests/conftest.py``); where a test says nothing, the profile's
# own number holds.

FULL: Final = 100
"""The number of a test that says nothing, in the full run."""
QUICK: Final = 15
"""The same in every other run."""


def examples(count: int) -> int:
    """Return how many of *count* examples, which are those of the full run, the profile in force asks for."""
    return max(1, count * hypothesis.settings().max_examples // FULL)


def seeds(count: int, *, quick: int) -> list[Any]:
    """Return *count* seeds as parameters, of which all but the first *quick* are for the full run."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(quick, count))]


def spread(values: Sequence[Any], *, quick: int) -> list[Any]:
    """Return *values* as parameters, of which all but *quick*, evenly spread, are for the full run."""
    kept = {number * len(values) // quick for number in range(quick)}
    return [each if place in kept else pytest.param(each, marks=pytest.mark.full) for place, each in enumerate(values)]
