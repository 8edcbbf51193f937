"""Which HTTP routes take what a later one restricts: compared with what templates take on many paths."""

from __future__ import annotations

from functools import cache
from itertools import product

import httpx
import pytest

from bindings.http.client import ForbiddenHost, create_client
from bindings.http.request import HttpRoute, iter_shadowing_routes
from catalog.documents.connecting import ConnectionPolicy
from catalog.templates import parse_template
from tests.support.web import Answer, Webhook

ANN = frozenset({"ann"})
TEMPLATES = [
    *("/secret", "/{x}", "/s{x}", "/{x}t", "/se{x}et", "/{a}-{b}", "/{x}/y", "/{x}/{y}", "/a/y", "/a-b", "/ab", "/aba"),
    *("/ab{x}ba", "/{a}b{b}", "/a{x}a", "/{x}{y}", "/a", "/", "/a/", "/{x}/"),
    *("/{x}/{x}", "/a/a", "/a/b"),
]
MIDDLES = ["".join(each) for length in range(6) for each in product("ab-", repeat=length)]
ENDS = product(("", "s", "se", "sec"), ("", "t", "et", "ret"))
PATHS = [f"/{head}{middle}{tail}" for head, tail in ENDS for middle in MIDDLES]
PATHS += [f"/{one}/{other}" for one, other in product(("a", "b", "", "ab", "y"), ("y", "a", "", "b"))]


@cache
def fitting(template: str) -> frozenset[str]:
    """Return the paths that a template takes."""
    parsed = parse_template(template)
    return frozenset(path for path in PATHS if parsed.match(path) is not None)


def shadowed(first: str, second: str) -> bool:
    return bool([*iter_shadowing_routes([HttpRoute("/e/1", first), HttpRoute("/e/2", second, users=ANN)])])


@pytest.mark.parametrize("first", TEMPLATES)
def test_two_templates_meet_when_some_path_fits_both(first: str) -> None:
    for second in TEMPLATES:
        assert shadowed(first, second) == bool(fitting(first) & fitting(second)), (first, second)


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (HttpRoute("/e/1", "/{x}"), HttpRoute("/e/2", "/secret", users=ANN), True),
        (HttpRoute("/e/1", "/{x}", users=ANN | {"bob"}), HttpRoute("/e/2", "/secret", users=ANN), True),
        (HttpRoute("/e/1", "/{x}", users=ANN), HttpRoute("/e/2", "/secret", users=ANN | {"bob"}), False),
        (HttpRoute("/e/1", "/{x}"), HttpRoute("/e/2", "/secret"), False),
        (HttpRoute("/e/1", "/{x}", ("PUT",)), HttpRoute("/e/2", "/secret", users=ANN), False),
        (HttpRoute("/e/1", "/secret", users=ANN), HttpRoute("/e/2", "/{x}"), False),
    ],
)
def test_users_and_methods_decide(earlier: HttpRoute, later: HttpRoute, expected: bool) -> None:
    assert bool([*iter_shadowing_routes([earlier, later])]) is expected


def test_long_paths_take_no_time() -> None:
    assert shadowed("/" + "{x}-" * 60 + "a", "/" + "-{y}" * 60 + "a")
    assert not shadowed("/" + "{x}-" * 60 + "a", "/" + "-{y}" * 60 + "b")


# A client for URLs that strangers name connects to judged addresses only.


BEYOND = ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1")
"""Ways to write an address of this machine."""


def judged(*allowed: str) -> httpx.Client:
    return create_client((), None, None, timeout=10.0, in_flight=1, version="1.1", reach=ConnectionPolicy(allowed))


@pytest.mark.parametrize("host", BEYOND)
def test_nothing_is_sent_beyond_reach(host: str) -> None:
    with Webhook(lambda _: Answer(204)) as hook, judged() as ours:
        with pytest.raises(ForbiddenHost, match="not a public host"):
            ours.post(f"http://{host}:{hook.port}/hook")
        assert not hook.seen


@pytest.mark.parametrize(("host", "allowed"), [("127.0.0.1", "127.0.0.0/8"), ("localhost", "localhost")])
def test_what_is_allowed_is_sent_under_the_name_that_was_given(host: str, allowed: str) -> None:
    with Webhook(lambda _: Answer(204)) as hook, judged(allowed) as ours:
        assert ours.post(f"http://{host}:{hook.port}/hook", content=b"x").status_code == 204
    assert hook.taken[0].header("Host") == f"{host}:{hook.port}" and hook.taken[0].body == b"x"


def test_a_name_without_an_address_is_no_answer() -> None:
    with judged() as ours, pytest.raises(httpx.ConnectError, match="has no address"):
        ours.get("https://nothing.invalid/")
