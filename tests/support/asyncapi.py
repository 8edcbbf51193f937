"""Whether documents are AsyncAPI 3.0: by rules of our own, and by the schema that AsyncAPI publishes.

That schema is in a package of npm, which is fetched once, checked by its hash, and kept in the cache of tools; it is no
part of the repository.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema_rs

from router.spark.connectors import cache_root
from tests.support.cases import read_cases

_PACKAGE: Final = "@asyncapi/specs@6.11.1"
_HASH: Final = "01af8744dc33c0c7eb2e908f6a955319ee58b70ecadc9387d1aeb16c0cd28928"
_MEMBER: Final = "package/schemas/3.0.0-without-$id.json"
_SECONDS: Final = 300
_OBJECTS: Final[Mapping[str, Any]] = read_cases(Path(__file__).resolve().parents[1] / "cases/asyncapi_objects.yaml")
_KEY: Final = re.compile(r"[A-Za-z0-9._-]+")
_PARAMETER: Final = re.compile(r"\{([^{}]*)\}")


def find_faults(document: Mapping[str, Any]) -> list[str]:
    """Return what is wrong by our own rules: names, required members, keys, parameters and local references."""
    faults: list[str] = []

    def check(kind: str, name: str, body: Mapping[str, Any]) -> None:
        known = _OBJECTS[kind]
        faults.extend(f"{kind} {name}: {each}" for each in body if each not in known["may"] and each[:2] != "x-")
        faults.extend(f"{kind} {name} lacks {each}" for each in known["must"] if each not in body)

    check("root", "", document)
    check("info", "", document["info"])
    components = document.get("components", {})
    for kind in ("servers", "channels", "operations", "messages"):
        for name, body in (components if kind == "messages" else document).get(kind, {}).items():
            check(kind, name, body)
    for listed in (*components.values(), document.get("servers", {}), document.get("channels", {})):
        faults.extend(f"key {name}" for name in listed if not _KEY.fullmatch(name))
    for name, channel in document.get("channels", {}).items():
        wanted = set(_PARAMETER.findall(channel.get("address") or ""))
        if wanted - channel.get("parameters", {}).keys():
            faults.append(f"channel {name} has parameters {wanted}")
    faults.extend(_find_dangling(document))
    return faults


def _find_dangling(document: Mapping[str, Any]) -> list[str]:
    """Return the references within the document that lead nowhere, except inside extensions."""
    dangling: list[str] = []
    waiting: list[Any] = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            waiting.extend(value for name, value in node.items() if not name.startswith("x-"))
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/") and not _leads_somewhere(document, reference):
                dangling.append(reference)
    return dangling


def _leads_somewhere(document: Any, reference: str) -> bool:
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~").replace("%24", "$").replace("%20", " ")
        if isinstance(document, list) and name.isdecimal():
            document = document[int(name)] if int(name) < len(document) else None
        else:
            document = document.get(name) if isinstance(document, dict) else None
    return document is not None


def validator() -> Callable[[Any], list[str]]:
    """Return what lists how a document violates the schema of AsyncAPI 3.0.

    Raises:
        RuntimeError: the package that has it cannot be had, or is another than expected.
    """
    folder = cache_root() / "asyncapi"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"specs-{_HASH[:16]}.tgz"
    if not archive.exists():
        done = subprocess.run(
            ["npm", "pack", _PACKAGE, "--silent"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{_PACKAGE} cannot be fetched: {done.stderr.strip()[:500]}")
        (folder / done.stdout.split()[-1]).rename(archive)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != _HASH:
        archive.unlink()
        raise RuntimeError(f"{_PACKAGE} has the hash {found}, not {_HASH}")
    with tarfile.open(archive) as package:
        member = package.extractfile(_MEMBER)
        assert member is not None
        schema = jsonschema_rs.validator_for(json.loads(member.read()))
    return lambda document: [
        f"{list(each.instance_path)}: {each.message[:200]}" for each in schema.iter_errors(document)
    ]
