"""What all faces have in common: a path of their own, the server's rules of access, and one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bindings.http.request import Reply, RequestHead
from registry.apis.apis import apis_by_path
from registry.core.requests import RegistryRequest
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.access import ApiCall, RegistryApi
from tests.support.registry import served


@dataclass
class Told(RegistryApi):
    """A face that writes two endpoints, of which the second may be refused, and tells what it was asked."""

    service: RegistryService
    calls: list[ApiCall] = field(default_factory=list)

    def reply(self, call: ApiCall) -> Reply:
        self.calls.append(call)
        if call.head.method == "GET":
            return Reply(200, (), f"{call.path.decode()} {call.url} {call.registry}".encode())
        if call.head.method == "DELETE":
            raise RuntimeError("a fault of ours")
        with self.service.session(writing=True) as session:
            for name in ("first", call.path.decode().removeprefix("/")):
                request = RegistryRequest("replace", ("endpoints", name), call.url, call.url, body={})
                session.perform(request)
            assert session.reader.group("/endpoints/first") is not None
        return Reply(204, ())

    def error_reply(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        return Reply(refusal.status, (), f"{url} says {refusal.name}".encode())


FACES = {"/old/one": Told}


def test_a_face_is_asked_below_its_path_alone(tmp_path: Path) -> None:
    with served(tmp_path, apis=FACES) as client:
        base = str(client.base_url).rstrip("/")
        assert client.get("/old/one").text == f" {base}/old/one {base}"
        assert client.get("/old/one/a%2Fb?x").text == f"/a%2Fb {base}/old/one {base}"
        assert client.get("/old/ones").json()["type"].endswith("#unknown_group_type")
        assert client.get("/endpoints").json() == {}


def test_writes_of_a_face_are_one_transaction(tmp_path: Path) -> None:
    with served(tmp_path, apis=FACES) as client:
        refused = client.put("/old/one/%20")
        assert refused.status_code == 400 and refused.text.endswith("/old/one says malformed_id")
        assert client.get("/endpoints").json() == {}
        assert client.put("/old/one/second").status_code == 204
        assert list(client.get("/endpoints").json()) == ["first", "second"]


def test_faults_are_told_by_the_face(tmp_path: Path) -> None:
    with served(tmp_path, apis=FACES) as client:
        assert client.delete("/old/one").text.endswith("says server_error")


@pytest.mark.parametrize(
    "paths", [{"unheard": "/of"}, {"cloudevents": "of"}, {"cloudevents": "/"}, {"cloudevents": "/a/"}]
)
def test_paths_that_are_none(paths: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        apis_by_path(paths)


def test_the_lookup_of_message_catalogs_is_beside_the_catalog(tmp_path: Path) -> None:
    with served(tmp_path, apis=apis_by_path({"messagecatalog": "/old/messagecatalog"})) as client:
        assert client.put("/old/messagecatalog/g", json={"format": "CloudEvents"}).status_code == 201
        definition = {"attributes": {"type": {"value": "m"}}}
        made = client.post("/old/messagecatalog/g/messagedefinitions", json={"id": "m", "definition": definition})
        assert made.status_code == 201, made.text
        uri = f"{made.json()['authority'].rstrip('/')}/g/messagedefinitions/m"
        assert client.get("/old/messagedefinition", params={"uri": uri}).json()["id"] == "m"
        assert client.get("/old/messagedefinition", params={"uri": "http://nowhere.example/g"}).status_code == 404
        assert client.get("/old/messagedefinition").status_code == 400
