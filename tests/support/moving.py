"""Merge modules and rename what they define, by a plan: ``python -m tests.support.moving PLAN``.

Lines of a plan, beside comments that begin with ``#``:

- ``some/folder: target = first second`` puts ``first.py`` and ``second.py`` into ``some/folder/target.py``. Sources may
  lie in other folders (``../elsewhere/third``), and the target may be one of them. The first source's docstring stays
  the module's; those of the others become comments.
- ``name some.folder.first Old -> New`` renames what a module defines, wherever it is used.
- ``local some.folder.first old -> new`` renames a variable within the functions of a module.
- ``doc some.folder.target What it is.`` is the docstring of a merged module.

Imports in production and tests are rewritten, and dotted names and paths in all other texts. Names that would collide
in a merged module are told, and get the old module's name in front. Nothing else changes; ``ruff`` sorts and formats
afterwards, and ``--fold`` breaks comments and docstrings that have become too long.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import shutil
import subprocess
import sys
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCTION: Final = ("catalog", "bindings", "registry", "router")
TEXTS: Final = (
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".html",
    ".js",
    ".css",
    ".cfg",
    ".ini",
    ".sh",
    "Makefile",
    ".txt",
    ".rst",
)
WIDTH: Final = 120
_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def path_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


@dataclass
class Plan:
    targets: dict[str, list[str]] = field(default_factory=dict)
    """Sources in order, by target; the target may be one of them."""
    renames: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """New names of what a source module defines."""
    locals: list[tuple[str, str, str]] = field(default_factory=list)
    """Modules, and old and new names of variables within their functions."""
    docstrings: dict[str, str] = field(default_factory=dict)
    """First lines of the docstrings of targets whose first source does not say what they have become."""

    @property
    def home(self) -> dict[str, str]:
        return {source: target for target, sources in self.targets.items() for source in sources}


def read_plan(text: str) -> Plan:
    plan = Plan()
    for number, line in enumerate(text.split("\n"), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        if line.startswith("local "):
            where, names = line[6:].split(None, 1)
            old, new = (part.strip() for part in names.split("->"))
            plan.locals.append((where, old, new))
            continue
        if line.startswith("name "):
            where, names = line[5:].split(None, 1)
            old, new = (part.strip() for part in names.split("->"))
            plan.renames[where][old] = new
            continue
        if line.startswith("doc "):
            where, text = line[4:].split(None, 1)
            plan.docstrings[where] = text
            continue
        folder, rest = (part.strip() for part in line.split(":", 1))
        target, sources = (part.strip() for part in rest.split("=", 1))
        base = ROOT / folder
        whole = module_of((base / f"{target}.py").resolve())
        listed = [module_of((base / f"{source}.py").resolve()) for source in sources.split()]
        for each in listed:
            if not path_of(each).exists():
                raise SystemExit(f"line {number}: there is no {each}")
            if each in plan.home:
                raise SystemExit(f"line {number}: {each} is merged twice")
        plan.targets[whole] = listed
    return plan


# What a file binds and uses


def bound_in(scope: ast.AST) -> set[str]:
    """Return the names that a function, lambda, comprehension or class binds itself."""
    bound: set[str] = set()
    outer: set[str] = set()

    def target(node: ast.AST) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                bound.add(each.id)

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            for each in ast.walk(node):
                if isinstance(each, ast.NamedExpr):
                    bound.add(each.target.id)
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            bound.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
        for child in ast.iter_child_nodes(node):
            visit(child)

    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        args = scope.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))):
            bound.add(arg.arg)
        for each in getattr(scope, "type_params", ()):
            bound.add(each.name)
        if isinstance(scope, ast.Lambda):
            visit(scope.body)
        else:
            for statement in scope.body:
                visit(statement)
    elif isinstance(scope, ast.ClassDef):
        for statement in scope.body:
            visit(statement)
    else:
        for generator in scope.generators:  # type: ignore[attr-defined]
            target(generator.target)
    return bound - outer


def globals_used(tree: ast.Module) -> Iterator[ast.Name | ast.Global]:
    """Yield each use of a name that means the module's own (or a builtin), wherever it stands."""

    def visit(node: ast.AST, hidden: frozenset[str], here: frozenset[str]) -> Iterator[ast.Name | ast.Global]:
        # *hidden* are names of functions around; *here* those of the class body that the node stands in directly.
        if isinstance(node, ast.Name):
            if node.id not in hidden and node.id not in here:
                yield node
            return
        if isinstance(node, ast.Global):
            yield node
            return
        if not isinstance(node, _SCOPES):
            for child in ast.iter_child_nodes(node):
                yield from visit(child, hidden, here)
            return
        own = frozenset(bound_in(node))
        if isinstance(node, ast.ClassDef):
            for each in (*node.bases, *node.keywords, *node.decorator_list):
                yield from visit(each, hidden, here)
            for each in node.body:
                yield from visit(each, hidden, own)
            return
        if isinstance(node, ast.Lambda):
            for each in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from visit(each, hidden, here)
            yield from visit(node.body, hidden | own, frozenset())
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            outside = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            annotations = [arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg) and arg.annotation]
            for each in (*outside, *annotations, *filter(None, [node.returns])):
                yield from visit(each, hidden, here)
            for each in node.body:
                yield from visit(each, hidden | own, frozenset())
            return
        first = node.generators[0].iter
        yield from visit(first, hidden, here)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                parts = [child.target, *child.ifs] + ([] if child.iter is first else [child.iter])
                for each in parts:
                    yield from visit(each, hidden | own, here - own)
            else:
                yield from visit(child, hidden | own, here - own)

    for statement in tree.body:
        yield from visit(statement, frozenset(), frozenset())


