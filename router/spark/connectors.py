"""The jars that Spark needs beside its own, as values for ``spark.jars``.

Only the Kafka connector so far. Run as a module it fills the cache, names the jars in it, and makes a class archive,
which is what ``make connectors`` does on a machine that shall start offline later.
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
import xml.etree.ElementTree as ET
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bindings.private_files import hold_lock
from catalog.findings import to_one_line
from router.errors import ConnectorError

# Jars from a Maven repository, resolved by the Ivy that pyspark ships and kept in a cache of ours.
#
# ``spark.jars.packages`` would do nearly the same, but it cannot override the revision of a transitive dependency,
# which the Kafka connector needs (:mod:`router.spark.connectors`), and it asks the network at each start. Here each
# request has a folder of its own, named by a hash of the request: once that is whole, no start touches the network
# again.
#
# IvyError ├── JavaMissing      no java command └── ResolutionError  a jar that cannot be fetched

CACHE_VARIABLE: Final = "XROUTER_CACHE"
REPOSITORY_VARIABLE: Final = "XROUTER_MAVEN_REPOSITORY"
RESOLVE_LIMIT_SECONDS: Final = 900
MANIFEST: Final = "manifest.json"
OFFLINE_HINT: Final = (
    f"offline, copy a filled cache here ({CACHE_VARIABLE} names its folder; `make connectors` fills it where there "
    f"is a network); behind a mirror, set {REPOSITORY_VARIABLE} to its URL"
)

_log = logging.getLogger(__name__)


class IvyError(Exception):
    """Jars that cannot be had; the message names what is missing, ``hint`` the remedy."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.hint})"


class JavaMissing(IvyError):
    """No java command, neither in ``JAVA_HOME`` nor on the path."""


class ResolutionError(IvyError):
    """A coordinate that could not be resolved or fetched."""


@dataclass(frozen=True, slots=True, order=True)
class Coordinate:
    """One module of a Maven repository at one revision.

    ``archive`` says how the name of its file ends that is wanted, and that nothing it needs is: ``all.tar.gz``.
    """

    organisation: str
    module: str
    revision: str
    archive: str = ""

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


@dataclass(frozen=True, slots=True)
class JarRequest:
    """A set of jars: *wanted* with all they need at run time.

    ``overrides`` force the revision of a module that something needs; ``excludes`` leave out whole organisations
    or, as ``organisation:module``, single modules, each part an exact name or a regular expression.
    """

    wanted: tuple[Coordinate, ...]
    overrides: tuple[Coordinate, ...] = ()
    excludes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A name for the request: equal requests have equal digests, on every machine."""
        return hashlib.sha256(json.dumps(self.plain_data, sort_keys=True).encode()).hexdigest()[:20]

    @property
    def plain_data(self) -> dict[str, Any]:
        """The request as plain data, without what is left empty since there are archives: caches outlive versions."""
        return asdict(
            self, dict_factory=lambda pairs: {name: each for name, each in pairs if name != "archive" or each}
        )

    def __str__(self) -> str:
        return ", ".join(map(str, self.wanted))


def cache_root() -> Path:
    """Return the folder for what is fetched once: ``XROUTER_CACHE``, else the user's cache folder. It may not exist."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser().resolve()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().resolve() / "xrouter"
    return Path.home() / ".cache" / "xrouter"


def resolve_jars(request: JarRequest, into: Path | None = None) -> tuple[Path, ...]:
    """Return the jars of *request*, sorted by name, fetching them only when the cache *into* lacks them.

    *into* defaults to ``jars`` below :func:`cache_root`. A folder is filled beside its place and renamed when whole,
    so a crash leaves no half of one; another process that wants to fill the cache waits for the first. A folder
    whose files no longer have the sizes they had is filled anew.

    Raises:
        ResolutionError: something cannot be fetched, or the cache cannot be written.
        JavaMissing: the cache lacks the jars and there is no Java to fetch them.
    """
    root = into if into is not None else cache_root() / "jars"
    folder = root / request.digest
    try:
        if jars := _list_complete(folder):
            return jars
        root.mkdir(parents=True, exist_ok=True)
        with hold_lock(root / ".lock"):
            if not _list_complete(folder):
                _log.info("fetching %s into %s", request, root)
                _fetch_jars(request, root, folder)
            return _list_complete(folder)
    except OSError as error:
        hint = f"make the folder writable, or choose another with {CACHE_VARIABLE}"
        raise ResolutionError(f"cannot store {request} in {root}: {error}", hint=hint) from error


