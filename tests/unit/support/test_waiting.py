from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support import waiting
from tests.support.ports import LOOPBACK, free_ports
from tests.support.waiting import wait_until


def test_the_first_true_value_comes_back() -> None:
    answers = iter([None, "", "ready"])
    assert wait_until(lambda: next(answers), 120, "an answer") == "ready"


def test_without_time_the_condition_is_still_asked() -> None:
    assert wait_until(lambda: True, 0, "nothing")


@pytest.mark.parametrize("message", ["the bus", lambda: "the bus"])
def test_a_limit_names_what_was_waited_for(message: str) -> None:
    with pytest.raises(TimeoutError, match=r"after 0\.05 s still waiting for the bus"):
        wait_until(lambda: False, 0.05, message)


def test_errors_of_the_condition_go_through() -> None:
    def broken() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wait_until(broken, 10, "nothing")


@pytest.mark.parametrize(("wanting", "share"), [(1, 1.0), (2, 1.0), (4, 0.5), (60, 0.4)])
def test_time_counts_less_where_many_want_the_cores(
    wanting: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "loadavg"
    told.write_text(f"9.99 9.99 9.99 {wanting}/999 4321\n")
    monkeypatch.setattr(waiting, "_LOAD", told)
    monkeypatch.setattr(waiting, "_CORES", 2)
    assert waiting.share_of_a_core() == share


def test_where_nothing_says_so_all_time_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_LOAD", tmp_path / "missing")
    assert waiting.share_of_a_core() == 1.0


def test_ports_are_free_different_and_stay_out_of_the_way() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    with socket.create_server((LOOPBACK, 0)) as outgoing:
        assert max(ports) < outgoing.getsockname()[1]
    for port in ports:
        with socket.create_server((LOOPBACK, port)):
            pass
