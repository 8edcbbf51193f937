"""The parts of the documentation's site that are generated from the code, as an extension of Sphinx.

``<!-- made: NAME -->`` in a page is replaced by one of :data:`PARTS`; :data:`PAGES` look different than in a checkout.
"""

from __future__ import annotations

import ast
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import typer
import yaml
from sphinx.application import Sphinx
from typer.cli import get_docs_for_click

from registry.http.server import RegistryServer, RegistrySettings
from router.cli import app
from router.errors import EXIT_CODES
from router.settings.routes import REASONS
from tests.support.notebooks import page_of
from tests.support.readme import BAR, MEANINGS
from tests.support.settings_pages import make_settings_reference
from tests.support.status_page import RULES, families

ROOT: Final = Path(__file__).resolve().parents[2]
REFERENCE: Final = ROOT / "deploy" / "docs" / "reference"
EXAMPLES: Final = Path(__file__).with_name("settings_examples.yaml")
PRODUCTION: Final = ("catalog", "bindings", "registry", "router")
MATCHING: Final = ROOT / "router" / "MATCHING.md"
NAMES: Final = dict(
    zip(
        ("table", "kafka", "jsonl", "mqtt", "amqp", "nats", "http"),
        ("lake", "bus", "lines", "plant", "work", "fleet", "hook"),
        strict=True,
    )
)
"""Names of sinks in examples, by their type."""
LEVELS: Final = {"warning": "warning", "error": "error", "exception": "error"}
PICTURE: Final = """<div class="flow">
<div class="flow-box"><b>Sources</b><span>Kafka topics</span>
<span>MQTT, AMQP, NATS, HTTP by way of an inbox on disk</span></div>
<div class="flow-arrow"></div>
<div class="flow-box flow-router"><b>xrouter</b><span>match each message to its definition</span>
<span>map it to a CloudEvent</span><span>route it</span><em>Catalog: endpoints and message definitions</em></div>
<div class="flow-arrow"></div>
<div class="flow-ends"><div class="flow-box"><b>Sinks</b><span>Delta tables, Parquet, JSON lines</span>
<span>Kafka, MQTT, AMQP, NATS, HTTP</span></div>
<div class="flow-box flow-dead"><b>Dead letters</b><span>with the reason and the nearest definition</span></div></div>
</div>
"""
_MARK: Final = re.compile(r"^<!-- made: ([a-z-]+) -->$", re.MULTILINE)


