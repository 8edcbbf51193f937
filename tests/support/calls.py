"""Cases call by call: what an object gives to each of a list of calls.

A step has a call: the name of a method, function or attribute, dotted if it is one of another object, and its argument
or a list of its arguments. Then ``is`` is what it gives: lists for tuples and sets, maps for objects. Or it ``raises``
an error of the router with this text. ``times`` is how often it is called, and ``as`` a name for what it gave; such
names and those of the objects stand for them as ``$name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from router.errors import RouterError
from tests.support.cases import read_cases

FOLDER: Final = Path(__file__).resolve().parents[1] / "cases" / "calls"
WORDS: Final = frozenset({"is", "raises", "times", "as"})


def call_cases() -> list[Any]:
    """Return the cases of all files as parameters: the kind of object, which is the name of the file, and the case."""
    return [
        pytest.param(path.stem, case, id=f"{path.stem}: {case['case']}")
        for path in sorted(FOLDER.glob("*.yaml"))
        for case in read_cases(path)
    ]


def play(steps: list[dict[str, Any]], objects: dict[str, Any]) -> None:
    """Do all calls; what none of the *objects* has by name is a member of ``it``."""
    for step in steps:
        ((name, arguments),) = ((key, value) for key, value in step.items() if key not in WORDS)
        owner = SimpleNamespace(**objects) if name.partition(".")[0] in objects else objects["it"]
        given = [_named(each, objects) for each in (arguments if isinstance(arguments, list) else [arguments])]
        for _ in range(step.get("times", 1)):
            member = attrgetter(name)(owner)
            if "raises" in step:
                with pytest.raises(RouterError) as caught:
                    member(*given)
                assert step["raises"] in str(caught.value), (step, caught.value)
                continue
            found = member(*given) if callable(member) else member
            if "is" in step:
                assert _plain(found) == _plain(_named(step["is"], objects)), (step, found)
            if "as" in step:
                objects[step["as"]] = found


def _named(value: Any, objects: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        return objects[value[1:]]
    if isinstance(value, dict):
        return {_named(key, objects): _named(each, objects) for key, each in value.items()}
    return [_named(each, objects) for each in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return [_plain(each) for each in sorted(value)]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, datetime):
        return value.isoformat()
    return pytest.approx(value) if isinstance(value, float) else value
