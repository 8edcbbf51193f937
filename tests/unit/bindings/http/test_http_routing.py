"""Which endpoint takes a request: the first route that takes its path and method, plain text and templates alike."""

from __future__ import annotations

import pytest

from bindings.http.request import HttpRoute, PathRoutes, RouteMatch

ANY = HttpRoute("/endpoints/any", "/plants/{plant}", ("PUT", "POST"))
SEVEN = HttpRoute("/endpoints/seven", "/plants/7", ("POST",), frozenset({"ada"}))
HOME = HttpRoute("/endpoints/home", "/", ("POST",))


@pytest.mark.parametrize(
    ("routes", "method", "path", "expected"),
    [
        ([HOME], "POST", "/", RouteMatch("/endpoints/home", ("POST",))),
        ([HOME], "PUT", "/", RouteMatch(None, ("POST",))),
        ([HOME], "POST", "/else", RouteMatch(None, ())),
        ([SEVEN, ANY], "POST", "/plants/7", RouteMatch("/endpoints/seven", ("POST", "PUT"), frozenset({"ada"}))),
        ([ANY, SEVEN], "POST", "/plants/7", RouteMatch("/endpoints/any", ("PUT", "POST"))),
        ([SEVEN, ANY], "PUT", "/plants/7", RouteMatch("/endpoints/any", ("POST", "PUT"))),
        ([SEVEN, ANY], "GET", "/plants/7", RouteMatch(None, ("POST", "PUT"))),
        ([SEVEN, ANY], "POST", "/plants/8", RouteMatch("/endpoints/any", ("PUT", "POST"))),
    ],
)
def test_the_first_route_that_takes_a_request_wins(
    routes: list[HttpRoute], method: str, path: str, expected: RouteMatch
) -> None:
    assert PathRoutes(routes).find_route(method, path) == expected