def defined_in(tree: ast.Module) -> set[str]:
    """Return what the module's own statements bind, imports apart."""
    bound: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom) or typing_only(statement):
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
    return bound


def typing_only(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


@dataclass
class Source:
    """A file: its text, tree, what its names mean, and the edits to its text."""

    path: Path
    module: str
    text: str
    tree: ast.Module
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> Source:
        text = path.read_text(encoding="utf-8")
        return cls(path, module_of(path), text, ast.parse(text))

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        """Columns of trees count bytes of UTF-8."""
        text = self.lines[line - 1]
        return self.starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def replace(self, node: ast.AST, text: str) -> None:
        self.edits.append((*self.span(node), text))

    def shadows(self, node: ast.AST, name: str) -> bool:
        """Whether a function around *node* has a variable of that name."""
        line = node.lineno  # type: ignore[attr-defined]
        return any(
            isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            and scope.lineno <= line <= (scope.end_lineno or line)
            and name in bound_in(scope)
            for scope in ast.walk(self.tree)
        )

    def rename(self, names: Mapping[str, str]) -> list[str]:
        """Rename globals of the module, definitions of functions and classes too; return what then means another."""
        shadowed = [
            f"{self.module}:{node.lineno}: {names[node.id]} is a variable here"
            for node in globals_used(self.tree)
            if isinstance(node, ast.Name) and node.id in names and self.shadows(node, names[node.id])
        ]
        if not names:
            return shadowed
        for node in globals_used(self.tree):
            if isinstance(node, ast.Global):
                if names.keys() & set(node.names):
                    self.replace(node, "global " + ", ".join(names.get(each, each) for each in node.names))
            elif node.id in names:
                self.replace(node, names[node.id])
        for statement in self.tree.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and statement.name in names:
                start = self.offset(statement.lineno, statement.col_offset)
                found = re.compile(rf"(?:async\s+)?(?:def|class)\s+({statement.name})\b").match(self.text, start)
                assert found
                self.edits.append((*found.span(1), names[statement.name]))
        return shadowed

    def edited(self, start: int = 0, end: int | None = None) -> str:
        end = len(self.text) if end is None else end
        result, at = [], start
        for first, last, text in sorted(set(self.edits)):
            if first < start or last > end:
                continue
            assert first >= at, (self.path, self.text[first:last], text)
            result += [self.text[at:first], text]
            at = last
        return "".join((*result, self.text[at:end]))


def imported(source: Source) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias, bool, bool]]:
    """Yield each imported name, whether the statement is the module's own, and whether it is for types only."""
    top = {id(statement) for statement in source.tree.body}
    typed = {id(node) for statement in source.tree.body if typing_only(statement) for node in ast.walk(statement)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield node, alias, id(node) in top, id(node) in typed


Entity = tuple[str, str]
"""A module and the name in it; the name is empty where the module itself is meant."""

ORIGIN: Final[dict[Entity, Entity]] = {}
"""Where names come from that a module has by an import alone."""


def origin_of(entity: Entity) -> Entity:
    while entity in ORIGIN:
        entity = ORIGIN[entity]
    return entity


def find_origins(sources: Iterable[Source]) -> None:
    for source in sources:
        for node, alias, top, typed in imported(source):
            if isinstance(node, ast.ImportFrom) and (top or typed) and (node.module or "").split(".")[0] in PRODUCTION:
                ORIGIN[source.module, alias.asname or alias.name] = (node.module or "", alias.name)


class Merge:
    """One target and its sources, in the order that their imports ask for."""

    def __init__(self, target: str, sources: list[Source], plan: Plan) -> None:
        self.target = target
        self.plan = plan
        self.members = {source.module for source in sources}
        self.sources = self._ordered(sources)
        self.final: dict[str, dict[str, str]] = {}
        """By source module and the name that it defines, the name it has in the target."""
        self.dropped: dict[str, set[str]] = defaultdict(set)
        """Definitions that another source has word for word."""
        self.notes: list[str] = []
        self.imports: dict[str, dict[str, Entity]] = {}
        for source in self.sources:
            self.imports[source.module] = self._imports_of(source)

    def _ordered(self, sources: list[Source]) -> list[Source]:
        by_name = {source.module: source for source in sources}
        needs: dict[str, set[str]] = {}
        for source in sources:
            wanted = set()
            for node, alias, top, typed in imported(source):
                if top and not typed and isinstance(node, ast.ImportFrom):
                    for each in (node.module or "", f"{node.module}.{alias.name}"):
                        wanted.add(each)
            needs[source.module] = wanted & by_name.keys() - {source.module}
        ordered: list[Source] = []
        while needs:
            free = [name for name in by_name if name in needs and not needs[name] & needs.keys()]
            if not free:
                raise SystemExit(f"{self.target}: circle among {sorted(needs)}")
            ordered.append(by_name[free[0]])
            del needs[free[0]]
        return ordered

    def _imports_of(self, source: Source) -> dict[str, Entity]:
        """Return what the names that the module imports at its top mean."""
        found: dict[str, Entity] = {}
        for node, alias, top, typed in imported(source):
            if not (top or typed) or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                continue
            name = alias.asname or alias.name
            if isinstance(node, ast.Import):
                found[name] = (alias.name, "" if alias.asname else "*")
            else:
                whole = f"{node.module}.{alias.name}"
                found[name] = (whole, "") if whole in self.members else (node.module or "", alias.name)
        return found

    def settle(self) -> None:
        """Choose the name that each definition and each import has in the target."""
        owner: dict[str, Entity] = {}  # what a name of the target means
        texts: dict[str, str] = {}
        free: dict[str, set[str]] = {}
        for source in self.sources:
            own = defined_in(source.tree) | self.imports[source.module].keys()
            free[source.module] = {
                node.id for node in globals_used(source.tree) if isinstance(node, ast.Name) and node.id not in own
            }
        builtin = set().union(*free.values()) | {"__name__", "__file__"} if free else set()
        self.alias: dict[str, dict[str, str]] = defaultdict(dict)
        for source in self.sources:
            names = self.final[source.module] = {}
            wanted = self.plan.renames.get(source.module, {})
            for name in sorted(defined_in(source.tree)):
                new = wanted.get(name, name)
                text = self._text_of(source, name)
                if new in owner and new == name and text and texts.get(new) == text:
                    self.dropped[source.module].add(name)
                    names[name] = new
                    continue
                if new in owner or (new in builtin and hasattr(builtins, new)):
                    stem = source.module.rsplit(".", 1)[1]
                    fresh = after(stem, new)
                    while fresh in owner:
                        fresh = after(source.module.rsplit(".", 2)[1], fresh)
                    self.notes.append(f"{self.target}: {source.module}.{name} -> {fresh}")
                    new = fresh
                owner[new] = (source.module, name)
                texts[new] = text
                names[name] = new
        for source in self.sources:
            for name, entity in self.imports[source.module].items():
                if entity[0] in self.members:
                    continue
                module, what = origin_of(entity)
                first = self.plan.renames.get(module, {}).get(what, name) if name == entity[1] else name
                new = first
                while origin_of(owner.setdefault(new, entity)) != origin_of(entity):
                    new = f"{entity[0].rsplit('.', 1)[-1]}_{new}"
                if new != first:
                    self.notes.append(f"{self.target}: import of {entity} in {source.module} as {new}")
                self.alias[source.module][name] = new
        self.owner = owner

    def _text_of(self, source: Source, name: str) -> str:
        """Return the text of a simple assignment of that name, else nothing."""
        for statement in source.tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if [ast.unparse(each) for each in targets] == [name]:
                    return ast.unparse(statement)
        return ""

    def write(self, homes: Mapping[str, Merge]) -> str:
        owner_of = self.owner
        runtime: set[tuple[str, str, str]] = set()
        typed_only: set[tuple[str, str, str]] = set()
        sections: list[str] = []
        comments: dict[str, str] = {}
        docstring = ""
        primary = self.plan.targets[self.target][0]
        if self.target in self.plan.docstrings:
            docstring = f'"""{self.plan.docstrings[self.target]}"""'
        for source in self.sources:
            names = {old: new for old, new in self.final[source.module].items() if old != new}
            names |= {old: new for old, new in self.alias[source.module].items() if old != new}
            inside: dict[str, str] = {}  # names that mean a module of the target
            for name, (module, what) in self.imports[source.module].items():
                if module in self.members:
                    if what:
                        new = self.final[module][what]
                        if new != name:
                            names[name] = new
                    else:
                        inside[name] = module
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in inside:
                    new = self.final[inside[node.value.id]].get(node.attr, node.attr)
                    if source.shadows(node, new):
                        self.notes.append(f"{source.module}:{node.lineno}: {new} is a variable here")
                    source.replace(node, new)
            rewrite_imports(source, homes, self, names)
            attributes_of_modules(source, homes, self.members)
            self.notes += source.rename(names)
            for name, entity in self.imports[source.module].items():
                if entity[0] in self.members:
                    continue
                runtime_here = any(
                    (alias.asname or alias.name) == name and top and not typed
                    for _, alias, top, typed in imported(source)
                )
                new = self.alias[source.module][name]
                entity = owner_of[new]
                (runtime if runtime_here else typed_only).add((*translated(entity, homes), new))
            for node, alias, top, _ in imported(source):
                line = source.lines[node.lineno - 1]
                if top and node.lineno == node.end_lineno and "  # " in line:
                    comments[alias.asname or alias.name] = line[line.index("  # ") :]
            text, own_doc = self._section(source)
            if source.module == primary and self.target not in self.plan.docstrings:
                docstring = own_doc
            elif own_doc:
                inner = ast.literal_eval(own_doc) if own_doc[0] in "\"'" else own_doc
                comment = commented(inner)
                text = f"{comment}\n\n{text}"
            sections.append(text)
        typed_only -= runtime
        lines = [docstring, "", "from __future__ import annotations", ""]
        lines += [statement_of(each) + comments.get(each[2], "") for each in sorted(runtime)]
        if typed_only:
            if ("typing", "TYPE_CHECKING", "TYPE_CHECKING") not in runtime:
                lines.append("from typing import TYPE_CHECKING")
            lines += ["", "if TYPE_CHECKING:"] + [f"    {statement_of(each)}" for each in sorted(typed_only)]
        return "\n".join(lines) + "\n\n" + "\n\n\n".join(sections) + "\n"

    def _section(self, source: Source) -> tuple[str, str]:
        """Return what the source defines, comments included, and its docstring as it is written."""
        body = source.tree.body
        docstring = ""
        kept: list[str] = []
        end = 0
        for index, statement in enumerate(body):
            first, last = end, source.span(statement)[1]
            newline = source.text.find("\n", last)
            last = len(source.text) if newline < 0 else newline
            start = first
            end = last
            if index == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                docstring = source.text[slice(*source.span(statement))]
                continue
            if isinstance(statement, ast.Import | ast.ImportFrom) or typing_only(statement):
                comments = [
                    line for line in source.text[start : source.span(statement)[0]].split("\n") if line.startswith("#")
                ]
                if comments:
                    self.notes.append(f"{source.module}: comment before an import is lost: {comments}")
                continue
            name = self._single_name(statement)
            if name in self.dropped[source.module]:
                continue
            kept.append(source.edited(start, end))
        rest = source.text[end:].strip()
        if rest:
            kept.append("\n" + rest)
        return "".join(kept).strip("\n"), docstring

    def _single_name(self, statement: ast.stmt) -> str:
        if isinstance(statement, ast.Assign):
            return ast.unparse(statement.targets[0])
        return ast.unparse(statement.target) if isinstance(statement, ast.AnnAssign) else ""


def commented(text: str) -> str:
    """Return a docstring as comments, paragraph by paragraph, with lines of at most 118 characters."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        keep = any(line.startswith((" ", "-", "*")) for line in paragraph.split("\n"))
        folded = paragraph.split("\n") if keep else textwrap.wrap(paragraph, 118, break_on_hyphens=False)
        lines += ["", *folded] if lines else folded
    return "\n".join(f"# {line}".rstrip() for line in lines)


def after(stem: str, name: str) -> str:
    """Return *name* with the stem of its module in front, in the case that the name has."""
    bare = name.lstrip("_")
    if bare.isupper():
        fresh = f"{stem.upper()}_{bare}"
    elif bare[0].isupper():
        fresh = "".join(part.capitalize() for part in stem.split("_")) + bare
    else:
        fresh = f"{stem}_{bare}"
    return name[: len(name) - len(bare)] + fresh


def statement_of(entry: tuple[str, str, str]) -> str:
    module, name, bound = entry
    if name == "*":
        return f"import {module}"
    if name == "":
        return f"import {module} as {bound}"
    return f"from {module} import {name}" + ("" if name == bound else f" as {bound}")


def translated(entity: Entity, homes: Mapping[str, Merge]) -> Entity:
    """Return where a name is imported from after the merge, and what it is called there."""
    module, name = entity
    whole = f"{module}.{name}"
    if whole in homes:  # a module
        package, _, last = homes[whole].target.rpartition(".")
        return package, last
    if module in homes:
        merge = homes[module]
        if name not in merge.final[module] and entity in ORIGIN:
            return translated(origin_of(entity), homes)
        return merge.target, merge.final[module].get(name, name)
    if entity in ORIGIN:  # handed on by a package, under the name that it has
        origin = origin_of(entity)
        new = translated(origin, homes)[1]
        return (module, new) if new != origin[1] else entity
    return entity


def rewrite_imports(source: Source, homes: Mapping[str, Merge], merge: Merge | None, names: dict[str, str]) -> None:
    """Rewrite the imports of a file that name a merged module; in a source of *merge* those inside functions alone."""
    own = {id(statement) for statement in source.tree.body} if merge else set()
    typed = {id(node) for each in source.tree.body if merge and typing_only(each) for node in ast.walk(each)}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in own or id(node) in typed:
            continue
        module = node.module or ""
        wholes = [f"{module}.{alias.name}" for alias in node.names]
        handed_on = any(translated((module, alias.name), homes)[1] != alias.name for alias in node.names)
        if module not in homes and not handed_on and not any(whole in homes for whole in wholes):
            continue
        indent = " " * node.col_offset
        made: list[str] = []
        for alias, whole in zip(node.names, wholes, strict=True):
            bound = alias.asname or alias.name
            home = homes.get(whole) or homes.get(module)
            if home is None and translated((module, alias.name), homes)[1] == alias.name:
                made.append(statement_of((module, alias.name, bound)))
                continue
            if home is not None and merge is home:
                final = merge.final[module].get(alias.name, alias.name) if whole not in homes else None
                if final is None:
                    merge.notes.append(f"{source.module}:{node.lineno} imports the module {whole} in a function")
                elif final != bound:
                    merge.notes.append(f"{source.module}:{node.lineno} means {final} by {bound} in a function")
                continue
            package, name = translated((module, alias.name), homes)
            if name != alias.name and alias.asname is None and whole not in homes:
                top = id(node) in {id(each) for each in source.tree.body}
                if top and name not in names.values():
                    names[bound] = name
                    bound = name
            made.append(statement_of((package, name, bound)))
        source.replace(node, f"\n{indent}".join(made) or "pass")


def apply(plan: Plan) -> list[str]:
    files = [path for room in (*PRODUCTION, "tests", "deploy") for path in sorted((ROOT / room).rglob("*.py"))]
    sources = {path: Source.of(path) for path in files}
    by_module = {source.module: source for source in sources.values() if source.path.name != "__init__.py"}
    for module, names in plan.renames.items():
        if module not in plan.home:
            plan.targets[module] = [module]
        unknown = names.keys() - defined_in(by_module[module].tree)
        if unknown:
            raise SystemExit(f"{module} defines no {sorted(unknown)}")
    find_origins(sources.values())
    merges = [Merge(target, [by_module[name] for name in listed], plan) for target, listed in plan.targets.items()]
    homes = {name: merge for merge in merges for name in merge.members}
    notes: list[str] = []
    for merge in merges:
        merge.settle()
    written: dict[Path, str] = {}
    gone: set[Path] = set()
    for merge in merges:
        written[path_of(merge.target)] = merge.write(homes)
        gone |= {path_of(name) for name in merge.members}
        notes += merge.notes
    for path, source in sources.items():
        if source.module in homes and path.name != "__init__.py":
            continue
        renamed: dict[str, str] = {}
        rewrite_imports(source, homes, None, renamed)
        notes += source.rename(renamed)
        attributes_of_modules(source, homes, set())
        if source.edits:
            written[path] = source.edited()
    for source in sources.values():
        path = path_of(homes[source.module].target) if source.module in homes else source.path
        if path in written:
            written[path] = in_prose(written[path], prose_names(source, plan), reexports=path.name == "__init__.py")
    for path in gone - written.keys():
        path.unlink()
    for target in plan.targets:  # a folder that has become a module
        folder = path_of(target).with_suffix("")
        if folder.is_dir() and {each.name for each in folder.iterdir()} <= {"__init__.py", "__pycache__"}:
            shutil.rmtree(folder)
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for module, old, new in plan.locals:
        rename_local(path_of(module), old, new)
    rewrite_texts({name: merge.target for name, merge in homes.items() if name != merge.target}, plan)
    return notes


def prose_names(source: Source, plan: Plan) -> dict[str, str]:
    """Return the new names of classes that a file defines or imports."""
    names = {old: new for old, new in plan.renames.get(source.module, {}).items() if old[0].isupper()}
    for node, alias, _, _ in imported(source):
        if isinstance(node, ast.ImportFrom):
            module, name = origin_of((node.module or "", alias.name))
            new = plan.renames.get(module, {}).get(name)
            if new and name[0].isupper():
                names[name] = new
    return names


def in_prose(text: str, names: Mapping[str, str], *, reexports: bool) -> str:
    """Replace names of classes where comments and docstrings have them in backticks."""
    for old, new in names.items():
        if reexports:
            text = text.replace(f'"{old}"', f'"{new}"')
        text = re.sub(rf"(?<=`){old}(?=[`.(])|(?<=[a-z_]\.){old}(?=`)", new, text)
    return text


def rename_local(path: Path, old: str, new: str) -> None:
    """Rename a variable in those functions of a module that bind it themselves."""
    source = Source.of(path)
    for function in ast.walk(source.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and old in bound_in(function):
            if old in {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}:
                continue  # callers may name it
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id == old:
                    source.replace(node, new)
    path.write_text(source.edited(), encoding="utf-8")


def fold(path: Path) -> None:
    """Break lines of comments and docstrings that have become too long, and hand their ends on to the next line."""
    text = path.read_text(encoding="utf-8")
    if all(len(line) <= WIDTH for line in text.split("\n")):
        return
    prose = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if (token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"))
        or (token.type == tokenize.STRING and token.string.startswith('"""'))
        for line in range(token.start[0], token.end[0] + 1)
    }
    lines = text.split("\n")
    numbers = sorted(prose)
    for index, number in enumerate(numbers):
        line = lines[number - 1]
        start = re.match(r"\s*(?:#\s*)?", line)
        assert start
        if len(line) <= WIDTH:
            continue
        cut = line.rfind(" ", 0, WIDTH + 1)
        if cut <= len(start[0]):
            continue
        head, tail = line[:cut].rstrip(), line[cut:].strip()
        lines[number - 1] = head
        following = lines[number] if index + 1 < len(numbers) and numbers[index + 1] == number + 1 else ""
        same = re.match(r"\s*(?:#\s*)?", following)
        if following.strip(" #") and not following.strip().startswith('"""') and same and same[0] == start[0]:
            lines[number] = f"{start[0]}{tail} {following[len(start[0]) :]}"
        else:
            lines[number - 1] += f"\n{start[0]}{tail}"
    path.write_text("\n".join(lines), encoding="utf-8")


