"""A client for URLs that strangers name connects to judged addresses only."""

from __future__ import annotations

import httpx
import pytest

from bindings.http.client import ForbiddenHost, create_client
from catalog.documents.connecting import ConnectionPolicy
from tests.support.web import Answer, Webhook

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
