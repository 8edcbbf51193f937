"""The jars that Spark needs beside its own: the four of the Kafka connector, as values for ``spark.jars``.

Run as a module it fetches them and makes a class archive, which is what ``make connectors`` does on a machine that
shall start offline later.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from xml.sax.saxutils import quoteattr

from bindings.private_files import hold_lock
from catalog.findings import to_one_line
from router.errors import ConnectorError, JvmError, RouterError

# Jars are listed in manifests: a JSON object of SHA-256 by path in a Maven repository. The Ivy that pyspark ships
# fetches them into a cache of ours, laid out like a repository. Each is checked at each use; once all are there, no
# start touches the network again.
#
# ``spark.jars.packages`` would fetch nearly the same, but the Kafka connector asks for a token provider 4.2.0 that was
# never published (4.0.0 is the same code), Spark cannot override that, and it would ask the network at each start.

CACHE_VARIABLE: Final = "XROUTER_CACHE"
REPOSITORY_VARIABLE: Final = "XROUTER_MAVEN_REPOSITORY"
PINS: Final = Path(__file__).resolve().with_name("connectors.json")
"""The jars of Spark's Kafka source and sink. All else that they need is on Spark's own class path."""
FETCH_SECONDS: Final = 900
_PLACE: Final = "[orgPath]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"
_SETTINGS: Final = """<ivysettings><settings defaultResolver="maven"/>
<resolvers><ibiblio name="maven" m2compatible="true" root={}/></resolvers></ivysettings>"""
_MODULE: Final = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="xrouter" module="jars"/><configurations><conf name="default"/></configurations>
<dependencies>{}</dependencies></ivy-module>"""
_HINT: Final = (
    f"offline, copy a filled cache here ({CACHE_VARIABLE} names its folder; `make connectors` fills it where there "
    f"is a network); behind a mirror, set {REPOSITORY_VARIABLE} to its URL"
)
_log = logging.getLogger(__name__)


def cache_root() -> Path:
    """Return the folder for what is fetched once: ``XROUTER_CACHE``, else the user's cache folder. It may not exist."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser().resolve()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().resolve() / "xrouter"
    return Path.home() / ".cache" / "xrouter"


def read_pins(manifest: Path = PINS) -> dict[str, str]:
    """Return the SHA-256 of each file of a manifest, by its path in a repository and in the cache."""
    pins: dict[str, str] = json.loads(manifest.read_bytes())
    return dict(sorted(pins.items(), key=lambda each: each[0].rpartition("/")[2]))


def fetch_jars(manifest: Path = PINS) -> list[Path]:
    """Return the jars of a manifest, sorted by name, fetching those that the cache lacks or has damaged.

    Raises:
        ConnectorError: one cannot be fetched or stored, or is not that of the manifest; exit code 7.
        JvmError: there is no Java to fetch one.
    """
    root, pins = cache_root() / "jars", read_pins(manifest)
    try:
        if _find_unfit(root, pins):
            root.mkdir(parents=True, exist_ok=True)
            with hold_lock(root / ".lock"), TemporaryDirectory(dir=root, prefix=".partial-") as folder:
                unfit = _find_unfit(root, pins)
                retrieve_files(unfit, Path(folder))
                if wrong := _find_unfit(Path(folder), {path: pins[path] for path in unfit}):
                    hint = f"remove {root / 'ivy'}; if it fails again, find out why the Maven repository serves others"
                    raise ConnectorError(f"{', '.join(wrong)}: not what this version requires", hint=hint)
                for path in unfit:
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    Path(folder, path).replace(root / path)
    except OSError as error:
        hint = f"make the folder writable, or choose another with {CACHE_VARIABLE}"
        raise ConnectorError(f"cannot store jars in {root}: {error}", hint=hint) from error
    return [root / path for path in pins]


def retrieve_files(paths: Sequence[str], folder: Path) -> None:
    """Fetch files of the Maven repository into a folder, at the same paths; one that is not served may be missing.

    Raises:
        ConnectorError, JvmError: they cannot be fetched.
    """
    if not paths:
        return
    _log.info("fetching %s", ", ".join(paths))
    module, cache = folder / "ivy.xml", cache_root() / "jars" / "ivy"
    module.write_text(_MODULE.format("".join(map(_describe_dependency, paths))), encoding="utf-8")
    command = [str(find_java()), "-Xmx256m", "-jar", str(_find_ivy_jar()), "-cache", str(cache), "-ivy", str(module)]
    if repository := os.environ.get(REPOSITORY_VARIABLE):
        settings = folder / "ivysettings.xml"
        settings.write_text(_SETTINGS.format(quoteattr(repository)), encoding="utf-8")
        command += ["-settings", str(settings)]
    command += ["-types", "jar", "bundle", "tar.gz", "-retrieve", f"{folder}/{_PLACE}"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectorError(f"{', '.join(paths)}: not fetched within {FETCH_SECONDS} s", hint=_HINT) from error
    if done.returncode:
        raise ConnectorError(f"cannot fetch {', '.join(paths)}: {_extract_fault(done.stdout)}", hint=_HINT)


def _find_unfit(root: Path, pins: Mapping[str, str]) -> list[str]:
    """Return the paths of files that are missing or have another hash."""
    return [path for path, pin in pins.items() if not (root / path).is_file() or sha256_of(root / path) != pin]


def _describe_dependency(path: str) -> str:
    """Return a file of a repository as a dependency of Ivy, without those of its own."""
    *organisation, name, revision, file = path.split("/")
    classifier, _, kind = file.removeprefix(f"{name}-{revision}").lstrip("-").partition(".")
    artifact = f'<artifact name="{name}" type="{kind}" ext="{kind}" m:classifier="{classifier}"/>' if classifier else ""
    place = f'org="{".".join(organisation)}" name="{name}" rev="{revision}"'
    return f'<dependency {place} conf="default->master" transitive="false">{artifact}</dependency>'


def _extract_fault(output: str) -> str:
    """Return the lines of Ivy's report that say what went wrong, else its end; credentials in URLs are masked."""
    telling = ("not found", "server access error", "unresolved dependency", "unknownhost", "exception", "failed")
    lines = [line.strip(" :\t") for line in output.split("\n") if line.strip(" :\t")]
    causes = [line for line in lines if any(word in line.lower() for word in telling)] or lines[-3:]
    return re.sub(r"//[^/@\s]+@", "//***@", "; ".join(dict.fromkeys(causes[:4])) or "Ivy said nothing")


