"""What a benchmark ran on, in one line: figures mean nothing without it; and how it tells them."""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from router.errors import JvmError
from router.spark.connectors import find_java


def machine() -> str:
    """Return processor, cores, and the versions that matter to the matcher; nothing that names the machine."""
    versions = [f"Python {platform.python_version()}", f"pyarrow {pa.__version__}", f"numpy {np.__version__}"]
    return ", ".join([processor(), f"{os.cpu_count()} cores", *versions, java()])


def processor() -> str:
    """Return the model of the processor, else its architecture."""
    known = Path("/proc/cpuinfo")
    text = known.read_text(encoding="utf-8", errors="replace") if known.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else platform.machine()


def java() -> str:
    """Return the version of the java command that would be run."""
    try:
        done = subprocess.run([str(find_java()), "-version"], capture_output=True, text=True, timeout=60)
    except JvmError:
        return "no Java"
    found = re.search(r'version "([^"]+)"', done.stderr)
    return f"Java {found[1]}" if found else "an unknown Java"


def options(doc: str | None, arguments: Sequence[str] | None = None, **known: Any) -> argparse.Namespace:
    """Return what a command line says. *known* are defaults, or each with a word about it and the choices."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, told in known.items():
        default, about, *choices = told if isinstance(told, tuple) else (told, None)
        more = {"help": about, "default": default, "choices": choices or None}
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true", help=about)
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="*", **more)
        else:
            parser.add_argument(flag, type=type(default), **more)
    return parser.parse_args(arguments)


def say(text: str) -> None:
    """Write at once: a run takes minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
