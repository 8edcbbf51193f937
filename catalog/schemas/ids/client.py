"""A client of schema registries with Confluent's API, also of Apicurio (``/apis/ccompat/v7``), Redpanda and Karapace.

Responses are limited in size and time, and so are the references of a schema. "Not found" and "unavailable" are
different: only the API's own error codes mean that something does not exist. After any other error the batch waits,
because most are configuration mistakes (a wrong login or address), which must not turn records into dead letters.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote

import msgspec

from catalog.documents.connecting import (
    ANY_HOST,
    AnswerTooLarge,
    ConnectionPolicy,
    Credentials,
    FetchLimits,
    HttpAnswer,
    Logins,
    OriginLogin,
)
from catalog.documents.registry_api import send_json
from catalog.findings import CatalogError, DocumentError

# Schemas by id, and the interface of everything that can resolve ids (MATCHING.md#schema-ids).

Framing = Literal["auto", "confluent", "apicurio", "glue", "none"]
"""The frame of a Kafka source's bodies: ``auto`` is ``confluent``, or no frame."""


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """The writer's schema of a body: a registry's schema with its id. It never changes.

    ``family`` is the name of a family (``Avro``, ``Protobuf``, ``JsonSchema``), ``document`` the text of the schema,
    ``references`` the texts of all schemas that it refers to, directly or not, by the names in the references.
    ``subjects`` are the sorted subjects and versions under which it was registered when first requested. ``fault`` says
    why it can never be used, for example because of a dangling reference; it is empty otherwise.
    """

    id: str
    family: str
    document: str
    references: Mapping[str, str] = field(default_factory=dict)
    subjects: tuple[tuple[str, int], ...] = ()
    fault: str = ""


class RegistryUnavailableError(CatalogError):
    """A schema registry is unavailable: the batch waits, and no record becomes a dead letter.

    The message has the registry, its address and the reason, but no secrets.
    """


class SchemaIds(Protocol):
    """Resolves the ids of one schema registry. Picklable; not thread-safe.

    ``name`` is the registry's name in the settings, ``url`` its address without a slash at the end.
    """

    name: str
    url: str

    def get_schema(self, schema_id: str) -> WrittenSchema | None:
        """Return the registry's schema with an id; None if the id does not exist.

        Schemas are cached for ever, in memory and on disk; "not found" is cached long enough that a repeated batch gets
        the same result.

        Raises:
            RegistryUnavailableError: the registry is unavailable.
        """
        ...


MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
MAX_REFERENCES: Final = 200
"""Maximum number of schemas that a schema refers to, directly or not."""
MAX_SCHEMA_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a schema with its references."""
SCHEMA_SECONDS: Final = 60.0
"""Timeout for one schema with its references."""
FAMILY_OF_TYPE: Final[Mapping[str, str]] = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JsonSchema"}
"""Schema families by schema type in the API."""
TYPES: Final[Mapping[str, str]] = {family: name for name, family in FAMILY_OF_TYPE.items()}
_ID: Final = re.compile(r"[0-9]{1,19}")
_NOT_FOUND: Final = frozenset({40401, 40402, 40403, 40404, 40405, 40406})
"""The API's error codes for subjects, versions and schemas that do not exist or are deleted."""
_LOGIN: Final = frozenset({401, 403})
_REFUSED: Final = frozenset({409, 422})


class RegistrationError(CatalogError):
    """A schema registry rejected a schema."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to another schema: the name used in the schema, and the subject and version."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in the API's form; ``id``, ``subject`` and ``version`` are empty if the response omits them."""

    document: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    id: str = ""
    subject: str = ""
    version: int = 0


