"""The rules of the house that no linter knows: who may import whom, how long a module is, what may not be written."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from catalog.load import pause_gc
from tests.support.code_lines import code_lines_of_python

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("catalog", "bindings", "registry", "router", "xrouter")
MAY_IMPORT = {
    "catalog": {"catalog"},
    "bindings": {"catalog", "bindings"},
    "registry": {"catalog", "bindings", "registry"},
    "router": {"catalog", "bindings", "registry", "router"},
    "xrouter": {"catalog", "bindings", "router", "xrouter"},
}
CLIENTS = {"confluent_kafka", "httptools", "kafka", "nats", "paho", "proton", "uvloop"}
SPARK = {"delta", "py4j", "pyspark"}
STORES = {"alembic", "psycopg", "sqlalchemy"}
NUMBERS = ROOT / "tests" / "house.json"
"""How large production is. These numbers only fall; a change that must raise one says so in its commit."""
SLACK = {"code_lines": 150}
FEWEST_LINES = 60
MOST_IMPORTS = 12
SHAPELESS_NAMES = {"common", "helpers", "manager", "misc", "utils"}

SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__).resolve())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module: walking a tree takes longer than what most rules ask of it."""
    with pause_gc():  # which would go through all the nodes of all the modules so far, again and again
        return tuple(ast.walk(tree_of(path)))