def find_java() -> Path:
    """Return the java command that Spark takes: that of ``JAVA_HOME`` where it is set, else the first of the path.

    Raises:
        JavaMissing: there is none.
    """
    if home := os.environ.get("JAVA_HOME"):
        command = Path(home) / "bin" / "java"
        if not command.is_file():
            raise JavaMissing(f"JAVA_HOME is {home}, which has no bin/java", hint="correct JAVA_HOME, or unset it")
        return command
    if on_path := shutil.which("java"):
        return Path(on_path)
    raise JavaMissing("java command not found", hint="install Java 17 or 21, or set JAVA_HOME to it")


def _list_complete(folder: Path) -> tuple[Path, ...]:
    """Return the jars of a complete folder, else nothing. Sizes are checked, since a rename may outlive lost pages."""
    try:
        sizes: dict[str, int] = json.loads((folder / MANIFEST).read_bytes())["jars"]
        jars = tuple(folder / name for name in sorted(sizes))
        return jars if all(jar.stat().st_size == sizes[jar.name] for jar in jars) else ()
    except (FileNotFoundError, ValueError, KeyError):
        return ()


def _fetch_jars(request: JarRequest, root: Path, folder: Path) -> None:
    """Fetch into a folder beside *folder* and rename; the caller holds the lock."""
    partial = root / f".partial-{request.digest}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        settings, module = partial / "ivysettings.xml", partial / "ivy.xml"
        settings.write_bytes(_make_settings_xml(os.environ.get(REPOSITORY_VARIABLE)))
        module.write_bytes(_make_module_xml(request))
        _run_ivy(request, settings, module, root / "ivy", partial)
        endings = (".jar", *(item.archive for item in request.wanted if item.archive))
        jars = {file.name: file.stat().st_size for file in sorted(partial.iterdir()) if file.name.endswith(endings)}
        if not jars:
            raise ResolutionError(f"{request} has no jar", hint="check that the coordinate names a jar")
        manifest = {"request": request.plain_data, "jars": jars}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run_ivy(request: JarRequest, settings: Path, module: Path, cache: Path, target: Path) -> None:
    command = [str(find_java()), "-Xmx256m", "-jar", str(_find_ivy_jar())]
    command += ["-settings", str(settings), "-cache", str(cache), "-ivy", str(module)]
    archives = [kind for item in request.wanted if (kind := item.archive.partition(".")[2])]
    name = "[artifact]-[revision](-[classifier]).[ext]" if archives else "[artifact]-[revision].[ext]"
    command += ["-types", "jar", "bundle", *archives, "-retrieve", f"{target}/{name}"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=RESOLVE_LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        message = f"{request} was not downloaded within {RESOLVE_LIMIT_SECONDS} s"
        raise ResolutionError(message, hint=OFFLINE_HINT) from error
    if done.returncode != 0:
        raise ResolutionError(f"cannot fetch {request}: {_extract_fault(done.stdout)}", hint=OFFLINE_HINT)


def _extract_fault(output: str) -> str:
    """Return the lines of Ivy's report that say what went wrong, else its end; credentials in URLs are masked."""
    telling = ("not found", "server access error", "unresolved dependency", "unknownhost", "exception", "failed")
    lines = [line.strip(" :\t") for line in output.split("\n") if line.strip(" :\t")]
    causes = [line for line in lines if any(word in line.lower() for word in telling)] or lines[-3:]
    text = "; ".join(dict.fromkeys(causes[:4])) or "Ivy said nothing"
    return re.sub(r"//[^/@\s]+@", "//***@", text)


def _find_ivy_jar() -> Path:
    # find_spec, not import: importing pyspark costs a second and this may run before anything needs Spark.
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise ResolutionError("pyspark has no Ivy jar", hint="reinstall pyspark from its own distribution")


def _make_settings_xml(repository: str | None) -> bytes:
    """Return Ivy's settings: its own default repository, or *repository*, in Maven's layout."""
    if repository and not re.match(r"(https?|file)://?[^\s]+$", repository):
        message = f"{REPOSITORY_VARIABLE} is not a URL of a Maven repository"
        raise ResolutionError(message, hint="write it as https://HOST/PATH or file:///PATH")
    root = ET.Element("ivysettings")
    ET.SubElement(root, "settings", defaultResolver="maven")
    resolver = ET.SubElement(ET.SubElement(root, "resolvers"), "ibiblio", name="maven", m2compatible="true")
    if repository:
        resolver.set("root", repository)
    return ET.tostring(root)


def _make_module_xml(request: JarRequest) -> bytes:
    """Return the request as an Ivy module. Ivy's schema fixes the order: dependencies, excludes, overrides."""
    root = ET.Element("ivy-module", {"version": "2.0", "xmlns:m": "http://ant.apache.org/ivy/maven"})
    ET.SubElement(root, "info", organisation="xrouter", module=request.digest)
    ET.SubElement(ET.SubElement(root, "configurations"), "conf", name="default")
    dependencies = ET.SubElement(root, "dependencies")
    for item in request.wanted:
        # runtime, not default: compile-only and optional dependencies stay out
        named = {"org": item.organisation, "name": item.module, "rev": item.revision}
        if not item.archive:
            ET.SubElement(dependencies, "dependency", named, conf="default->runtime,master")
            continue
        whole = ET.SubElement(dependencies, "dependency", named, conf="default->master", transitive="false")
        classifier, _, kind = item.archive.partition(".")
        wanted = {"name": item.module, "type": kind, "ext": kind, "m:classifier": classifier}
        ET.SubElement(whole, "artifact", wanted)
    for text in request.excludes:
        organisation, _, name = text.partition(":")
        # not the glob matcher, which needs a library that pyspark does not ship
        ET.SubElement(dependencies, "exclude", org=organisation, module=name or ".*", matcher="exactOrRegexp")
    for item in request.overrides:
        ET.SubElement(
            dependencies, "override", org=item.organisation, module=item.module, rev=item.revision, matcher="exact"
        )
    return ET.tostring(root)


# Jars held against hashes that came with the code, not from the server that the jars came from.
#
# A manifest is a JSON object of SHA-256 by file name, one for each request.


class PinMismatch(IvyError):
    """A jar that is not the one its manifest names, or a set of jars that is not the manifest's."""


def resolve_pinned(request: JarRequest, manifest: Path, into: Path | None = None) -> tuple[Path, ...]:
    """Return what :func:`router.spark.connectors.resolve_jars` returns, each byte checked, just fetched or long kept.

    Raises:
        PinMismatch: a file is another than the manifest says, is missing from it, or missing here.
        IvyError: as ``resolve``.
    """
    jars = resolve_jars(request, into)
    pins: dict[str, str] = json.loads(manifest.read_bytes())
    for jar in jars:
        if pins.get(jar.name) != sha256_of(jar):
            raise _mismatch_error(f"{jar} is not the file that this version requires", jar.parent)
    if missing := sorted(pins.keys() - {jar.name for jar in jars}):
        raise _mismatch_error(f"{jars[0].parent} lacks {', '.join(missing)}", jars[0].parent)
    return jars


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mismatch_error(message: str, folder: Path) -> PinMismatch:
    hint = (
        f"remove {folder}, and it is downloaded again; if that fails again, the Maven repository serves another file: "
        f"do not use it before you know why"
    )
    return PinMismatch(message, hint=hint)


KAFKA: Final = JarRequest(
    wanted=(Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),),
    # The connector asks for a token provider 4.2.0 that was never published; 4.0.0 is the same code.
    overrides=(Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),),
    # All of this is on Spark's own class path, in the versions Spark was tested with.
    excludes=(
        "at.yawk.lz4",
        "com.google.code.findbugs",
        "org.apache.hadoop",
        "org.apache.spark:spark-tags_.*",
        "org.lz4",
        "org.scala-lang",
        "org.scala-lang.modules",
        "org.slf4j",
        "org.xerial.snappy",
    ),
)
"""Spark's Kafka source and sink: the connector, its token provider, kafka-clients and commons-pool2."""
PINS: Final = Path(__file__).resolve().with_name("connectors.json")
"""The SHA-256 of each of them; ``make pins`` writes it."""


