"""What groups ask of attributes of their resources: by their type, and each group by its own ``constraints``.

A group may narrow what its type asks, and add to it, never widen it (core ``spec.md``, ``constraints`` Attribute;
``model.md``, ``groups.<STRING>.constraints``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from registry.errors import Refusal, listed
from registry.model.reading import read_constraints
from registry.model.types import Constraint, GroupType
from registry.store.entities import Group, Version


def constraints_of(kind: GroupType, group: Group | None) -> tuple[Constraint, ...]:
    """Return all that a group asks of its resources: the constraints of its type, narrowed by its own.

    Raises:
        Refusal: ``bad_request``: those of the group are malformed, or contradict its type.
    """
    given = group.attributes.get("constraints") if group is not None else None
    if not given or group is None:
        return kind.constraints
    subject, inherited = group.xid, {each.key: each for each in kind.constraints}
    try:
        own = {each.key: each for each in read_constraints(subject, given, kind.resources, kind.attributes)}
    except Refusal as error:
        raise Refusal("bad_request", subject, error_detail=error.args_given["error_detail"]) from None
    narrowed = {key: _narrowed(subject, inherited[key], each) for key, each in own.items() if key in inherited}
    return tuple({**inherited, **own, **narrowed}.values())


def filled(constraints: Sequence[Constraint], resources: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a version with the defaults that its group asks for, where it has no value."""
    for each in constraints:
        if each.resources != resources or each.default is None or value_at(values, each.path) is not None:
            continue
        *above, last = each.path.split(".")
        if above:
            values = deepcopy(values)
        holder = values
        for name in above:
            holder = holder.setdefault(name, {})
            if not isinstance(holder, dict):
                break  # not an object: the check of types says so
        else:
            holder[last] = each.default
    return values


def check_constraints(
    xid: str, resources: str, constraints: Sequence[Constraint], group: Group, versions: Mapping[str, Version]
) -> None:
    """Hold all versions of a resource against the constraints of a group that has it, or refers to it.

    Raises:
        Refusal: ``constraint_failure``: a version breaks one; its detail names the versions.
    """
    for each in constraints:
        if each.resources != resources:
            continue
        for kind, broken in _broken(each, group, versions):
            if broken:
                detail = f"Versions: {listed(sorted(broken))}."
                if kind == "enum":
                    detail += f" The value needs to be one of {listed([str(value) for value in each.enum])}."
                raise Refusal("constraint_failure", xid, kind=kind, path=each.path, detail=detail)


def value_at(values: Any, path: str) -> Any:
    """Return the value at a dotted path through objects, None where there is none."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _narrowed(subject: str, inherited: Constraint, own: Constraint) -> Constraint:
    wider = [str(each) for each in own.enum if inherited.enum and each not in inherited.enum]
    if wider:
        raise _refusal(subject, own, f"has values that its type does not allow: {listed(wider)}")
    if own.equals and inherited.equals and own.equals != inherited.equals:
        raise _refusal(subject, own, f"equals {own.equals}, and by the type of the group {inherited.equals}")
    enum, default = own.enum or inherited.enum, own.default if own.default is not None else inherited.default
    if enum and default is not None and default not in enum:
        raise _refusal(subject, own, f"has the default {default}, which is not among {listed([str(e) for e in enum])}")
    return replace(inherited, default=default, enum=enum, equals=own.equals or inherited.equals)


def _refusal(subject: str, constraint: Constraint, problem: str) -> Refusal:
    return Refusal("bad_request", subject, error_detail=f"the constraint {constraint.key} {problem}")


def _broken(constraint: Constraint, group: Group, versions: Mapping[str, Version]) -> Iterator[tuple[str, list[str]]]:
    """Give, for ``equals`` and for ``enum``, the ids of the versions that break it."""
    values = {name: value_at(each.attributes, constraint.path) for name, each in versions.items()}
    wanted = value_at(group.attributes, constraint.equals) if constraint.equals else None
    if wanted is not None:
        folds = constraint.path == "format"
        yield "equals", [name for name, value in values.items() if _folded(value, folds) != _folded(wanted, folds)]
    if constraint.enum:
        allowed = (*constraint.enum, None)
        yield "enum", [name for name, value in values.items() if value not in allowed]


def _folded(value: Any, folds: bool) -> Any:
    return value.lower() if folds and isinstance(value, str) else value