def commands(page: str) -> str:
    """Return the page of commands, followed by each command's arguments and options as ``--help`` has them."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="xrouter")
    options = get_docs_for_click(obj=group, ctx=context, name="xrouter", title="Commands")
    return f"{page.rstrip()}\n\n## All options\n\n{_lowered(options).partition('# Commands')[2]}\n"


def settings(page: str) -> str:
    """Return the page of settings with a section for each key, in place of its table."""
    head, _, rest = page.partition("<!-- settings: begin -->")
    tail = rest.partition("<!-- settings: end -->")[2]
    groups: dict[str, list[tuple[str, str, str, str]]] = {"General": []}
    for row in make_settings_reference():
        groups.setdefault(_group(row[0]), []).append(row)
    sections = (f"## {name}\n\n" + "\n\n".join(map(_setting, rows)) for name, rows in groups.items())
    return "---\ntocdepth: 2\n---\n" + head + "\n\n".join(sections) + tail


def example_of(key: str) -> dict[str, Any]:
    """Return settings that have *key* and what has to stand beside it."""
    rows = {each: (kind, default) for each, kind, default, _ in make_settings_reference()}
    prefix, _, leaf = key.rpartition(".")
    node: dict[str, Any] = {**(_ending("beside", key) or {}), leaf: _value(key, *rows[key])}
    while prefix:
        for each, (kind, default) in rows.items():
            if default == "required" and each.rpartition(".")[0] == prefix:
                node = {each.rpartition(".")[2]: _value(each, kind, default)} | node
        prefix, _, part = prefix.rpartition(".")
        name, bracket, kind = part.partition("[")
        node = {
            NAMES.get(kind.rstrip("]"), "lake") if name == "NAME" else name: [node] if bracket + kind == "[]" else node
        }
    return node


def anchor_of(key: str) -> str:
    """Return the anchor of a key on the page of settings."""
    return "setting-" + re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")


def picture() -> str:
    """Return how messages flow, as boxes."""
    return PICTURE


def reasons() -> str:
    """Return what the rules say of each reason of a dead letter; one of which they say nothing is a ValueError."""
    text = MATCHING.read_text(encoding="utf-8")
    return "\n\n".join(f"## {reason}\n\n{_section(text, reason)}" for reason in REASONS)


def errors() -> str:
    """Return what ends a command, by exit code, then what else the code says of settings, and what it logs."""
    found = _messages()
    parts = []
    for kind, code in sorted(EXIT_CODES.items(), key=lambda each: each[1]):
        rows = sorted(found[kind.__name__].items())
        parts.append(f"## Exit code {code}\n\n{_sentence(MEANINGS[code])}")
        if rows:
            parts.append(_table(("Message", "Remedy"), ((_code(text), _code(hint)) for text, hint in rows)))
    parts.append("## Faults of settings\n\nEach follows the key that it is about. The exit code is 3.")
    parts.append(_table(("Message",), ((_code(text),) for text in sorted(found["settings"]))))
    parts.append("## Log messages\n\nThe fields after the message name what it is about, and mostly the remedy.")
    logged = sorted((text, level) for level in ("warning", "error") for text in found[level])
    parts.append(_table(("Message", "Level"), ((_code(text), level) for text, level in logged)))
    return "\n\n".join(parts)


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
    each.__name__.replace("_", "-"): each for each in (picture, errors, reasons, metrics, alerts, api)
}
PAGES: Final[Mapping[str, Callable[[str], str]]] = {"deploy/SETTINGS": settings, "deploy/COMMANDS": commands}


def filled(text: str) -> str:
    """Return a page with its generated parts; an unknown name is a KeyError."""
    return _MARK.sub(lambda found: PARTS[found[1]](), text)


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Let Sphinx fill pages in as it reads them."""

    def read(app: Sphinx, name: str, content: list[str]) -> None:
        if app.env.doc2path(name).suffix == ".ipynb":
            content[0] = page_of(content[0])
        else:
            content[0] = PAGES[name](content[0]) if name in PAGES else filled(content[0])

    def accessible(_: Sphinx, __: str, ___: str, context: dict[str, Any], ____: Any) -> None:
        caption = '<p class="caption" role="heading"'
        for part in ("furo_navigation_tree", "body"):
            text = str(context.get(part) or "").replace(f"{caption}>", f'{caption} aria-level="2">')
            text = text.replace('<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">')
            text = text.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
            context[part] = re.sub(r'<span class="pre">[^<]+', lambda found: _breakable(found[0]), text)

    sphinx.connect("source-read", read)
    sphinx.connect("html-page-context", accessible, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _breakable(code: str) -> str:
    """Let a line break behind an underline, comma or dot of code, and nowhere else."""
    begin, text = code[:18], code[18:]
    return begin + re.sub(r"(?<=\w)[_,.{/](?=\w{3})", r"\g<0></span><wbr><span class=\"pre\">", text)


def _section(text: str, name: str) -> str:
    found = re.search(rf"^### {name}\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{MATCHING.name} says nothing of {name}")
    return re.sub(r"\]\(#", f"]({os.path.relpath(MATCHING, REFERENCE)}#", found[1].strip())


def _labels(family: Any) -> str:
    names = {name for sample in family.samples for name in sample.labels} - {"le"}
    return ", ".join(f"`{name}`" for name in sorted(names))


def _alert(rule: Mapping[str, Any]) -> str:
    annotations = rule.get("annotations", {})
    text = "\n\n".join(str(annotations[name]).strip() for name in ("summary", "description") if name in annotations)
    runbook = os.path.relpath(ROOT / annotations["runbook_url"], REFERENCE)
    lasting = f"after {rule['for']}" if "for" in rule else "at once"
    return (
        f"## {rule['alert']}\n\n{_escaped(text)}\n\n[Runbook]({runbook}). Fires {lasting} when this is true:\n\n"
        f"```text\n{str(rule['expr']).strip()}\n```"
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


def _lowered(text: str) -> str:
    """Return Markdown with each heading one level lower; code is left alone."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(re.sub(r"^#", "##", part, flags=re.MULTILINE) if not n % 2 else part for n, part in enumerate(parts))


def _group(key: str) -> str:
    parts = key.split(".")
    if len(parts) == 1:
        return "General"
    name, _, kind = parts[1].partition("[")
    return f"{parts[0]} ({kind.rstrip(']')})" if name == "NAME" and kind else parts[0].removesuffix("[]")


def _setting(row: tuple[str, str, str, str]) -> str:
    key, kind, default, doc = row
    shown = default if default in ("", "required") else f"default `{default}`"
    alternatives = kind.split(" | ")
    listed = f"{', '.join(alternatives[:-1])} or {alternatives[-1]}" if len(alternatives) > 1 else kind
    facts = ", ".join(filter(None, (f"*{listed}*", shown)))
    example = yaml.safe_dump(example_of(key), sort_keys=False, allow_unicode=True, width=100).strip()
    return f"({anchor_of(key)})=\n### `{key}`\n\n{_escaped(doc)}\n\n{facts}\n\n```yaml\n{example}\n```"


def _value(key: str, kind: str, default: str) -> Any:
    """Return a value of a key as an example: a written one, else the default, else the last of the alternatives."""
    written = _ending("values", key)
    if written is not None:
        return written
    if kind in ("boolean", "integer", "number"):
        return yaml.safe_load(default)
    alternatives = kind.split(" | ")
    return default if default not in ("", "required") and len(alternatives) == 1 else alternatives[-1]


def _ending(part: str, key: str) -> Any:
    """Return what is written for the longest end of a key; None where nothing is."""
    names = key.split(".")
    return next(
        (found for n in range(len(names)) if (found := _examples()[part].get(".".join(names[n:]))) is not None), None
    )


@cache
def _examples() -> dict[str, dict[str, Any]]:
    written: dict[str, dict[str, Any]] = yaml.safe_load(EXAMPLES.read_text(encoding="utf-8"))
    return written


@cache
def _messages() -> Mapping[str, Mapping[str, str]]:
    """Return messages with their hints, by class of error, by level of the log, and under ``settings``."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in (each for folder in PRODUCTION for each in sorted((ROOT / folder).rglob("*.py"))):
        of_settings = path.is_relative_to(ROOT / "router" / "settings")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for kind, text, hint in _texts_of(node, of_settings):
                if re.search(r"\w{3}", text):
                    found[kind].setdefault(text, hint)
    return found


def _texts_of(node: ast.AST, of_settings: bool) -> Iterator[tuple[str, str, str]]:
    """Yield what a call or a yielded pair says: kind, message and hint."""
    if of_settings and isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
        yield "settings", _text(node.value.elts[1]), ""
    if not isinstance(node, ast.Call):
        return
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    logger = node.func.value if isinstance(node.func, ast.Attribute) else None
    place = 1 if name == "SinkError" else 0
    if len(node.args) <= place:
        return
    hint = next((_text(each.value) for each in node.keywords if each.arg == "hint"), "")
    if name in {kind.__name__ for kind in EXIT_CODES}:
        yield name, ("sink …: " if place else "") + _text(node.args[place]), hint
    elif isinstance(logger, ast.Name) and logger.id in ("_log", "_logger") and name in LEVELS:
        yield LEVELS[name], re.sub(r"%[a-z]", "…", _text(node.args[0])), ""
    elif of_settings and name == "ValueError":
        yield "settings", _text(node.args[0]), ""


def _text(node: ast.expr) -> str:
    """Return a text of the code, with … for its values; nothing for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join("…" if isinstance(part, ast.FormattedValue) else _text(part) for part in node.values)
    return _text(node.left) + _text(node.right) if isinstance(node, ast.BinOp) else ""


def _code(text: str) -> str:
    plain = " ".join(text.replace("`", "'").split())
    return f"`{plain}`" if plain else ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
