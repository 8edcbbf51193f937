"""Settings: shape, defaults, environment, references, and one clear error for each fault."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from router.errors import ConfigError
from router.settings import KafkaSink, Settings, load_settings, plain_options, settings_from_dict
from router.settings.checks import iter_executor_warnings, iter_inbox_faults
from router.settings.model import find_certificates
from router.settings.routes import (
    DEAD_LETTER_VARIABLES,
    Escape,
    NameTemplateError,
    escape_value,
    make_dead_letter_values,
    make_event_values,
    parse_name,
)
from router.sources import make_inbox_client
from tests.support.cases import filled, read_cases
from tests.support.settings_pages import make_settings_reference as reference

CASES: Final = Path(__file__).parents[3] / "cases" / "settings"
READ: Final = read_cases(CASES / "read.yaml")


def load(tmp_path: Path, text: str, **environ: str) -> Settings:
    file = tmp_path / "router.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, environ)


def fault(tmp_path: Path, text: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **environ)
    assert "\n" not in str(caught.value)
    return caught.value


def test_secrets_are_never_printed_nor_kept_with_a_plan(tmp_path: Path) -> None:
    settings = load(tmp_path, READ[0]["settings"], PLANT_PASSWORD="hush")
    assert "hush" not in repr(settings)
    assert settings.unresolved["sources"][0]["password"] == "${PLANT_PASSWORD}"
    again = settings_from_dict(settings.unresolved, {"PLANT_PASSWORD": "hush"}, tmp_path)
    assert again == settings


def value_of(found: Any) -> Any:
    """Return a value as YAML has it: a secret as it is, a time in seconds."""
    if isinstance(found, SecretStr):
        return found.get_secret_value()
    return found.total_seconds() if isinstance(found, timedelta) else found


def reads(expected: Any, found: Any) -> bool:
    """Whether members of settings, and of what they hold, are as expected."""
    if isinstance(expected, dict):
        members = plain_options(found) if "linger.ms" in expected else found
        got = {name: members[name] if isinstance(members, dict) else getattr(members, name) for name in expected}
        return all(reads(each, got[name]) for name, each in expected.items()) and bool(expected or not found)
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(reads, expected, found))
    return bool(expected == value_of(found))


@pytest.mark.parametrize("case", READ, ids=lambda case: case["case"])
def test_settings_read_as_their_case_says(tmp_path: Path, case: dict[str, Any]) -> None:
    for name, text in case.get("files", {}).items():
        (tmp_path / name).write_text(text)
    settings = load(tmp_path, case["settings"], **case.get("env", {}))
    assert reads(filled(case["reads"], {"$HERE": str(tmp_path)}), settings), settings
    assert case.get("hides", "\0") not in str(settings.unresolved)


@pytest.mark.parametrize("case", read_cases(CASES / "faults.yaml"), ids=lambda case: case["fault"])
def test_faults_name_file_key_and_remedy_and_no_secret(tmp_path: Path, case: dict[str, Any]) -> None:
    told = case["settings"]
    text = told if isinstance(told, str) else yaml.safe_dump(told)
    error = fault(tmp_path, text, **{"P": "hush", **case.get("env", {})})
    assert any(case["fault"] in line for line in (*error.problems, str(error))), error.problems
    assert "hush" not in str(error) and (str(tmp_path / "router.yaml") in error.message or case.get("env"))


@pytest.mark.parametrize("text", read_cases(CASES / "good.yaml"))
def test_good_settings_of_clusters_are_taken(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text).spark.is_local is ("{master: local" in text.replace("'local[", "local["))


def test_all_faults_are_collected(tmp_path: Path) -> None:
    error = fault(tmp_path, "triger: 1s\nlog: {levl: x}")
    assert len(error.problems) == 2
    assert "(and 1 more)" in error.message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read settings .*none.yaml: No such file"):
        load_settings(tmp_path / "none.yaml", {})


def test_reference_documents_every_option() -> None:
    rows = reference()
    assert all(kind and doc.endswith(".") for _, kind, _, doc in rows)
    assert len({key for key, *_ in rows}) == len(rows)
    assert ("match.validate", "never | ambiguous | always", "ambiguous") in [row[:3] for row in rows]
    assert ("inbox.segment_bytes", "size", "64MiB") in [row[:3] for row in rows]


def bomb(line: str) -> str:
    return "x0: &x0 {k: lol}\n" + "".join(
        f"x{level}: &x{level} {line.format(', '.join([f'*x{level - 1}'] * 9))}\n" for level in range(1, 12)
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (bomb("[{}]"), "stands for more than"),
        (bomb("{{<<: [{}]}}"), "stands for more than"),
        ("a: &a [*a]\n", "alias *a stands for nothing read so far"),
    ],
    ids=["sequences", "merges", "itself"],
)
def test_yaml_that_multiplies_is_refused(tmp_path: Path, text: str, told: str) -> None:
    assert told in str(fault(tmp_path, text))


def test_yaml_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    assert "nests deeper than 128 levels" in str(fault(tmp_path, "a: " + "[" * 5000 + "]" * 5000))


# Logins and certificates in the settings: what contradicts itself is refused by name, and no secret is told.


SINK = "sinks: {k: {type: kafka, bootstrap_servers: k, topic: t, %s}, e: {type: jsonl}}\nroutes: [{to: e}]"
INBOX = "inbox: {kafka: {bootstrap_servers: k, topic: t, %s}}"


def test_files_of_logins_are_found_beside_the_settings(tmp_path: Path) -> None:
    login = "username: u, password: '${P}', sasl: oauthbearer, token_endpoint: 'https://i/t', token_ca: i.pem"
    login += ", tls: {ca: c.pem}"
    file = tmp_path / "router.yaml"
    file.write_text(f"{SINK % login}\n{INBOX % login}")
    settings = load_settings(file, {"P": "hush"})
    sink, inbox = settings.sinks["k"], settings.inbox.kafka
    assert isinstance(sink, KafkaSink) and inbox is not None
    for client in (sink.cluster(), make_inbox_client(inbox)):
        assert client.login is not None and client.login.password == "hush"
        assert (client.ca, client.login.token_ca) == (str(tmp_path / "c.pem"), str(tmp_path / "i.pem"))
        assert "hush" not in repr(client)
    assert "hush" not in repr(settings) + str(settings.unresolved)


# The certificates that the settings name, by their keys.


def test_all_that_are_ours_are_found(tmp_path: Path) -> None:
    ours = {"cert": "c.pem", "key": "k.pem"}
    kafka = {"type": "kafka", "bootstrap_servers": "SSL://h:1", "topic": "t"}
    told = {
        "catalog": {"source": "c.json", "logins": [{"url": "https://h", "tls": ours}]},
        "sources": [{"endpoint": "/endpoints/a"}, {"endpoint": "/endpoints/b", "tls": {**ours, "ca": "ca.pem"}}],
        "sinks": {"bus": {**kafka, "tls": ours}, "dead": {**kafka, "tls": {"ca": "ca.pem"}}},
        "routes": [{"to": ["bus"]}],
        "dead_letters": {"sinks": ["dead"]},
        "http": {"tls": {**ours, "cert": "http.pem"}},
    }
    found = find_certificates(settings_from_dict(told, {}, tmp_path))
    assert found == {
        "catalog.logins.0.tls": tmp_path / "c.pem",
        "sources.1.tls": tmp_path / "c.pem",
        "sinks.bus.tls": tmp_path / "c.pem",
        "http.tls": tmp_path / "http.pem",
    }


# What settings say of a cluster: what executors cannot reach is refused by name, before anything starts.


SINKS = """
sinks:
  events: {type: table, path: lake/events}
  bus: {type: kafka, bootstrap_servers: k, topic: t, %s}
  dead: {type: table, format: parquet, path: dead}