def resolve_kafka_jars(into: Path | None = None) -> list[Path]:
    """Return the four jars of the Kafka connector for ``spark.jars``, fetching them when the cache lacks them.

    *into* names another cache than :func:`router.spark.connectors.cache_root`. Once the cache is filled no network is
    touched. Every call hashes them all, 10 MB.

    Raises:
        ConnectorError: they are missing and cannot be fetched, or not those of the manifest; exit code 7.
    """
    try:
        return list(resolve_pinned(KAFKA, PINS, into))
    except IvyError as error:
        raise ConnectorError(str(error.args[0]), hint=error.hint) from error


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
        command = [sys.executable, "-m", "router", "demo", "--keep", str(demo)]
        environ = {**os.environ, "SPARK_SUBMIT_OPTS": options}
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=False, timeout=_ARCHIVE_SECONDS)
        with suppress(FileNotFoundError), (demo / "state" / "lock.jvm").open("rb+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # The JVM has it until it has written the archive.
            draft.rename(archive)


def main() -> int:
    """Fill the cache and write the paths of the jars; return the exit code."""
    try:
        jars = resolve_kafka_jars()
    except ConnectorError as error:
        sys.stderr.write(f"{to_one_line(str(error))}\n")
        return error.exit_code
    sys.stdout.writelines(f"{jar}\n" for jar in jars)
    with suppress(OSError, subprocess.SubprocessError):  # Routers start without one, but slower.
        make_class_archive()
    return 0


if __name__ == "__main__":
    sys.exit(main())