def _find_ivy_jar() -> Path:
    # find_spec, not import: importing pyspark costs a second and this may run before anything needs Spark.
    spec = importlib.util.find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or ():
        for jar in Path(place, "jars").glob("ivy-*.jar"):
            return jar
    raise ConnectorError("pyspark has no Ivy jar", hint="reinstall pyspark from its own distribution")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_java() -> Path:
    """Return the java command that Spark takes: that of ``JAVA_HOME`` where it is set, else the first of the path.

    Raises:
        JvmError: there is none.
    """
    if home := os.environ.get("JAVA_HOME"):
        command = Path(home) / "bin" / "java"
        if not command.is_file():
            raise JvmError(f"JAVA_HOME is {home}, which has no bin/java", hint="correct JAVA_HOME, or unset it")
        return command
    if on_path := shutil.which("java"):
        return Path(on_path)
    raise JvmError("java command not found", hint="install Java 17 or 21, or set JAVA_HOME to it")


# A class archive of the JVM (JEP 350): Spark's classes as they are once loaded and verified, which takes a third of the
# processor time of a start. Java maps it only if its own version and all jars are those that it was made with.


_ARCHIVE_SECONDS: Final = 600
"""Longest run of the demo."""


def class_archive() -> Path:
    """Return the path of the class archive for this installation of pyspark; :func:`make_class_archive` writes it."""
    return cache_root() / "classes" / f"{hashlib.sha256(str(_find_ivy_jar()).encode()).hexdigest()[:20]}.jsa"


def make_class_archive() -> None:
    """Run ``xrouter demo`` and keep the classes that its JVM has loaded. Without an archive, routers start slower."""
    archive = class_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)  # Java would not write one while it uses another.
    with TemporaryDirectory(dir=archive.parent) as folder:
        draft, demo = Path(folder, "draft"), Path(folder, "demo")
        options = f"{shlex.quote(f'-XX:ArchiveClassesAtExit={draft}')} -Xlog:cds*=off"
        command = [sys.executable, "-m", "xrouter", "demo", "--keep", str(demo)]
        environ = {**os.environ, "SPARK_SUBMIT_OPTS": options}
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=False, timeout=_ARCHIVE_SECONDS)
        with suppress(FileNotFoundError), (demo / "state" / "lock.jvm").open("rb+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # The JVM has it until it has written the archive.
            draft.rename(archive)


def main() -> int:
    """Fill the cache and write the paths of the jars; return the exit code."""
    try:
        jars = fetch_jars()
    except RouterError as error:
        sys.stderr.write(f"{to_one_line(str(error))}\n")
        return error.exit_code
    sys.stdout.writelines(f"{jar}\n" for jar in jars)
    with suppress(OSError, subprocess.SubprocessError):  # Routers start without one, but slower.
        make_class_archive()
    return 0


if __name__ == "__main__":
    sys.exit(main())
