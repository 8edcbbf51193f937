"""Sending over HTTP to a real server: what each answer means, order, pauses, and what is never told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from bindings.http.client import parse_retry_after
from bindings.http.publisher import HttpPoster, OutRequest, find_invalid_member
from bindings.parts import Part
from bindings.sending import MessageRefusal, Outbound, Unsettled
from tests.support.ports import free_ports
from tests.support.web import Answer, Taken, Webhook


def requests(hook: Webhook, count: int, lane: str = "") -> list[Outbound]:
    header = [(Part("headers.x-n", b"%d" % n),) for n in range(count)]
    return [Outbound(f"{hook.url}/in?n={n}", header[n], b"%d" % n, lane, str(n)) for n in range(count)]


def number(request: Taken) -> int:
    return int(request.body)


def test_a_2xx_answer_confirms_and_a_4xx_refuses() -> None:
    def answer(request: Taken) -> Answer:
        return Answer(422, body=b"no\x07such thing") if number(request) % 3 == 0 else Answer(200 + number(request))

    with Webhook(answer) as hook:
        poster = HttpPoster(headers=[("Authorization", "Bearer hush")])
        results = poster.send(requests(hook, 7))
        poster.close()
    assert [isinstance(result, MessageRefusal) for result in results] == [n % 3 == 0 for n in range(7)]
    refusal = results[0]
    assert refusal is not None and "422 Unprocessable" in refusal.reason and "no?such thing" in refusal.reason
    assert "n=0" not in refusal.reason and "hush" not in refusal.reason
    assert {request.header("authorization") for request in hook.seen} == {"Bearer hush"}
    assert {request.header("user-agent") for request in hook.seen} == {"xrouter"}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_what_may_pass_is_tried_again(status: int) -> None:
    failed: list[int] = []

    def answer(request: Taken) -> Answer:
        if len(failed) < 2:
            failed.append(number(request))
            return Answer(status)
        return Answer(204)

    with Webhook(answer) as hook:
        assert HttpPoster().send(requests(hook, 2)) == [None, None]
    assert [number(request) for request in hook.seen] == [0, 0, 0, 1]


@pytest.mark.parametrize("status", [301, 401, 407])
def test_what_speaks_of_our_settings_refuses_no_message(status: int) -> None:
    with (
        Webhook(lambda request: Answer(status, {"Location": "/elsewhere"})) as hook,
        pytest.raises(Unsettled, match=f"answers {status} .*; correct its address or our credentials"),
    ):
        HttpPoster().send(requests(hook, 1))
    assert len(hook.seen) == 1


def test_an_error_tells_what_was_settled() -> None:
    def answer(request: Taken) -> Answer:
        return [Answer(), Answer(400), Answer(503), Answer()][number(request)]

    with Webhook(answer) as hook, pytest.raises(Unsettled) as caught:
        HttpPoster().send(requests(hook, 4))
    assert caught.value.settled[0] is None
    assert isinstance(caught.value.settled[1], MessageRefusal)
    assert set(caught.value.settled) == {0, 1}
    assert 3 not in [number(request) for request in hook.seen]


def test_a_lane_keeps_its_order_and_lanes_go_side_by_side() -> None:
    together = threading.Barrier(3, timeout=120)

    def answer(request: Taken) -> Answer:
        if number(request) == 0:
            together.wait()
        return Answer()

    with Webhook(answer) as hook:
        messages = [message for lane in "abc" for message in requests(hook, 20, lane)]
        assert HttpPoster(in_flight=3).send(messages) == [None] * 60
    assert sorted(map(number, hook.seen)) == sorted(list(range(20)) * 3)


def test_nobody_there() -> None:
    port = free_ports(1)[0]
    with pytest.raises(Unsettled, match=f"http://127.0.0.1:{port}/in does not answer: ConnectError"):
        HttpPoster(timeout=2).send([Outbound(f"http://user:hush@127.0.0.1:{port}/in?secret=x", (), None, "", "")])


def test_a_target_that_never_answers_is_not_waited_for_again() -> None:
    gone = threading.Event()

    def answer(request: Taken) -> Answer:
        gone.wait(120)
        return Answer()

    with Webhook(answer) as hook:
        with pytest.raises(Unsettled, match="does not answer: ReadTimeout"):
            HttpPoster(timeout=1).send(requests(hook, 2))
        gone.set()
    assert {number(request) for request in hook.seen} <= {0}


def test_a_target_that_wants_to_be_left_alone_is() -> None:
    with Webhook(lambda request: Answer(429, {"Retry-After": "60"})) as hook:
        poster = HttpPoster()
        with pytest.raises(Unsettled, match="answers 429"):
            poster.send(requests(hook, 1))
        with pytest.raises(Unsettled, match=r"told us to wait [56][0-9] s more"):
            poster.send(requests(hook, 1))
    assert len(hook.seen) == 1


def test_the_handshake_of_webhooks() -> None:
    allowed = ["other.example"]

    def answer(request: Taken) -> Answer:
        return Answer(200, {"WebHook-Allowed-Origin": ",".join(allowed)}) if request.method == "OPTIONS" else Answer()

    with Webhook(answer) as hook:
        poster = HttpPoster(origin="router.example")
        with pytest.raises(Unsettled, match=r"does not allow router.example; allow it there"):
            poster.send(requests(hook, 1))
        allowed.append("router.example")
        assert poster.send(requests(hook, 3)) == [None] * 3
    assert [request.method for request in hook.seen] == ["OPTIONS", "OPTIONS", "POST", "POST", "POST"]
    assert hook.seen[0].header("webhook-request-origin") == "router.example"


def test_what_http_cannot_carry_is_refused() -> None:
    for method in ("", "PO ST", "P\u00d6ST"):
        assert "HTTP method" in find_invalid_member(OutRequest("u", (), method=method))
    assert find_invalid_member(OutRequest("u", (("a b", b"x"),)))
    for value in (b"a\nb", b" a", b"\x00"):
        assert "header ce-x" in find_invalid_member(OutRequest("u", (("ce-x", value),)))
    assert not find_invalid_member(OutRequest("u", (("ce-x", b""), ("ce-y", b"a b\xe9"))))


def test_retry_after() -> None:
    assert parse_retry_after(None) is None
    assert parse_retry_after("soon") is None
    for zone in ("+9999", "-9999", "+99999999999999999999", "-2399"):
        assert parse_retry_after(f"Thu, 01 Jan 1970 00:00:00 {zone}") in (None, 0.0)
        assert parse_retry_after(f"Fri, 31 Dec 9999 23:59:59 {zone}") != 0.0
        assert parse_retry_after(f"Mon, 01 Jan 0001 00:00:00 {zone}") in (None, 0.0)
    assert parse_retry_after("7") == 7.0
    later = parse_retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True))
    assert later is not None and 90 < later <= 100
    assert parse_retry_after("Thu, 01 Jan 1970 00:00:00 GMT") == 0.0


def _ends_at(*numbers: int) -> Callable[[Taken], Answer]:
    def answer(request: Taken) -> Answer:
        if request.method != "OPTIONS" and number(request) in numbers:
            raise ConnectionAbortedError
        return Answer()

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["", "one"])
def test_a_message_at_which_the_target_ends_the_connection_is_given_up_and_others_pass(lane: str) -> None:
    with Webhook(_ends_at(1, 4)) as hook:
        sent = [replace(each, lane=lane or str(n)) for n, each in enumerate(requests(hook, 8))]
        settled = HttpPoster().send(sent)
    assert [n for n, each in enumerate(settled) if each] == [1, 4]
    assert all("ends the connection at this message" in each.reason for each in settled if each)
    assert sorted(number(request) for request in hook.taken) == [0, 2, 3, 5, 6, 7]
    if lane:
        assert [number(request) for request in hook.taken] == [0, 2, 3, 5, 6, 7]


@pytest.mark.slow
def test_thousands_of_headers_cost_no_more_than_their_number() -> None:
    def seconds(count: int) -> float:
        headers = tuple(Part(f"headers.x-{n}", b"v") for n in range(count))
        message = Outbound(f"{hook.url}/in", headers, b"1", "", "")
        began = time.process_time()
        assert isinstance(poster.send([message])[0], MessageRefusal)
        return time.process_time() - began

    with Webhook() as hook:
        poster = HttpPoster()
        seconds(1000)
        # Four times as many would cost sixteen times as much where the square counts.
        assert min(seconds(8000) for _ in range(3)) < 8 * max(min(seconds(2000) for _ in range(3)), 0.02)


def test_cookies_of_a_target_are_not_kept() -> None:
    with Webhook(lambda request: Answer(headers={"Set-Cookie": "a=b"})) as hook:
        HttpPoster().send(requests(hook, 3))
    assert [request.header("cookie") for request in hook.seen] == [None] * 3
