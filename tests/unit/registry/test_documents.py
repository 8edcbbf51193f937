"""Documents that are imported and exported again mean what they meant."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line
from router.commands.registry.settings import load_registry
from router.errors import ConfigError
from tests.support.cases import read_cases, spread
from tests.support.corpora import CORPORA, SHARED

ROOT = Path(__file__).parents[3]
FEEDS = ("aisstream", "openaq", "nextbus", "dwd", "entur-norway")
"""Of the feeds, which are much alike."""
FOLDER = ROOT / "catalog" / "samples"
OLDER = ("beehive.xreg.json", "depot.xreg.json")
"""Samples that are no xRegistry 1.0; `catalog push` takes those."""
SAMPLES = sorted(path for path in FOLDER.glob("*.xreg.*") if path.name not in OLDER)
REAL = sorted(
    path
    for path in CORPORA.rglob("*.xreg.json")
    if "feeders" not in path.parts or path.name.removesuffix(".xreg.json") in FEEDS
)
REFUSED = {
    "minimal-amqp-external-xsd.xreg.json": 'attribute "schemaurl"',  # which begins with spaces
    "schemastore_org.xreg.json": 'Attribute "format" would differ',
}
"""Documents that xRegistry 1.0 does not allow, with what is wrong."""


@pytest.mark.shared
def test_there_are_documents() -> None:
    assert len(SAMPLES) >= 4 and len(REAL) >= (20 if SHARED else 0)


@pytest.mark.slow
@pytest.mark.parametrize("document", [*SAMPLES, *spread(REAL, quick=10)], ids=lambda path: path.name)
def test_a_document_means_the_same_after_import_and_export(
    document: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "registry.yaml"
    config.write_text("open: true\nlint: report\n")
    status = run_command_line(["registry", "import", str(config), str(document)])
    told = capsys.readouterr().err
    if document.name in REFUSED:
        assert status == 1 and REFUSED[document.name] in told
        return
    tree = json.loads(document.read_text("utf-8")) if document.suffix == ".json" else {}
    if isinstance(tree.get("documentation"), dict):  # which is a URL in 1.0: refused, rather than lost
        assert status == 1 and 'attribute "documentation" for "/"' in told
        without = tmp_path / document.name
        without.write_text(json.dumps({name: each for name, each in tree.items() if name != "documentation"}))
        status = run_command_line(["registry", "import", str(config), str(without)])
        told = capsys.readouterr().err
    assert status == 0, told
    exported = tmp_path / "out.xreg.json"
    beside = document.parent / document.name.partition(".")[0]
    if beside.is_dir():  # with schemas that the document refers to by relative addresses
        shutil.copytree(beside, tmp_path / beside.name)
    assert run_command_line(["registry", "export", str(config), str(exported)]) == 0, capsys.readouterr().err
    before, after = load([document]), load([exported])
    assert before.definitions.keys() == after.definitions.keys()
    assert before.endpoints == after.endpoints
    for xid, definition in before.definitions.items():
        assert after.definitions[xid] == definition, xid


@pytest.mark.slow
def test_the_commands_start_without_spark() -> None:
    script = (
        "import sys; from router.commands.registry import serve;"
        "sys.exit(' '.join({'pyspark', 'py4j'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("settings", "told"), read_cases(ROOT / "tests" / "cases" / "settings" / "registry.yaml"))
def test_settings_that_cannot_be(
    settings: dict[str, Any],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "hush")
    config = tmp_path / "registry.yaml"
    config.write_text(yaml.safe_dump(settings))
    assert run_command_line(["registry", "serve", str(config)]) == 3
    said = capsys.readouterr().err
    assert told in said and "hush" not in said


def test_the_environment_overrides_settings(tmp_path: Path) -> None:
    config = tmp_path / "registry.yaml"
    config.write_text("open: true\nhttp: {port: 1}\n")
    environ = {
        "XREGISTRY_HTTP__PORT": "2",
        "XREGISTRY_STORE__URL": "postgresql://u@h/d",
        "XREGISTRY_STORE__PASSWORD": "secret",
        "XREGISTRY_ROLES__ADMINISTRATORS": '["a"]',
        "XREGISTRY_PATH": "that of another program",
        "XROUTER_HTTP__PORT": "3",
    }
    given, settings = load_registry(config, environ)
    assert (settings.port, settings.store) == (2, "postgresql+psycopg://u:secret@h/d")
    assert given.roles.administrators == ("a",)
    with pytest.raises(ConfigError, match="XREGISTRY_HTTP__PROT is not a setting"):
        load_registry(config, {"XREGISTRY_HTTP__PROT": "2"})
