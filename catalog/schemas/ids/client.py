"""Asking a schema registry over Confluent's API: Apicurio (``/apis/ccompat/v7``), Redpanda and Karapace serve it, too.

Every answer is bounded in size and time, and so is what one schema may refer to. What the registry lacks is told from
what it cannot say for now: only its own error codes mean that something is not there. Any other refusal waits, since
most are an operator's slip (a wrong login, a wrong address), and records must not die of one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote

import msgspec

from catalog.documents.connecting import EVERYWHERE, Credentials, Logins, OriginLogin, Reach
from catalog.documents.fetching import FetchLimits
from catalog.documents.registry_api import AnswerTooLarge, Receipt, exchange
from catalog.findings import CatalogError, DocumentError

# What a schema registry knows under an id, and who answers (MATCHING.md#schema-ids).
#
# Small, since those that ask (matching, tables) and those that answer (the client of a registry, the files of ids)
# share nothing else.

Framing = Literal["auto", "confluent", "apicurio", "glue", "none"]
"""How bodies of a Kafka source begin: ``auto`` tries ``confluent``, and takes a body without a frame as well."""


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """The schema that a body was written with, as a registry knows it under one id. It never changes.

    ``family`` is the name of one in :mod:`catalog.schemas.families` (``Avro``, ``Protobuf``, ``JsonSchema``),
    ``document`` the schema's text. ``references`` holds the text of all that it refers to, directly or not, by the
    names that referring schemas use. ``subjects`` are the subjects and versions it was registered under when it was
    first asked for, sorted. ``fault`` says why it cannot be used, such as a reference that leads nowhere; it is empty
    otherwise, and lasting: another try would end the same.
    """

    id: str
    family: str
    document: str
    references: Mapping[str, str] = field(default_factory=dict)
    subjects: tuple[tuple[str, int], ...] = ()
    fault: str = ""


class RegistryUnavailableError(CatalogError):
    """A schema registry gives no answer for now: the batch waits, and nothing becomes a dead letter.

    The message names registry, address and reason, and never a secret.
    """


class SchemaIds(Protocol):
    """Answers for one schema registry. Pickles as plain data; one object serves one thread.

    ``name`` is the registry's name in the settings, ``url`` its address without a slash at the end.
    """

    name: str
    url: str

    def written(self, schema_id: str) -> WrittenSchema | None:
        """Return what the registry has under an id; None when it says that there is nothing.

        An answer is kept for ever, in memory and on disk; "nothing" is kept so long that a batch which is repeated
        gets the same answer.

        Raises:
            RegistryUnavailableError: it cannot be asked for now.
        """
        ...


MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
MAX_REFERENCES: Final = 200
"""Schemas that one schema may refer to, directly or not."""
MAX_DEPTH: Final = 20
MAX_SCHEMA_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a schema with all that it refers to."""
MAX_SUBJECTS: Final = 1_000
"""Subjects that are kept of one id."""
SCHEMA_SECONDS: Final = 60.0
"""How long it may take to get one schema with all that it refers to."""
FAMILY_OF_TYPE: Final[Mapping[str, str]] = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JsonSchema"}
"""Families of schemas by their names in the API."""
TYPES: Final[Mapping[str, str]] = {family: name for name, family in FAMILY_OF_TYPE.items()}
_ID: Final = re.compile(r"[0-9]{1,19}")
_NOT_FOUND: Final = frozenset({40401, 40402, 40403, 40404, 40405, 40406})
"""What the API answers for what it lacks: subject, version, schema, and those that are deleted."""
_LOGIN: Final = frozenset({401, 403})
_REFUSED: Final = frozenset({409, 422})


class RegistrationError(CatalogError):
    """A schema registry refuses a schema for good."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a schema says of another: the name it uses, and where the other is."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as an answer has it; ``id``, ``subject`` and ``version`` are empty where the answer leaves them out."""

    document: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    id: str = ""
    subject: str = ""
    version: int = 0