@cache
def imports_of(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and dotted name of everything imported, wherever in the module; relative imports made absolute."""
    package = path.relative_to(ROOT).parent.parts
    found: list[tuple[int, str]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            found.append((node.lineno, ".".join((*base, *(node.module or "").split(".")))))
    return tuple(found)


def roots_of(path: Path) -> dict[str, int]:
    """Top-level package of each import, with the line it is first met on."""
    found: dict[str, int] = {}
    for line, name in imports_of(path):
        found.setdefault(name.split(".")[0], line)
    return found


def for_each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make one test of a rule, which names every file that breaks it; a test for each file costs more."""

    def rule_of(check: Callable[[Path], None]) -> Callable[[], None]:
        def rule() -> None:
            assert paths
            broken: list[str] = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    broken.append(str(error))
            assert not broken, "\n".join(broken)

        rule.__name__, rule.__doc__ = check.__name__, check.__doc__
        return rule

    return rule_of


every_source = for_each(SOURCES)
every_file = for_each([*SOURCES, *TESTS])


def test_each_room_has_modules() -> None:
    assert {room_of(path) for path in SOURCES} == set(ROOMS)


@every_source
def test_imports_go_one_way(path: Path) -> None:
    allowed = MAY_IMPORT[room_of(path)]
    wrong = {name: line for name, line in roots_of(path).items() if name in {*ROOMS, "tests"} - allowed}
    assert not wrong, f"{name_of(path)} may import only {sorted(allowed)}, but imports (name: line) {wrong}"


@for_each([path for path in SOURCES if room_of(path) == "catalog" or path.name == "codec.py"])
def test_catalog_and_codecs_know_no_spark_and_no_client(path: Path) -> None:
    wrong = {name: line for name, line in roots_of(path).items() if name in SPARK | CLIENTS}
    assert not wrong, f"{name_of(path)} imports (name: line) {wrong}"


def loaded_by(modules: Sequence[str], unwanted: set[str]) -> str:
    """Import *modules* in a process of their own, and return which *unwanted* ones were loaded by the way."""
    script = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"sys.exit(' '.join(sorted({unwanted!r} & sys.modules.keys())) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stderr


def test_importing_catalog_and_codecs_loads_no_spark() -> None:
    wanted = [path for path in SOURCES if room_of(path) == "catalog" or path.name == "codec.py"]
    modules = [name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in wanted]
    assert not loaded_by(modules, SPARK | CLIENTS)


def test_the_command_line_and_settings_start_without_columns_spark_and_clients() -> None:
    assert not loaded_by(["router.cli", "router.settings"], SPARK | CLIENTS | STORES | {"numpy", "pyarrow"})


@for_each([path for path in SOURCES if room_of(path) != "registry"])
def test_only_its_commands_know_the_registry(path: Path) -> None:
    if not name_of(path).startswith("router/commands/registry/"):
        assert "registry" not in roots_of(path), f"{name_of(path)} imports the registry"


@for_each([path for path in SOURCES if room_of(path) == "registry"])
def test_the_registry_knows_no_spark(path: Path) -> None:
    wrong = {name: line for name, line in roots_of(path).items() if name in SPARK}
    assert not wrong, f"{name_of(path)} imports (name: line) {wrong}"


@every_file
def test_modules_are_named_for_what_they_do(path: Path) -> None:
    shapeless = SHAPELESS_NAMES & {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    assert not shapeless, f"{name_of(path)}: {shapeless} says nothing about what is in there"


@cache
def code_lines_of(path: Path) -> int:
    """Lines with code: without blanks, comments and docstrings."""
    return code_lines_of_python(path.read_text(encoding="utf-8"), nodes_of(path))


def says_why_small(path: Path) -> bool:
    """Whether a module says why it is small; what packages hand on, and migrations, need not."""
    if path.name == "__init__.py" or path.parent.name == "versions":
        return True
    return bool(re.search(r"^# Small: \S", path.read_text(encoding="utf-8"), re.MULTILINE))


def internal_imports_of(path: Path) -> set[str]:
    return {name for _, name in imports_of(path) if name.split(".")[0] in ROOMS and "." in name}


def classes_named_twice() -> dict[str, list[str]]:
    """Public classes of one name in several modules, which readers would mistake for one another."""
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    return {name: places for name, places in homes.items() if len(places) > 1}


def own_words() -> list[str]:
    """Words of ours, which a reader has to learn: the rows of the table in ``router/ARCHITECTURE.md``."""
    text = (ROOT / "router/ARCHITECTURE.md").read_text(encoding="utf-8")
    return re.findall(r"^\| ([a-z -]+) \|", text[text.index("## Words") :], re.MULTILINE)[1:]


def measured() -> dict[str, tuple[int, str]]:
    """Each number, and what makes it so large."""
    modules = [path for path in SOURCES if code_lines_of(path)]
    small = [name_of(path) for path in modules if code_lines_of(path) < FEWEST_LINES and not says_why_small(path)]
    wide = Counter({name_of(path): len(internal_imports_of(path)) for path in SOURCES})
    wide = Counter({name: count for name, count in wide.items() if count > MOST_IMPORTS})
    twice, words = classes_named_twice(), own_words()
    return {
        "modules": (len(modules), "modules with code"),
        "code_lines": (sum(map(code_lines_of, modules)), "lines of code in production"),
        "small_modules": (
            len(small),
            f"modules with fewer than {FEWEST_LINES} lines of code and no '# Small: why': {small}",
        ),
        "wide_modules": (len(wide), f"modules that import from more than {MOST_IMPORTS} others: {wide.most_common()}"),
        "classes_named_twice": (len(twice), f"public classes whose name another one has: {twice}"),
        "own_words": (len(words), f"words of our own: {words}"),
    }


def test_the_house_only_shrinks() -> None:
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8"))
    found = measured()
    assert numbers.keys() == found.keys()
    for name, (now, what) in found.items():
        assert now <= numbers[name], f"{name} was {numbers[name]} and is {now}: {what}"
        assert now >= numbers[name] - SLACK.get(name, 0), f"write {now} for {name} into {name_of(NUMBERS)}: it fell"


@for_each([path for path in SOURCES if path.name == "__init__.py"])
def test_faces_only_re_export(path: Path) -> None:
    for node in tree_of(path).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        listing = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
        # What `import xrouter` gives is imported when it is first used: importing all of it takes a second.
        lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
        typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        plain = docstring or listing or lazy or typed or isinstance(node, ast.Import | ast.ImportFrom)
        assert plain, f"{name_of(path)}:{node.lineno} is more than a re-export"


@every_source
def test_no_print_outside_the_command_line(path: Path) -> None:
    if name_of(path).startswith("router/cli"):
        return
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
    lines = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert not lines, f"{name_of(path)} prints on lines {lines}"


@every_source
def test_texts_are_taken_apart_by_ascii_rules_only(path: Path) -> None:
    """What senders write may hold any character: ``splitlines`` ends lines at ten of them, and ``isdigit`` takes
    digits that ``int`` does not. Lines end at line feeds, and ``catalog.values.parse_whole_number`` reads numbers.
    """
    banned = {"splitlines", "isspace", "isdigit", "isnumeric"}
    if name_of(path) == "catalog/values.py":
        banned.remove("isdigit")
    uses = [
        f"line {node.lineno}: {node.attr}"
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in banned
    ]
    assert not uses, f"{name_of(path)} uses {uses}"


@every_source
def test_no_row_wise_python_udf(path: Path) -> None:
    """Python sees whole Arrow arrays or nothing: ``arrow_udf`` is the one way."""
    banned = {"udf", "udtf"}
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark"):
            names = banned & {alias.name for alias in node.names}
            assert not names, f"{name_of(path)}:{node.lineno} imports {names}"
        if isinstance(node, ast.Attribute):
            assert node.attr not in banned, f"{name_of(path)}:{node.lineno} uses {ast.unparse(node)}"


@every_file
def test_nothing_is_left_for_later(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = [number for number, line in enumerate(text.splitlines(), 1) if re.search(r"\b(TODO|FIXME|XXX)\b", line)]
    assert not found, f"{name_of(path)} puts something off on lines {found}; open an issue instead"
    if NotImplementedError.__name__ not in text:
        return
    names = [node for node in nodes_of(path) if isinstance(node, ast.Name)]
    stubs = [node.lineno for node in names if node.id == NotImplementedError.__name__]
    assert not stubs, f"{name_of(path)} is not implemented on lines {stubs}"


MOST_FLOORS = 12


def _room(module: str) -> str:
    """The folder below the package that a module lies in, or the module itself where it lies loose."""
    parts = module.split(".")
    path = ROOT.joinpath(*parts[:2])
    return ".".join(parts[:2]) if path.is_dir() or len(parts) == 2 else parts[0]


@cache
def _arrows() -> dict[str, set[str]]:
    """Which rooms each room imports from."""
    arrows: dict[str, set[str]] = {}
    for path in SOURCES:
        inside = path.relative_to(ROOT).with_suffix("").parts
        here = _room(".".join(inside[:-1] if inside[-1] == "__init__" else inside))
        wanted = {_room(name) for _, name in imports_of(path) if name.split(".")[0] in ROOMS and "." in name}
        arrows.setdefault(here, set()).update(wanted - {here})
    return arrows


def _floors(package: str) -> list[set[str]]:
    """Take the rooms of a package away floor by floor: each stands on those below it alone."""
    left = {room: {name for name in below if name.split(".")[0] == package} for room, below in _arrows().items()}
    left = {room: below for room, below in left.items() if room.split(".")[0] == package}
    floors: list[set[str]] = []
    while left:
        floor = {room for room, below in left.items() if not below & left.keys()}
        assert floor, f"circles among the rooms {sorted(left)}"
        floors.append(floor)
        left = {room: below for room, below in left.items() if room not in floor}
    return floors


def test_rooms_stand_on_one_another_without_a_circle() -> None:
    floors = {package: len(_floors(package)) for package in ROOMS}
    assert floors["router"] <= MOST_FLOORS, f"rooms of router/ stand on {floors['router']} floors"


@every_source
def test_nobody_asks_what_kind_a_sink_is(path: Path) -> None:
    """What a sink may be asked stands in ``router/settings/sinks/contract.py``; kinds are named in ``KINDS`` alone."""
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call) and len(node.args) == 2]
    asked = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "isinstance"]
    wrong = [node.lineno for node in asked if re.search(r"Sink\b", ast.unparse(node.args[1]))]
    assert not wrong, f"{name_of(path)} asks for kinds of sinks on lines {wrong}"


@for_each([path for path in SOURCES if path.name == "__init__.py"])
def test_each_room_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), f"{name_of(path)} has no docstring"