def attributes_of_modules(source: Source, homes: Mapping[str, Merge], members: set[str]) -> None:
    """Rename attributes of modules that are imported whole, where the merge renamed what they define."""
    modules: dict[str, str] = {}
    for statement, alias, _, _ in imported(source):
        if isinstance(statement, ast.ImportFrom) and f"{statement.module}.{alias.name}" in homes.keys() - members:
            modules[alias.asname or alias.name] = f"{statement.module}.{alias.name}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            new = homes[module].final[module].get(node.attr, node.attr)
            if new != node.attr:
                _, end = source.span(node)
                source.edits.append((end - len(node.attr), end, new))
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[0], ast.Name):
            constant = node.args[1]
            if node.args[0].id in modules and isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                module = modules[node.args[0].id]
                new = homes[module].final[module].get(constant.value, constant.value)
                if new != constant.value:
                    source.replace(constant, repr(new).replace("'", '"'))


def rewrite_texts(moved: Mapping[str, str], plan: Plan) -> None:
    """Replace dotted names and paths of modules in every text of the repository, and renamed names behind them."""
    names = {
        f"{moved.get(module, module)}{sign}{old}": f"{moved.get(module, module)}{sign}{new}"
        for module, renamed in plan.renames.items()
        for old, new in renamed.items()
        for sign in ".:"
    }
    if not moved and not names:
        return
    dotted = {name: target for name, target in moved.items()}
    paths = {name.replace(".", "/") + ".py": target.replace(".", "/") + ".py" for name, target in moved.items()}
    table = dotted | paths
    pattern = re.compile(
        r"(?<![\w./])(?:" + "|".join(re.escape(each) for each in sorted(table, key=len, reverse=True)) + r")(?!\w|/)"
    )
    behind = "|".join(re.escape(each) for each in sorted(names, key=len, reverse=True))
    renamed_ones = re.compile(rf"(?<![\w./])(?:{behind})\b")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split("\n"):
        path = ROOT / name
        if not name or not path.is_file() or not name.endswith(TEXTS):
            continue
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        new = pattern.sub(lambda found: table[found[0]], text) if moved else text
        if names:
            new = renamed_ones.sub(lambda found: names[found[0]], new)
        if new != text:
            path.write_text(new, encoding="utf-8")


