"""What every command line is expected to do: complete, guess what was meant, show an example, and end quietly."""

from __future__ import annotations

import builtins
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import typer
from typer.main import get_command

import router.errors as errors
from catalog.schemas.ids.client import RegistryUnavailableError
from router import cli
from router.cli import UsageError, app, run_command_line
from router.errors import (
    EXIT_CODES,
    ConfigError,
    RouterError,
    SinkError,
    StateError,
    find_batch_fault,
    find_lost_registry,
)
from tests.support.cases import read_cases

ROOT: Final = Path(__file__).resolve().parents[3]
MARKET: Final = str(ROOT / "catalog" / "samples" / "market.xreg.json")
XROUTER: Final = Path(sys.executable).with_name("xrouter")
SECONDS: Final = 60.0
ASK: Final = """
source "$HOME/.bashrc"
COMP_WORDS=(xrouter "$@")
COMP_CWORD=$#
_xrouter_completion xrouter
echo "${COMPREPLY[*]}"
"""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command that does something, with the words that call it."""
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = command.context_class(command, info_name="xrouter")
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))


LEAVES: Final = dict(leaves(get_command(app)))


def words_of_example(command: Any) -> list[str]:
    [line] = re.findall(r"(?m)^Example: (.*)$", command.help)
    return [word for word in shlex.split(line) if not word.startswith("<")]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_the_help_of_each_command_has_an_example_that_it_takes(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    words = words_of_example(command)
    assert words[: 1 + len(path)] == ["xrouter", *path]
    try:
        command.make_context(path[-1], words[1 + len(path) :])
    except UsageError as error:
        pytest.fail(f"{' '.join(words)}: {error}")
    except typer.Exit:
        pass


@pytest.mark.parametrize("path", [(), *sorted({path[:1] for path in LEAVES if len(path) > 1}), *LEAVES], ids=" ".join)
def test_help_speaks_of_values_as_people_do(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([*path, "--help"]) == 0
    assert not re.findall(r"<bool>|<str>|list\[|<int|<float|<Path>|NoneType", capsys.readouterr().out)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The surroundings of a bash in which ``xrouter --install-completion`` was run."""
    home = tmp_path_factory.mktemp("home")
    environ = {**os.environ, "HOME": str(home), "PATH": f"{XROUTER.parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", "xrouter --install-completion; exit $?"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return environ


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["de"], ["dead-letters", "demo"]),
        pytest.param(
            ["dead-letters", ""],
            ["list", "show", "replay", "release", "suggest", "purge"],
            marks=pytest.mark.full,
        ),
        pytest.param(["catalog", "co"], ["convert"], marks=pytest.mark.full),
        pytest.param(["batches", "s"], ["show"], marks=pytest.mark.full),
        pytest.param(["check", "--form"], ["--format"], marks=pytest.mark.full),
        (["check", "--format", ""], ["text", "json", "sarif"]),
    ],
)
def test_bash_completes_what_was_installed(bash: dict[str, str], words: list[str], offered: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", *words], env=bash, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.stdout.split(), done.stderr) == (offered, "")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", pytest.param("fish", marks=pytest.mark.full)])
def test_other_shells_are_answered(shell: str) -> None:
    asked = {
        "_XROUTER_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "xrouter catalog di",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run([XROUTER], env={**os.environ, **asked}, capture_output=True, text=True, timeout=SECONDS)
    assert "diff" in done.stdout and "list" not in done.stdout and done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("--help | head -1", marks=pytest.mark.full),
        f"catalog list {MARKET} | head -1",
        pytest.param("check --explain all | true", marks=pytest.mark.full),
        "--help >&-",
        pytest.param(f"check {MARKET} >&-", marks=pytest.mark.full),
        f"match --catalog {MARKET} <&-",
        pytest.param("--version 2>&-", marks=pytest.mark.full),
    ],
)
def test_a_closed_stream_ends_it_quietly(line: str) -> None:
    done = subprocess.run(["bash", "-c", f"{XROUTER} {line}"], capture_output=True, text=True, timeout=SECONDS)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) <= 1


@pytest.mark.slow
def test_wrong_usage_keeps_its_exit_code_without_standard_error() -> None:
    command = ["bash", "-c", f"{XROUTER} rnu 2>&-"]
    assert subprocess.run(command, capture_output=True, timeout=SECONDS).returncode == 2


# Every error has its own exit code, and is one clear line at the command line.


def test_table_is_complete_and_distinct() -> None:
    declared = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RouterError)}
    assert declared == set(EXIT_CODES)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert not {0, 2} & set(EXIT_CODES.values())


