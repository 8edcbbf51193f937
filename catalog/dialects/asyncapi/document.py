"""Walk an AsyncAPI document: references, also to other documents, traits, bindings, and what has no place."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import reduce
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urljoin

from catalog.dialects.asyncapi.parts import EXTENSION, TABLES, ProtocolBinding, merge_patch
from catalog.findings import Findings, SourceLocation
from catalog.parsing.pointers import parse_pointer
from catalog.parsing.texts import MAX_DEPTH, MAX_NODES
from catalog.values import plain_number

DOCUMENTS: Final = "x-documents"
"""The member of a bundled document that has the others by number."""
_BUNDLED: Final = re.compile(r"/x-documents/[0-9]+")
MAX_HOPS: Final = 64
"""Maximum references from one to the next."""
MAX_MERGED: Final = 16
"""Maximum levels of objects that traits are merged into; below them, the nearer one counts."""
_SCHEMAS: Final = frozenset({"payload", "schemas", "schema"})


def bundle(tree: dict[str, Any], read: Callable[[str, int], Any]) -> dict[str, Any]:
    """Return a document with those that it refers to in the member ``x-documents``, by number.

    *read* returns the document at an address, None if there is none. References of schemas to other documents stay, as
    written from the first one: those are loaded with the schemas.
    """
    addresses: list[str] = []
    numbers: dict[str, int] = {}
    documents: dict[str, Any] = {}

    def target(reference: str, base: int, *, schema: bool) -> str:
        address, mark, pointer = reference.partition("#")
        if address:
            address = _join_address(addresses[base] if base >= 0 else "", address)
            if schema:
                return address + mark + pointer
            if address not in numbers:
                numbers[address] = len(addresses)
                addresses.append(address)
            base = numbers[address]
        return reference if base < 0 else f"#/{DOCUMENTS}/{base}{pointer}"

    def moved(value: Any, base: int, *, schema: bool = False) -> Any:
        if isinstance(value, list):
            return [moved(each, base, schema=schema) for each in value]
        if not isinstance(value, dict):
            return value
        copy = {name: moved(each, base, schema=schema or name in _SCHEMAS) for name, each in value.items()}
        if isinstance(reference := value.get("$ref"), str):
            copy["$ref"] = target(reference, base, schema=schema)
        return copy

    if not any(_iter_addresses(tree)):
        return tree
    whole: dict[str, Any] = moved(tree, -1)
    number = 0
    while number < len(addresses):
        documents[str(number)] = moved(read(addresses[number], number), number)
        number += 1
    return {**whole, DOCUMENTS: documents}


def _iter_addresses(tree: Any) -> Iterator[str]:
    """Yield the addresses of other documents that anything but a schema refers to."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                yield reference
            waiting.extend(value for name, value in node.items() if name not in _SCHEMAS)
        elif isinstance(node, list):
            waiting.extend(node)


def _join_address(base: str, reference: str) -> str:
    """Return the address of a document that the one at *base* refers to; both as written from the first document."""
    if "://" in base or "://" in reference:
        return urljoin(base, reference)
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), reference))


class AsyncApiNode(NamedTuple):
    """A value and its JSON pointer."""

    value: Any
    pointer: str = ""

    def __truediv__(self, key: str | int) -> AsyncApiNode:
        """Return a member; its value is None if there is none."""
        if isinstance(key, int):
            found = self.value[key] if self.is_list and key < len(self.value) else None
        else:
            found = self.members.get(key)
        return AsyncApiNode(found, f"{self.pointer}/{str(key).replace('~', '~0').replace('/', '~1')}")

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    @property
    def members(self) -> dict[str, Any]:
        """The members of an object; none of any other value."""
        return self.value if isinstance(self.value, dict) else {}

    def entries(self) -> list[AsyncApiNode]:
        """Return the entries of a list; none of any other value."""
        return [self / number for number in range(len(self.value))] if self.is_list else []

    def text(self, *names: str) -> str:
        """Return the first of these members that is a text."""
        return next((value for name in names if isinstance(value := self.members.get(name), str) and value), "")


class _BrokenReference(Exception):
    """A reference that leads nowhere; without a text, it is reported already."""


class TranslationTooLarge(Exception):
    """A document whose translation is too large."""