routes: [{to: [%s]}]
dead_letters: {sinks: dead}
"""
MASTER = "spark: {master: 'spark://h:7077', driver_host: 10.0.0.5, %s}"
PLAIN = SINKS % ("", "events")


def test_an_inbox_on_this_disk_is_refused(tmp_path: Path) -> None:
    assert not list(iter_inbox_faults(load(tmp_path, PLAIN)))
    [(key, fault)] = iter_inbox_faults(load(tmp_path, PLAIN + MASTER % "shared_folders: lake"))
    assert key == "inbox.kafka" and "spark.shared_folders" in fault
    assert not list(iter_inbox_faults(load(tmp_path, PLAIN + MASTER % "shared_folders: [lake, state]")))
    [(key, _)] = iter_inbox_faults(load(tmp_path, PLAIN + MASTER % "shared_folders: ., python: ./env/bin/python"))
    assert key == "spark.python"
    topic = "\ninbox: {kafka: {bootstrap_servers: k, topic: t}}"
    assert not list(iter_inbox_faults(load(tmp_path, PLAIN + MASTER % "shared_folders: lake" + topic)))


@pytest.mark.parametrize(
    ("more", "cautioned"),
    [
        ("shared_folders: lake", True),
        ("shared_folders: lake, conf: {spark.authenticate: true}", False),
        ("shared_folders: lake, conf: {spark.driver.host: 127.0.0.1}", False),
    ],
)
def test_executors_that_nobody_asks_who_they_are(tmp_path: Path, more: str, cautioned: bool) -> None:
    assert bool(list(iter_executor_warnings(load(tmp_path, PLAIN + MASTER % more)))) is cautioned


# Destination names: every value escaped, distinct ones distinct, none that leads astray.


NAMES: dict[str, Any] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "names.yaml")

SAFE = re.compile(r"[A-Za-z0-9._-]+")
ESCAPES: list[Escape] = ["_", "%"]


@pytest.mark.parametrize(
    ("value", "kafka", "file"),
    [*NAMES["escapes"], ("\ud800", "_ED_A0_80", "%ED%A0%80")],
)
def test_escape(value: str, kafka: str, file: str) -> None:
    assert escape_value(value, "_") == kafka
    assert escape_value(value, "%") == file


@pytest.mark.parametrize("escape", ESCAPES)
@given(st.text(min_size=1, max_size=6, alphabet="_%/.2F5é A"), st.text(min_size=1, max_size=6, alphabet="_%/.2F5é A"))
def test_distinct_values_stay_distinct(escape: Escape, one: str, other: str) -> None:
    assert (escape_value(one, escape) == escape_value(other, escape)) == (one == other)


@given(st.text(max_size=400), st.text(max_size=400))
def test_names_are_always_legal(group: str, context: str) -> None:
    values = {"messagegroup": group, "context.x": context}
    for template in ("{messagegroup}", "{messagegroup}{context.x}", "e.{context.x}"):
        name = parse_name(template).expand(values)
        assert SAFE.fullmatch(name)
        assert name not in (".", "..")
        assert len(name) <= 249


def test_values_of_an_event() -> None:
    values = make_event_values("/messagegroups/Contoso.Sensors/messages/M", "/endpoints/E", "T", {"plant": "7"})
    template = "{messagegroup}.{messageid}.{endpointid}.{type}.{context.plant}.{context.none}"
    assert parse_name(template).expand(values) == "Contoso.Sensors.M.E.T.7._"
    assert parse_name(template).variables[-1] == "context.none"
    assert make_event_values("/endpoints/E/messages/M", "/endpoints/E", "T", {})["messagegroup"] == "E"
    assert make_event_values("", "", "", {})["messagegroup"] == ""


def test_values_of_the_event_itself() -> None:
    told = {"type": "T", "source": "/a/b", "ext": "e", "subject": ""}
    values = make_event_values("/messagegroups/G/messages/M", "/endpoints/E", "", {}, told)
    assert parse_name("{type}.{source}.{attributes.ext}.{attributes.type}").expand(values) == "T._2Fa_2Fb.e.T"
    assert parse_name("{subject}.{attributes.none}").expand(values) == "_._"


@pytest.mark.parametrize(
    ("template", "name", "missing"),
    NAMES["missing"],
)
def test_what_is_missing_has_a_default_or_a_placeholder(template: str, name: str | None, missing: list[str]) -> None:
    values = make_event_values("/m", "/e", "T", {}, {"subject": ""})
    if name is None:
        with pytest.raises(NameTemplateError, match=r"no default after \{context.plant\|"):
            parse_name(template)
        return
    assert parse_name(template).expand(values) == name
    assert list(parse_name(template).missing(values)) == missing


def test_what_is_not_known_yet_stays_as_it_was_written() -> None:
    template = parse_name("e.{type}.{context.plant|none}.{subject}.{source|-}")
    filled = template.fill_known({"type": "a/b", "source": ""}, escape_value)
    assert filled == "e.a_2Fb.{context.plant|none}.{subject}.-"


def test_long_names_end_in_a_digest() -> None:
    one, other = (parse_name("{type}").expand({"type": "x" * 300 + end}) for end in "ab")
    assert len(one) == len(other) == 249
    assert one != other


@pytest.mark.parametrize(
    ("template", "fault"),
    NAMES["faults"],
)
def test_bad_templates(template: str, fault: str) -> None:
    with pytest.raises(NameTemplateError, match=fault):
        parse_name(template)


def test_dead_letters_have_no_definition() -> None:
    values = make_dead_letter_values("/endpoints/E", "no-match")
    assert parse_name("dead.{endpointid}.{reason}", DEAD_LETTER_VARIABLES).expand(values) == "dead.E.no-match"
    with pytest.raises(NameTemplateError, match=r"unknown \{messagegroup\}, \{context\.x\}"):
        parse_name("{messagegroup}{context.x}", DEAD_LETTER_VARIABLES)