class SchemaIdRegistry:
    """A client of one schema registry; all methods raise RegistryUnavailableError if it is unavailable."""

    def __init__(self, name: str, url: str, login: OriginLogin | None = None, seconds: float = 10.0) -> None:
        """*name* is used in messages, *url* is the API's base URL, *seconds* the timeout of one request."""
        self.name = name
        self.url = url.rstrip("/")
        self._credentials = Credentials(Logins([] if login is None else [login]))
        self._reach = ConnectionPolicy([ANY_HOST])  # the operator configured it
        self._limits = FetchLimits(MAX_ANSWER_BYTES, seconds)
        self._known_api = False

    def check(self) -> None:
        """Check that the registry responds and accepts the login."""
        self._known_api = False
        if self._request("/schemas/types") is None:
            raise self._unavailable("answers 404; is it the address of a schema registry's API?")
        self._known_api = True

    def get_schema(self, schema_id: str) -> WrittenSchema | None:
        """Return the schema with an id, including its references; None if it does not exist."""
        number = number_of(schema_id)
        try:
            answer = None if number is None else self._request(f"/schemas/ids/{number}")
        except AnswerTooLarge:
            return WrittenSchema(schema_id, "", "", fault=f"it has more than {MAX_ANSWER_BYTES} bytes")
        if answer is None:
            return None
        found, subjects = self._parse(answer), self._registrations(number)
        family, fault = FAMILY_OF_TYPE.get(found.type, ""), ""
        texts: dict[str, str] = {}
        try:
            if not family:
                raise _UnusableSchema(f"schemas of type {found.type[:100]} are not known")
            for name, text in self._iter_references(found):
                if texts.setdefault(name, text) != text:
                    raise _UnusableSchema(f"it refers to two schemas by the name {name[:200]}")
        except _UnusableSchema as error:
            fault = str(error)
        return WrittenSchema(str(number), family, found.document, texts, subjects, fault)

    def list_subjects(self) -> list[str]:
        """Return all subjects, including deleted ones, since records may still use their schemas."""
        answer = self._request("/subjects?deleted=true")
        return [each for each in answer if isinstance(each, str)] if isinstance(answer, list) else []

    def list_versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, including deleted ones; empty for an unknown subject."""
        answer = self._request(f"/subjects/{_quote(subject)}/versions?deleted=true")
        return [each for each in answer if isinstance(each, int)] if isinstance(answer, list) else []

    def get_version(self, subject: str, version: int | str) -> RegisteredSchema | None:
        """Return a version of a subject, or ``latest``; None if it does not exist."""
        deleted = "" if version == "latest" else "?deleted=true"
        answer = self._request(f"/subjects/{_quote(subject)}/versions/{_quote(str(version))}{deleted}")
        return None if answer is None else self._parse(answer)

    def find_version(self, subject: str, schema: RegisteredSchema) -> RegisteredSchema | None:
        """Return the version of a subject with this schema; None if there is none."""
        path = f"/subjects/{_quote(subject)}"
        answer = self._request(path, _encode_body(schema))
        if answer is None:
            # An equivalent schema may be written differently; not all registries support the parameter.
            answer = self._request(f"{path}?normalize=true", _encode_body(schema))
        if answer is None:
            return None
        known = parse_registered({"schema": schema.document, **answer} if isinstance(answer, dict) else answer)
        if not known.id:
            raise self._unavailable("answers without an id; is it the address of a schema registry's API?")
        return known

    def register(self, subject: str, schema: RegisteredSchema) -> str:
        """Register a schema in a subject, and return its id; an existing schema has its old id.

        Raises:
            RegistrationError: the registry rejects it as incompatible or invalid.
        """
        answer = self._request(f"/subjects/{_quote(subject)}/versions", _encode_body(schema))
        number = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(number, int):
            raise self._unavailable("gives no id for a schema; is it the address of a schema registry's API?")
        return str(number)

    def _registrations(self, number: int | None) -> tuple[tuple[str, int], ...]:
        """Return subjects and versions of an id, including deleted ones, since records may still use it."""
        try:
            return _parse_subjects(self._request(f"/schemas/ids/{number}/versions?deleted=true", optional=True))
        except AnswerTooLarge:
            return ()

    def _parse(self, answer: object) -> RegisteredSchema:
        read = parse_registered(answer)
        if not read.document:
            raise self._unavailable("answers without a schema; is it the address of a schema registry's API?")
        return read

    def _iter_references(self, found: RegisteredSchema) -> Iterator[tuple[str, str]]:
        """Yield the name and text of all references of a schema, recursively, each once."""
        ends = time.monotonic() + SCHEMA_SECONDS
        waiting = list(found.references)
        seen: set[tuple[str, str, int]] = set()
        known: dict[tuple[str, int], RegisteredSchema] = {}
        size = len(found.document)
        while waiting:
            reference = waiting.pop(0)
            place = (reference.subject, reference.version)
            if (reference.name, *place) in seen:
                continue
            seen.add((reference.name, *place))
            if len(seen) > MAX_REFERENCES:
                raise _UnusableSchema(f"it refers to over {MAX_REFERENCES} schemas")
            if time.monotonic() > ends:
                raise self._unavailable(f"took longer than {SCHEMA_SECONDS:g} s for one schema and its references")
            if place not in known:
                try:
                    other = self.get_version(*place)
                except AnswerTooLarge:
                    raise _UnusableSchema(f"it has more than {MAX_ANSWER_BYTES} bytes with what it refers to") from None
                if other is None:
                    where = f"version {reference.version} of subject {reference.subject[:200]}"
                    raise _UnusableSchema(f"it refers to {where}, which is not there")
                known[place] = other
                waiting += other.references
            size += len(known[place].document)
            if size > MAX_SCHEMA_BYTES:
                raise _UnusableSchema(f"it has more than {MAX_SCHEMA_BYTES} bytes with what it refers to")
            yield reference.name, known[place].document

    def _request(self, path: str, body: bytes | None = None, *, optional: bool = False) -> Any:
        """Return the JSON response; None if not found, or if an *optional* request is not supported."""
        receipt = self._exchange(path, body)
        status, content = receipt.status, _decode_content(receipt)
        if status // 100 == 2:
            if content is None:
                raise self._unavailable("answers with no JSON; is it the address of a schema registry's API?")
            return content
        code = content.get("error_code") if isinstance(content, dict) else None
        if status in _LOGIN:
            hint = "check its login in schema_registries" if status == 401 else "check what its login may read"
            raise self._unavailable(f"answers {status}, it does not let us in; {hint}")
        if status == 404 and (code in _NOT_FOUND or self._is_the_api()):
            return None
        if optional and status in (404, 405, 501):
            return None
        reason = content.get("message") if isinstance(content, dict) else None
        text = f": {' '.join(reason.split())[:300]}" if isinstance(reason, str) else ""
        if body is not None and status in _REFUSED:
            raise RegistrationError(f"schema registry {self.name} at {self.url} answers {status}{text}")
        hint = "; is it the address of a schema registry's API?" if status in (301, 302, 307, 308, 404) else ""
        raise self._unavailable(f"answers {status}{text}{hint}")

    def _is_the_api(self) -> bool:
        """Whether the address is a registry's API, so that a 404 without an error code means "not found"."""
        if not self._known_api:
            receipt = self._exchange("/schemas/types", None)
            self._known_api = receipt.status == 200 and isinstance(_decode_content(receipt), list)
        return self._known_api

    def _exchange(self, path: str, body: bytes | None) -> HttpAnswer:
        address = self.url + path
        try:
            return send_json(address, self._credentials, self._reach, self._limits, body=body)
        except AnswerTooLarge:
            raise
        except DocumentError as error:
            raise self._unavailable(str(error).removeprefix(f"{address} ")) from error

    def _unavailable(self, reason: str) -> RegistryUnavailableError:
        return RegistryUnavailableError(f"schema registry {self.name} at {self.url} {reason}")