def test_codes_and_text() -> None:
    error = SinkError("lake", "cannot write\nhere", hint="free space")
    assert (error.exit_code, error.message, error.hint) == (8, "sink lake: cannot write here", "free space")
    assert str(error) == "sink lake: cannot write here (free space)"
    assert ConfigError("x").exit_code == 3


def test_an_unexpected_error_is_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer()

    @app.command()
    def fail(kind: str) -> None:
        raise {"zero": ZeroDivisionError("by\nzero"), "sink": SinkError("lake", "full", hint="free it")}[kind]

    monkeypatch.setattr(cli, "app", app)
    assert run_command_line(["zero"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "xrouter: error: unexpected ZeroDivisionError: by zero"
    assert run_command_line(["sink"]) == 8
    assert capsys.readouterr().err == "xrouter: error: sink lake: full\nhint: free it\n"
    monkeypatch.setenv("XROUTER_DEBUG", "1")
    assert run_command_line(["zero"]) == 1
    assert "Traceback" in capsys.readouterr().err


# A command of our own is one entry in the list of commands, and nothing else is edited.


def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"good morning, {name}")


def test_a_command_is_one_entry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.COMMANDS, "greet", f"{__name__}:greet")
    assert cli.run_command_line(["greet", "Ada"]) == 0
    assert cli.run_command_line(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "good morning, Ada" in shown
    assert "Greet somebody." in shown


def test_without_the_entry_there_is_no_such_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_line(["greet", "Ada"]) == 2
    assert "No such command" in capsys.readouterr().err


# Whose fault an error is, and which faults are alike.


CASES: Final = read_cases(Path(__file__).resolve().parents[2] / "cases" / "faults.yaml")
PYTHON: Final = {"SinkError": SinkError, "StateError": StateError, "ArrowInvalid": pa.ArrowInvalid, **vars(builtins)}
SPARK: Final = "org.apache.spark.SparkException"


class JavaError(Exception):
    """An error as the bridge to the JVM raises it: each class and message, then what caused it."""

    def __init__(self, *chain: tuple[str, str | None]) -> None:
        super().__init__("An error occurred while calling o1.x")
        self.java_exception = _Java(list(chain))


class _Java:
    def __init__(self, chain: list[tuple[str, str | None]]) -> None:
        self._chain = chain

    def getClass(self) -> Any:
        return self

    def getName(self) -> str:
        return self._chain[0][0]

    def getMessage(self) -> str | None:
        return self._chain[0][1]

    def getCause(self) -> Any:
        return _Java(self._chain[1:]) if self._chain[1:] else None


def worker(last: str) -> JavaError:
    trace = f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback\n  File x, line 3\n{last}\n"
    python = "org.apache.spark.api.python.PythonException"
    return JavaError((SPARK, "Job aborted due to stage failure"), (python, f"{trace} SQLSTATE: 38000"))


def error_of(form: dict[str, Any]) -> BaseException:
    ((name, given),) = form.items()
    error: BaseException = (
        worker(given) if name == "worker" else JavaError(*given) if name == "jvm" else PYTHON[name](*given)
    )
    return error


@pytest.mark.parametrize("form", CASES["world"], ids=repr)
def test_faults_of_the_world(form: dict[str, Any]) -> None:
    assert find_batch_fault(error_of(form)) is None


@pytest.mark.parametrize("case", CASES["record"], ids=lambda case: case["text"])
def test_faults_of_a_record(case: dict[str, Any]) -> None:
    fault = find_batch_fault(error_of(case["of"]))
    assert fault is not None
    assert (fault.kind, fault.text) == (case["kind"], case["text"])


def test_faults_are_alike_but_for_numbers_and_quoted_values() -> None:
    first, second, other = (
        find_batch_fault(ValueError(text)) for text in ("row 3 of 'a'", "row 17 of 'bc'", "column 3 of 'a'")
    )
    assert first and second and other
    assert first.digest == second.digest
    assert first.digest != other.digest


def test_a_registry_that_is_away_is_told_from_other_errors() -> None:
    """By the class alone: a record's text must not hold a batch."""
    kind = "catalog.schemas.ids.client.RegistryUnavailableError"
    away = worker(f"{kind}: schema registry lake at https://r answers 503")
    assert find_lost_registry(away) == "schema registry lake at https://r answers 503"
    assert find_lost_registry(RegistryUnavailableError("schema registry lake")) == "schema registry lake"
    assert not find_lost_registry(worker(f"ValueError: {kind}: schema registry lake"))
    assert not find_lost_registry(OSError(28, "No space left on device"))
    assert not find_lost_registry(JavaError((SPARK, f"{kind}: schema registry lake")))
