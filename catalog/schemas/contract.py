"""What a payload schema is before and after it is compiled (JUDGING.md#data-schemas)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from catalog.errors import CatalogError
from catalog.schemas.ids.contract import WrittenSchema

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Bodies past this size are not looked into; they get no verdict."""
MAX_DIRECT_BYTES: Final = 1024 * 1024
"""Bodies past this size are looked into in a process with limits: reading one may take much time and memory already."""
MAX_FAULTS: Final = 50
"""Faults of one body that are reported."""
BEYOND_LIMITS: Final = "could not be checked within limits"
"""What the fault of a body says that would take more time or memory than one body may."""
MessagePlace = tuple[int, ...] | int | str
"""Which message of a .proto file is meant: by indexes from level to level, by its place among all, or by name."""


@dataclass(frozen=True, slots=True)
class Written:
    """What bodies were written with: a schema of a registry, and for Protobuf the message of its file."""

    schema: WrittenSchema
    message: MessagePlace = (0,)

    def __str__(self) -> str:
        return written_as(self.schema.id, self.schema)


def unusable(schema: WrittenSchema) -> str:
    """Return what the fault of each body says that was written with a schema which cannot be used."""
    return f"the registry's schema cannot be used: {schema.fault}; written with {written_as(schema.id, schema)}"


def written_as(schema_id: str, schema: WrittenSchema | None) -> str:
    """Return what a report calls an id: with subjects and versions, as far as the registry named any."""
    known = schema.subjects if schema is not None else ()
    shown = ", ".join(f"{subject} version {version}" for subject, version in known[:MAX_SUBJECTS])
    more = ", …" if len(known) > MAX_SUBJECTS else ""
    return f"schema id {schema_id}" + (f" ({shown}{more})" if shown else "")


MAX_SUBJECTS: Final = 3
"""Subjects of one id that a report names."""


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """A schema that was found and is not yet compiled.

    ``family`` is the name of one in :mod:`catalog.schemas.families`. ``version`` is what follows it in the declared
    format (``draft-07``, ``1.11``, ``3``), lower case, empty when nothing does. ``document`` is a JSON tree, or the
    text of a schema. ``name`` is the ``:Name`` deep link into a document of several types, ``pointer`` a JSON pointer
    into the document; both empty for the whole. ``uri`` is where the document stands: its own references are relative
    to it. Where ``written`` is given, bodies were written with that, and are read as values of this schema.
    """

    family: str
    version: str
    document: Any
    name: str = ""
    pointer: str = ""
    uri: str = ""
    written: Written | None = None


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """Why a body does not conform. ``path`` is where in the body: a JSON pointer, an XPath or a dotted field path."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SchemaError(CatalogError):
    """A schema that can never be used: invalid, of an unknown format, or without the named type.

    ``pointer`` is the place in the schema's document when it is known, ``hint`` the remedy.
    """

    def __init__(self, message: str, *, pointer: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer
        self.hint = hint


class MissingTypeError(SchemaError):
    """A schema that lacks the type or place which a reference to it names; the schema itself may be fine."""


class TooCostly(Exception):
    """Checking a body may take more time or memory than this process can spare.

    ``refused`` tells that the body is known not to conform, and only where it does not is still to be worked out.
    """

    def __init__(self, *, refused: bool = False) -> None:
        super().__init__(BEYOND_LIMITS)
        self.refused = refused

    def fault(self) -> SchemaFault:
        """Return the fault of a body that nobody could check to the end."""
        known = "the body does not conform, and where it does not " if self.refused else "the body "
        return SchemaFault("", known + BEYOND_LIMITS)


class Validator(Protocol):
    """A compiled schema. It is not shared between threads, and keeps nothing of the bodies it saw."""

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return why *body* does not conform, None when it does.

        No body is no JSON and no XML, and the empty message of Protobuf. *at_any_cost* is for processes whose time and
        memory are limited from outside (:mod:`catalog.schemas.trial`).

        Raises:
            TooCostly: the answer may take long or much memory, and *at_any_cost* was not given.
        """
        ...

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return all that is wrong with *body*, as far as the family can tell, at most MAX_FAULTS.

        It costs more than :meth:`fault`, and is for bodies that are known not to conform.

        Raises:
            TooCostly: as :meth:`fault`.
        """
        ...


@runtime_checkable
class Accepting(Protocol):
    """A validator that can look at many bodies at once."""

    def accepted(self, data: Any, begins: Any, ends: Any, content_types: Any) -> Any:
        """Return which bodies conform for sure, as an array of booleans; the others are to be looked at one by one.

        Body *i* is ``data[begins[i]:ends[i]]``; *content_types* is an array of texts, or null. All are arrays.
        """
        ...


class Library(Protocol):
    """Gives the documents that a schema refers to. It never goes to the network: everything was loaded before."""

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return URI and document (tree or text) of a reference written in the document at *base*, None if unknown."""
        ...