class AsyncApiDocument:
    """The document: follows references, merges traits, and reports what has no place."""

    def __init__(self, tree: Mapping[str, Any], root: SourceLocation, findings: Findings, *, newer: bool) -> None:
        self.root = AsyncApiNode(tree)
        self.newer = newer
        self.findings = findings
        self._root = root
        self._left = MAX_NODES
        self._hops = 0
        self._merged: dict[str, AsyncApiNode] = {}

    def place(self, node: AsyncApiNode) -> SourceLocation:
        """Return the location of a node, which may be in another document."""
        place = self._root
        for step in parse_pointer(node.pointer):
            place /= step
        return place

    def spend(self, values: int) -> None:
        """Count values of the translation.

        Raises:
            TranslationTooLarge: there are too many.
        """
        self._left -= values + 1
        if self._left < 0:
            raise TranslationTooLarge

    def follow(self, node: AsyncApiNode) -> AsyncApiNode:
        """Return what *node* refers to; an empty one, and a finding, for a reference that leads nowhere."""
        self._hops = MAX_HOPS
        try:
            return self._follow(node)
        except _BrokenReference as error:
            if str(error):
                text = f"{error}; what it is for is left out"
                self.findings.error(self.place(node), "asyncapi-reference", text, "correct the reference")
            return AsyncApiNode(None, node.pointer)

    def _follow(self, node: AsyncApiNode) -> AsyncApiNode:
        while isinstance(node.value, dict) and isinstance(reference := node.value.get("$ref"), str):
            self._hops -= 1
            if self._hops < 0:
                raise _BrokenReference(
                    f"the reference {reference[:200]} leads to itself, or over more than {MAX_HOPS} others"
                )
            address, _, pointer = reference.partition("#")
            if address:
                raise _BrokenReference(f"the reference {reference[:200]} leads to another document")
            node = self.root
            shown = _BUNDLED.sub("", pointer)
            steps = parse_pointer(unquote(pointer))
            if len(steps) > MAX_DEPTH:
                raise _BrokenReference(f"the reference #{shown[:200]} leads nowhere: it has {len(steps)} steps")
            for step in steps:
                node = self._follow(node)
                if node.value is None and _BUNDLED.fullmatch(node.pointer):
                    raise _BrokenReference  # reading the document has failed, which is reported
                node /= int(step) if node.is_list and step.isdecimal() and len(step) < 9 else step
            if node.value is None or not pointer.startswith("/"):
                raise _BrokenReference(f"the reference #{shown[:200]} leads nowhere")
        return node

    def child(self, node: AsyncApiNode, *path: str) -> AsyncApiNode:
        """Return a member with all references on the way followed."""
        for name in path:
            node = self.follow(node / name)
        return node

    def listed(
        self, *path: str, of: AsyncApiNode | None = None, follow: bool = True
    ) -> Iterator[tuple[str, AsyncApiNode]]:
        """Yield the members of a map; one that is not an object is reported."""
        collection = self.child(of or self.root, *path)
        for key, value in collection.members.items():
            node = self.follow(collection / key) if follow else collection / key
            if isinstance(node.value, dict) or not follow:
                yield key, node
            elif value is not None and not isinstance(value, dict):
                self.findings.error(self.place(node), "wrong-shape", f"{key} is not an object", "write it as an object")

    def merge_traits(self, node: AsyncApiNode) -> AsyncApiNode:
        """Return a message or operation with its traits, over which its own members win since version 3."""
        if node.pointer not in self._merged:
            value = node.members
            traits = [self.follow(each).members for each in (node / "traits").entries()]
            if traits:
                value = reduce(self._merge, [*traits, value] if self.newer else [value, *traits], {})
            self._merged[node.pointer] = AsyncApiNode(value, node.pointer)
        return self._merged[node.pointer]

    def _merge(self, target: dict[str, Any], patch: dict[str, Any], left: int = MAX_MERGED) -> dict[str, Any]:
        """Apply a merge patch, in which references count as what they lead to where both have an object."""
        merged = dict(target)
        self.spend(len(target) + len(patch))
        for name, value in patch.items():
            if left and isinstance(value, dict) and isinstance(known := merged.get(name), dict):
                below, above = (self.follow(AsyncApiNode(each)).members for each in (known, value))
                merged[name] = self._merge(below, above, left - 1)
            else:
                merged[name] = value
        return {name: value for name, value in merged.items() if value is not None}

    def extension(self, node: AsyncApiNode) -> dict[str, Any]:
        """Return the members of the extension of a node."""
        extension = node.members.get(EXTENSION, {})
        if not isinstance(extension, dict):
            text, hint = f"{EXTENSION} is not an object and is ignored", "write the xid and members of the entity"
            self.findings.error(self.place(node / EXTENSION), "wrong-shape", text, hint)
            return {}
        return extension

    def patched(self, form: dict[str, Any], node: AsyncApiNode) -> dict[str, Any]:
        """Return the form of an entity with the extension of its node applied."""
        extension = {name: value for name, value in self.extension(node).items() if name != "xid"}
        merged = merge_patch(form, extension) if extension else form
        return merged if isinstance(merged, dict) else form

    def bindings_of(self, node: AsyncApiNode, binding: ProtocolBinding) -> AsyncApiNode:
        """Return the bindings of one protocol at a node."""
        holder, united = self.child(node, "bindings"), {}
        for key in reversed(binding.keys):
            united.update(self.child(holder, key).members)
            self.spend(len(united))
        key = next((each for each in binding.keys if each in holder.members), "")
        return AsyncApiNode(united, f"{holder.pointer}/{key}")

    def constant(self, node: AsyncApiNode) -> Any:
        """Return a value, or the only one that a schema allows; None if there are others."""
        if not isinstance(node.value, dict):
            return plain_number(node.value)
        schema = self.follow(node).members
        choices = schema.get("enum")
        only = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        value = schema.get("const", only)
        return plain_number(value) if isinstance(value, (str, int, float)) else None

    def report_unread(self, node: AsyncApiNode, kind: str, known: Collection[str] = ()) -> None:
        """Report the members of a node that xRegistry has no place for."""
        self.spend(len(node.members))
        read = known or TABLES["members"][kind]
        unread = [name for name in node.members if name not in read and not name.startswith("x-")]
        if unread:
            self.report_no_place(node / unread[0], f"{', '.join(unread[:8])} of this {kind}")

    def report_no_place(self, node: AsyncApiNode, what: str) -> None:
        """Report something that xRegistry has no place for."""
        hint = "keep the AsyncAPI document for those who need it"
        self.findings.info(self.place(node), "asyncapi-no-place", f"xRegistry has no place for {what}", hint)
