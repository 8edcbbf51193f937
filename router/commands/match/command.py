"""``xrouter match``: native records on standard input, one outcome a line on standard output, or why, for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final

import typer

from catalog.escaping import escaped_json
from catalog.model import Catalog
from catalog.schemas.ids.frames import Frames
from router.commands.arguments import AllowAddresses, BaseUri, CatalogOption, MorePaths, usable_catalog
from router.commands.match.expecting import OPTION, Expectation, ExpectationUnreadable, expectation_of
from router.commands.match.explained import ExplanationWriter
from router.commands.registries import LoginsOption, fetcher
from router.errors import RouterError
from router.matching.explanation import BEST, Explainer
from router.matching.records import RecordMatcher, to_line
from router.terminal import say

NOT_AS_EXPECTED: Final = 1
"""The exit code when a record is not as ``--expect`` says."""


class Validate(StrEnum):
    """When bodies are held against their schemas."""

    never = "never"
    ambiguous = "ambiguous"
    always = "always"


class Tied(StrEnum):
    """What becomes of records that several definitions match equally well."""

    dead_letter = "dead-letter"
    first = "first"
    base = "base"


class Framed(StrEnum):
    """How bodies of Kafka begin."""

    auto = "auto"
    confluent = "confluent"
    apicurio = "apicurio"
    glue = "glue"
    none = "none"


def match(
    catalog: CatalogOption,
    more: MorePaths = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="XID", help="Candidates are those of this endpoint, for every record.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="XID", help="Candidates are this message group, for every record; may be repeated."),
    ] = None,
    validate: Annotated[
        Validate,
        typer.Option(help="When bodies are held against the schemas of definitions; what routes ask is not looked at."),
    ] = Validate.ambiguous,
    explain: Annotated[bool, typer.Option("--explain", help="Explain outcomes to people, not in JSON.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help=f"With --explain: all candidates, not just the best {BEST}.")
    ] = False,
    allow: AllowAddresses = None,
    base_uri: BaseUri = "",
    logins: LoginsOption = None,
    ambiguous: Annotated[
        Tied, typer.Option(help="What takes a record that several definitions match equally well.")
    ] = Tied.dead_letter,
    framing: Annotated[
        Framed,
        typer.Option(
            help="With which frame of a schema registry bodies of Kafka begin; `auto`: some with `confluent`."
        ),
    ] = Framed.auto,
    expect: Annotated[
        str | None,
        typer.Option(
            OPTION,
            metavar="OUTCOME|FILE",
            help="What should become of each record, as the cases of `xrouter test` say it; a list has one for each.",
        ),
    ] = None,
) -> None:
    """Say for each native record which definition takes it, or why none does.

    With neither --endpoint nor --group the record's own endpoint decides, else every definition is a candidate.
    With --expect it ends with 1 when something is not so, and says what on standard error.

    Example: xrouter match --catalog catalog.xreg.json --endpoint /endpoints/garden --explain <records.jsonl
    """
    if endpoint is not None and group:
        raise typer.BadParameter("--endpoint and --group exclude each other; give one of them")
    if everything and not explain:
        raise typer.BadParameter("--all goes with --explain")
    if explain and expect is not None:
        raise typer.BadParameter(f"--explain and {OPTION} exclude each other; give one of them")
    expected = None if expect is None else _expected(expect)
    loaded = usable_catalog([*catalog, *(more or [])], fetcher(logins, allow or ()), base_uri=base_uri)
    if endpoint is not None:
        _require(endpoint, loaded.endpoints, "endpoint")
    how = partial(RecordMatcher, validation=validate.value, frames=Frames(framing.value), ambiguous=ambiguous.value)
    matcher = _matcher(how, loaded, endpoint, group or [])
    if explain:
        _explain(Explainer(matcher, everything=everything))
        return
    output = sys.stdout.buffer
    for outcome in matcher.outcomes(sys.stdin.buffer):
        output.write(escaped_json(to_line(outcome)))
        for line in () if expected is None else expected.compare(outcome):
            say(line, err=True)
    output.flush()
    if expected is not None:
        text, good = expected.summary()
        say(text, err=True)
        raise typer.Exit(0 if good else NOT_AS_EXPECTED)


def _expected(given: str) -> Expectation:
    try:
        return expectation_of(given)
    except ExpectationUnreadable as error:
        raise typer.BadParameter(f"{OPTION}: {error}") from error


def _explain(explainer: Explainer) -> None:
    writer = ExplanationWriter()
    for number, line in enumerate((line for line in sys.stdin.buffer if line.strip()), 1):
        writer.write(explainer.explain(number, line))


def _matcher(
    how: Callable[..., RecordMatcher], catalog: Catalog, endpoint: str | None, groups: list[str]
) -> RecordMatcher:
    """Return the matcher; several groups are one whose candidates are all of theirs."""
    for xid in groups:
        _require(xid, catalog.groups, "message group")
    if len(groups) < 2:
        return how(catalog, endpoint=endpoint, group=groups[0] if groups else None)
    union = tuple(dict.fromkeys(member for xid in groups for member in catalog.groups[xid]))
    return how(replace(catalog, groups={groups[0]: union}), group=groups[0])


def _require(xid: str, among: Mapping[str, Any], what: str) -> None:
    if xid in among:
        return
    near = get_close_matches(xid, among, 1)
    hint = f"did you mean {near[0]}?" if near else f"the catalog has {', '.join(among) or 'none'}"
    raise RouterError(f"the catalog has no {what} {xid}", hint=hint)