class _UnusableSchema(Exception):
    """A schema can never be used; retrying does not help."""


def number_of(schema_id: str) -> int | None:
    """Return an id of this API as a number; None for other ids, such as UUIDs."""
    number = int(schema_id) if _ID.fullmatch(schema_id) else None
    return number if number is not None and number < 2**63 else None


def parse_registered(answer: object) -> RegisteredSchema:
    """Parse the API's form of a schema; missing members are empty."""
    content = answer if isinstance(answer, dict) else {}
    listed = content.get("references")
    references = tuple(
        Reference(str(each.get("name", "")), str(each.get("subject", "")), _int_or_zero(each.get("version")))
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict)
    )
    number, subject = content.get("id"), content.get("subject")
    return RegisteredSchema(
        document=str(content.get("schema") or ""),
        type=str(content.get("schemaType") or "AVRO").upper(),
        references=references,
        id=str(number) if isinstance(number, int) else "",
        subject=subject if isinstance(subject, str) else "",
        version=_int_or_zero(content.get("version")),
    )


def _parse_subjects(answer: object) -> tuple[tuple[str, int], ...]:
    listed = answer if isinstance(answer, list) else []
    pairs = {
        (each["subject"], _int_or_zero(each.get("version")))
        for each in listed
        if isinstance(each, dict) and isinstance(each.get("subject"), str)
    }
    return tuple(sorted(pairs))


def _encode_body(schema: RegisteredSchema) -> bytes:
    references = [{"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references]
    form: dict[str, Any] = {"schema": schema.document, "schemaType": schema.type}
    return msgspec.json.encode({**form, "references": references} if references else form)


def _decode_content(receipt: HttpAnswer) -> Any:
    try:
        return msgspec.json.decode(receipt.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _int_or_zero(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _quote(text: str) -> str:
    return quote(text, safe="")