class SchemaIdRegistry:
    """One schema registry; every method raises RegistryUnavailableError when there is no answer for now."""

    def __init__(self, name: str, url: str, login: OriginLogin | None = None, seconds: float = 10.0) -> None:
        """Take the name for messages, the URL before ``/schemas`` and ``/subjects``, and the seconds of one request."""
        self.name = name
        self.url = url.rstrip("/")
        self._credentials = Credentials(Logins([] if login is None else [login]))
        self._reach = Reach([EVERYWHERE])  # the operator named it
        self._limits = FetchLimits(MAX_ANSWER_BYTES, seconds)
        self._known_api = False

    def check(self) -> None:
        """Make sure that it answers, and lets us in."""
        self._known_api = False
        if self._request("/schemas/types") is None:
            raise self._unavailable_error("answers 404; is it the address of a schema registry's API?")
        self._known_api = True

    def get_schema(self, schema_id: str) -> WrittenSchema | None:
        """Return what it has under an id, with all that it refers to; None when it has nothing."""
        number = number_of(schema_id)
        try:
            answer = None if number is None else self._request(f"/schemas/ids/{number}")
        except AnswerTooLarge:
            return WrittenSchema(schema_id, "", "", fault=f"it has more than {MAX_ANSWER_BYTES} bytes")
        return (
            None
            if answer is None
            else self.resolve_references(str(number), self._parse_answer(answer), self._list_registrations(number))
        )

    def resolve_references(
        self, schema_id: str, found: RegisteredSchema, subjects: tuple[tuple[str, int], ...]
    ) -> WrittenSchema:
        """Return a schema with the texts of all that it refers to."""
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
        return WrittenSchema(schema_id, family, found.document, texts, subjects, fault)

    def list_subjects(self) -> list[str]:
        """Return all subjects, deleted ones too: records written with their schemas may still come."""
        answer = self._request("/subjects?deleted=true")
        return [each for each in answer if isinstance(each, str)] if isinstance(answer, list) else []

    def list_versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, deleted ones too; none where there is no such subject."""
        answer = self._request(f"/subjects/{_quote(subject)}/versions?deleted=true")
        return [each for each in answer if isinstance(each, int)] if isinstance(answer, list) else []

    def get_version(self, subject: str, version: int | str) -> RegisteredSchema | None:
        """Return a version of a subject, or its ``latest``; None when there is none."""
        deleted = "" if version == "latest" else "?deleted=true"
        answer = self._request(f"/subjects/{_quote(subject)}/versions/{_quote(str(version))}{deleted}")
        return None if answer is None else self._parse_answer(answer)

    def find_version(self, subject: str, schema: RegisteredSchema) -> RegisteredSchema | None:
        """Return the version of a subject that has this schema; None when none has."""
        path = f"/subjects/{_quote(subject)}"
        answer = self._request(path, _encode_body(schema))
        if answer is None:
            # One that is written otherwise and means the same; not all registries know the parameter.
            answer = self._request(f"{path}?normalize=true", _encode_body(schema))
        if answer is None:
            return None
        known = parse_registered({"schema": schema.document, **answer} if isinstance(answer, dict) else answer)
        if not known.id:
            raise self._unavailable_error("answers without an id; is it the address of a schema registry's API?")
        return known

    def register(self, subject: str, schema: RegisteredSchema) -> str:
        """Register a schema in a subject, and return its id; the same schema gets the id that it has.

        Raises:
            RegistrationError: the registry refuses it, as incompatible or invalid.
        """
        answer = self._request(f"/subjects/{_quote(subject)}/versions", _encode_body(schema))
        number = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(number, int):
            raise self._unavailable_error("gives no id for a schema; is it the address of a schema registry's API?")
        return str(number)

    def _list_registrations(self, number: int | None) -> tuple[tuple[str, int], ...]:
        """Return where an id is registered, also where that was deleted: records written with it may still come."""
        try:
            return _parse_subjects(self._request(f"/schemas/ids/{number}/versions?deleted=true", optional=True))
        except AnswerTooLarge:
            return ()

    def _parse_answer(self, answer: object) -> RegisteredSchema:
        read = parse_registered(answer)
        if not read.document:
            raise self._unavailable_error("answers without a schema; is it the address of a schema registry's API?")
        return read

    def _iter_references(self, found: RegisteredSchema) -> Iterator[tuple[str, str]]:
        """Yield name and text of all that a schema refers to, each once."""
        ends = time.monotonic() + SCHEMA_SECONDS
        waiting = [(reference, 1) for reference in found.references]
        seen: set[tuple[str, str, int]] = set()
        known: dict[tuple[str, int], RegisteredSchema] = {}
        size = len(found.document)
        while waiting:
            reference, depth = waiting.pop(0)
            place = (reference.subject, reference.version)
            if (reference.name, *place) in seen:
                continue
            seen.add((reference.name, *place))
            if len(seen) > MAX_REFERENCES or depth > MAX_DEPTH:
                raise _UnusableSchema(f"it refers to over {MAX_REFERENCES} schemas, or over {MAX_DEPTH} levels deep")
            if time.monotonic() > ends:
                raise self._unavailable_error(
                    f"took longer than {SCHEMA_SECONDS:g} s for one schema and its references"
                )
            if place not in known:
                try:
                    other = self.get_version(*place)
                except AnswerTooLarge:
                    raise _UnusableSchema(f"it has more than {MAX_ANSWER_BYTES} bytes with what it refers to") from None
                if other is None:
                    where = f"version {reference.version} of subject {reference.subject[:200]}"
                    raise _UnusableSchema(f"it refers to {where}, which is not there")
                known[place] = other
                waiting += ((each, depth + 1) for each in other.references)
            size += len(known[place].document)
            if size > MAX_SCHEMA_BYTES:
                raise _UnusableSchema(f"it has more than {MAX_SCHEMA_BYTES} bytes with what it refers to")
            yield reference.name, known[place].document

    def _request(self, path: str, body: bytes | None = None, *, optional: bool = False) -> Any:
        """Return what is answered; None for what is not there, or for an *optional* question that it does not know."""
        receipt = self._exchange(path, body)
        status, content = receipt.status, _decode_content(receipt)
        if status // 100 == 2:
            if content is None:
                raise self._unavailable_error("answers with no JSON; is it the address of a schema registry's API?")
            return content
        code = content.get("error_code") if isinstance(content, dict) else None
        if status in _LOGIN:
            hint = "check its login in schema_registries" if status == 401 else "check what its login may read"
            raise self._unavailable_error(f"answers {status}, it does not let us in; {hint}")
        if status == 404 and (code in _NOT_FOUND or self._is_the_api()):
            return None
        if optional and status in (404, 405, 501):
            return None
        reason = content.get("message") if isinstance(content, dict) else None
        text = f": {' '.join(reason.split())[:300]}" if isinstance(reason, str) else ""
        if body is not None and status in _REFUSED:
            raise RegistrationError(f"schema registry {self.name} at {self.url} answers {status}{text}")
        hint = "; is it the address of a schema registry's API?" if status in (301, 302, 307, 308, 404) else ""
        raise self._unavailable_error(f"answers {status}{text}{hint}")

    def _is_the_api(self) -> bool:
        """Whether an answer 404 without the API's own code means what it says: not if the address is wrong."""
        if not self._known_api:
            receipt = self._exchange("/schemas/types", None)
            self._known_api = receipt.status == 200 and isinstance(_decode_content(receipt), list)
        return self._known_api

    def _exchange(self, path: str, body: bytes | None) -> Receipt:
        address = self.url + path
        try:
            return exchange(address, self._credentials, self._reach, self._limits, body=body)
        except AnswerTooLarge:
            raise
        except DocumentError as error:
            raise self._unavailable_error(str(error).removeprefix(f"{address} ")) from error

    def _unavailable_error(self, reason: str) -> RegistryUnavailableError:
        return RegistryUnavailableError(f"schema registry {self.name} at {self.url} {reason}")


class _UnusableSchema(Exception):
    """A schema that no further question makes usable."""


def number_of(schema_id: str) -> int | None:
    """Return the number that an id of this API is; None for an id of another kind, such as a UUID."""
    number = int(schema_id) if _ID.fullmatch(schema_id) else None
    return number if number is not None and number < 2**63 else None


def parse_registered(answer: object) -> RegisteredSchema:
    """Read a schema as the API wraps it; it is empty where the answer has none."""
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
        for each in listed[:MAX_SUBJECTS]
        if isinstance(each, dict) and isinstance(each.get("subject"), str)
    }
    return tuple(sorted(pairs))


def _encode_body(schema: RegisteredSchema) -> bytes:
    references = [{"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references]
    form: dict[str, Any] = {"schema": schema.document, "schemaType": schema.type}
    return msgspec.json.encode({**form, "references": references} if references else form)


def _decode_content(receipt: Receipt) -> Any:
    try:
        return msgspec.json.decode(receipt.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _int_or_zero(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _quote(text: str) -> str:
    return quote(text, safe="")
