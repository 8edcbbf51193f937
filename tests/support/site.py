"""The parts of the documentation's site that are made from the code, as an extension of Sphinx.

A page has ``<!-- made: NAME -->`` where one of :data:`PARTS` is to stand.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import typer
import yaml
from sphinx.application import Sphinx
from typer.cli import get_docs_for_click

from registry.http.server import RegistryServer, RegistrySettings
from router.cli import app
from router.settings.names import REASONS
from tests.support.metric_families import RULES, families
from tests.support.readme import BAR, exit_codes_table

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = ROOT / "deploy" / "docs" / "reference"
JUDGING: Final = ROOT / "router" / "JUDGING.md"
OPERATIONS: Final = ROOT / "deploy" / "OPERATIONS.md"
_MARK: Final = re.compile(r"^<!-- made: ([a-z-]+) -->$", re.MULTILINE)


def commands() -> str:
    """Return each command with its arguments and options, as ``--help`` has them."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="xrouter")
    return get_docs_for_click(obj=group, ctx=context, name="xrouter", title="Commands")


def exit_codes() -> str:
    """Return all exit codes."""
    return exit_codes_table()


def reasons() -> str:
    """Return what the rules say of each reason of a dead letter; one of which they say nothing is a ValueError."""
    text = JUDGING.read_text(encoding="utf-8")
    return "\n\n".join(f"## {reason}\n\n{_section(text, reason)}" for reason in REASONS)


def metrics() -> str:
    """Return all metrics of routers and registries."""
    rows = sorted((family.name, family.type, _labels(family), family.documentation) for family in families())
    return _table(
        ("Metric", "Type", "Labels", ""), ((f"`{name}`", kind, names, doc) for name, kind, names, doc in rows)
    )


def alerts() -> str:
    """Return all alerts, with what they ask and say."""
    rules = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule
    ]
    return "\n\n".join(_alert(rule) for rule in rules)


def api() -> str:
    """Return the requests of a registry with the model that it has at first."""
    with tempfile.TemporaryDirectory() as folder:
        server = RegistryServer(RegistrySettings(f"sqlite:///{folder}/r.db", port=0))
        server.start()
        try:
            document = httpx.get(f"http://127.0.0.1:{server.port}/openapi.json", timeout=60).raise_for_status().json()
        finally:
            server.stop(1.0)
    return _table(("Path", "Methods", "Flags and headers"), _requests(document["paths"]))


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    each.__name__.replace("_", "-"): each for each in (commands, exit_codes, reasons, metrics, alerts, api)
}


def filled(text: str) -> str:
    """Return a page with its made parts; a name that is none is a KeyError."""
    return _MARK.sub(lambda found: PARTS[found[1]](), text)


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Have Sphinx fill pages in as it reads them."""

    def read(_: Sphinx, __: str, content: list[str]) -> None:
        content[0] = filled(content[0])

    sphinx.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _section(text: str, name: str) -> str:
    found = re.search(rf"^### {name}\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{JUDGING.name} says nothing of {name}")
    return re.sub(r"\]\(#", f"]({os.path.relpath(JUDGING, PAGES)}#", found[1].strip())


def _labels(family: Any) -> str:
    names = {name for sample in family.samples for name in sample.labels} - {"le"}
    return ", ".join(f"`{name}`" for name in sorted(names))


def _alert(rule: Mapping[str, Any]) -> str:
    told = rule.get("annotations", {})
    said = "\n\n".join(str(told[name]).strip() for name in ("summary", "description") if name in told)
    lasting = f"for {rule['for']}" if "for" in rule else "at once"
    return (
        f"## {rule['alert']}\n\n{_escaped(said)}\n\nFires {lasting}, when\n\n```text\n{str(rule['expr']).strip()}\n```"
    )


def _escaped(text: str) -> str:
    return text.replace("{{", "`{{").replace("}}", "}}`").replace("<", "&lt;")


def _requests(paths: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for path, item in paths.items():
        operations = {verb: each for verb, each in item.items() if isinstance(each, dict) and "responses" in each}
        named = {
            each["name"]
            for operation in operations.values()
            for each in operation.get("parameters", ())
            if "name" in each
        }
        flags = ", ".join(f"`{name}`" for name in sorted(named) if f"{{{name}}}" not in path)
        yield f"`{path}`", " ".join(verb.upper() for verb in operations), flags


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(cell).replace('|', BAR) for cell in row)} |" for row in rows]
    return "\n".join(lines)