def circles(roots: Iterable[str] = PRODUCTION) -> list[list[str]]:
    """Return circles of imports that are followed when modules are loaded."""
    arrows: dict[str, set[str]] = {}
    sources = [Source.of(path) for room in roots for path in sorted((ROOT / room).rglob("*.py"))]
    known = {source.module for source in sources}
    for source in sources:
        wanted: set[str] = set()
        for node, alias, top, typed in imported(source):
            if top and not typed and isinstance(node, ast.ImportFrom):
                whole = f"{node.module}.{alias.name}"
                wanted.add(whole if whole in known else node.module or "")
        arrows[source.module] = wanted & known - {source.module}
    left = dict(arrows)
    while True:
        free = [name for name, wanted in left.items() if not wanted & left.keys()]
        if not free:
            break
        for name in free:
            del left[name]
    # what only leads into circles is none
    while True:
        ends = [name for name in left if not any(name in wanted for wanted in left.values())]
        if not ends:
            break
        for name in ends:
            del left[name]
    return [[name, *sorted(wanted & left.keys())] for name, wanted in sorted(left.items())]


def main() -> None:
    if sys.argv[1] == "--fold":
        for room in (*PRODUCTION, "tests"):
            for path in (ROOT / room).rglob("*.py"):
                for _ in range(3):  # what a line hands on may make the next one too long
                    fold(path)
        return
    plan = read_plan(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for note in apply(plan):
        sys.stdout.write(f"{note}\n")
    for circle in circles():
        sys.stdout.write(f"circle: {circle[0]} -> {', '.join(circle[1:])}\n")


if __name__ == "__main__":
    main()
