"""What a schema family is to the others: its names, what they may ask of its documents and bodies, and its folder."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from catalog.schemas.contract import Library, SchemaFault, SchemaSource, Validator

if TYPE_CHECKING:
    from catalog.schemas.columns.reading import Reader
    from catalog.schemas.columns.shapes import Shape
    from catalog.schemas.columns.survey import Survey
    from catalog.schemas.comparison import Comparison
    from catalog.schemas.filling.filling import Filler


@dataclass(frozen=True, slots=True)
class SchemaFamily:
    """One family of schemas; :mod:`catalog.schemas.families` lists them all.

    ``room`` is a package with the modules ``validating``, ``filling`` and ``columns``, and ``comparing`` where the
    family ``compares``. They are imported when a schema first needs them: who has only JSON schemas never loads
    Protobuf's compiler.
    """

    name: str
    room: str
    spelling: re.Pattern[str]
    """Matches, in lower case, what formats call it: all before the version."""
    media_types: frozenset[str]
    """Media types that mean it where a format is asked for."""
    content_type: str
    """The content type of bodies where a definition names none."""
    evident: Callable[[Any], bool] = lambda document: False
    """Recognises a document (tree or text) that is of this family without doubt."""
    names_itself: bool = False
    """Whether ``$schema`` of its documents is spelled as formats are."""
    is_tree: bool = True
    """Whether its documents are JSON."""
    compares: bool = False
    ignores: bool = False
    """Whether it may use a document without some parts of it, which ``ignored_in`` of ``validating`` tells."""
    frames: Literal["never", "id", "message"] = "id"
    """Whether bodies may have frames of schema registries, and whether those name a message behind the id."""
    named: bool = False
    """Whether schemas have names by which registries know them (``names_of`` in ``validating``)."""
    refers_by_name: bool = False
    """Whether its schemas refer to others by names of types, and never by an address."""
    resolves: bool = False
    """Whether bodies are read by the schema that wrote them; others need only conform to the one that reads them."""
    deep_link: Callable[[str, str], tuple[str, str]] = lambda name, pointer: (name, pointer)
    """Returns name and pointer of the part that is meant, from those that a reference writes."""

    def compile_schema(self, source: SchemaSource, library: Library) -> Validator:
        """Compile a schema.

        Raises:
            SchemaError: it can never be used.
        """
        validator: Validator = self._module("validating").compile_schema(source, library)
        return validator

    def references_of(self, source: SchemaSource) -> Iterable[str]:
        """Give the references to other documents that compiling needs (``$ref``, ``import``), as written."""
        references: Iterable[str] = self._module("validating").references_of(source)
        return references

    def ignored_in(self, source: SchemaSource) -> Iterable[SchemaFault]:
        """Give what is invalid in a document and ignored, each with its JSON pointer."""
        ignored: Iterable[SchemaFault] = self._module("validating").ignored_in(source) if self.ignores else ()
        return ignored

    def names_of(self, source: SchemaSource, library: Library) -> Mapping[str, str]:
        """Return the names of what a schema means, or of what was written, by kind; none where there are none.

        Raises:
            SchemaError: it can never be used.
        """
        names: Mapping[str, str] = self._module("validating").names_of(source, library) if self.named else {}
        return names

    def message_indexes(self, source: SchemaSource, library: Library) -> bytes:
        """Return how Confluent's frame says which message of its file a body is; nothing where a schema has just one.

        Raises:
            SchemaError: it can never be used.
        """
        indexes: bytes = (
            self._module("validating").message_indexes(source, library) if self.frames == "message" else b""
        )
        return indexes

    def open_filler(self, source: SchemaSource, library: Library) -> Filler:
        """Return what makes payloads for a schema.

        Raises:
            SchemaError, Unfillable: the schema cannot be read, or lacks the type that is meant.
        """
        filler: Filler = self._module("filling").open_filler(source, library)
        return filler

    def open_columns(self, source: SchemaSource, library: Library, survey: Survey) -> tuple[Shape, Reader] | None:
        """Return the shape of payloads and what reads them; None, and a note in *survey*, when nothing has a type.

        Raises:
            SchemaError: it can never be used.
        """
        columns: tuple[Shape, Reader] | None = self._module("columns").open_columns(source, library, survey)
        return columns

    def compare(self, before: Any, after: Any) -> Comparison:
        """Compare two documents that are not equal; only where the family ``compares``."""
        comparison: Comparison = self._module("comparing").compare(before, after)
        return comparison

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.room}.{name}")
