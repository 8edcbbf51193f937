"""One constraint on one property: the rules of semantics.md section 5, for one value at a time.

The vectorised classes of ``classes`` are built from these and must agree with them; explanations ask them directly.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from catalog.model import Definition, Property, PropertyType
from catalog.templates import TEMPLATE_TYPES, Template, parse
from catalog.values import (
    binary_value,
    canonical,
    is_any_timestamp,
    is_timestamp,
    is_valid,
    media_type_matches,
    text_of,
)

Kind = Literal["literal", "media", "template", "present", "optional"]
TYPED_LITERALS: Final = frozenset({"number", "integer", "boolean", "timestamp", "binary"})
ANY_BYTES: Final = frozenset({"any", "binary"})
"""Types that a value which is no text satisfies as well."""
HOP_BY_HOP: Final = frozenset({"qos", "retain", "message_expiry_interval", "partition"})
HOP_BY_HOP_SECTIONS: Final = ("header.", "delivery-annotations.")
MEDIA_PROPERTIES: Final = frozenset(
    {"e.datacontenttype", "p.headers.content-type", "p.properties.content-type", "p.content_type"}
)
BASE64_KEY: Final = "key_base64"
CONTENT: Final = "d"
"""The key of rule 6: the content type of the data, whatever the mode."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a definition asks of one property.

    ``value`` is the literal or template as text. ``optional`` lets an absent value pass. ``counts`` is False for
    what specificity leaves out. ``dots`` ends placeholders at dots too (NATS subjects); ``bits32`` marks CloudEvents
    attributes, whose integers are bounded and whose binary is base64.
    """

    kind: Kind
    type: PropertyType
    value: str | None = None
    optional: bool = False
    counts: bool = True
    dots: bool = False
    bits32: bool = False

    @property
    def template(self) -> Template:
        """The parsed template of a ``template`` constraint."""
        return template_of(self.value or "", self.dots)

    @property
    def takes_any_text(self) -> bool:
        """Whether every text is valid for the type. Any bytes are ``binary`` to a protocol; an attribute is base64."""
        return self.type in ("any", "string") or (self.type == "binary" and not self.bits32)

    @property
    def is_exact(self) -> bool:
        """Whether a literal is equal to its own text only. Bytes of a protocol come as base64 in one spelling."""
        return self.type not in TYPED_LITERALS or (self.type == "binary" and not self.bits32)

    @property
    def decodes(self) -> bool:
        """Whether values taken out are percent-decoded."""
        return self.type == "uritemplate"

    @property
    def expected(self) -> str:
        """What an explanation says was expected."""
        if self.kind == "present":
            return f"any {self.type}" if self.value is None else f"any {self.type} (now)"
        if self.kind == "optional":
            return f"absent, or a valid {self.type}"
        return self.value or ""

    def satisfied(self, text: str | None, *, present: bool) -> bool:
        """Decide one value: ``text`` is None for an absent value, or with ``present`` for one that is no text."""
        if not present:
            return self.optional
        if text is None:
            return self.kind in ("present", "optional") and self.type in ANY_BYTES
        if self.kind == "literal":
            return literal_equal(self.type, self.value or "", text)
        if self.kind == "media":
            return media_type_matches(self.value or "", text)
        if self.kind == "template":
            if self.type == "timestamp" and not is_timestamp(text):
                return False
            return self.template.match(text, decode=self.decodes) is not None
        return self.takes_any_text or is_valid(self.type, text, bits32=self.bits32)


@functools.lru_cache(maxsize=65536)
def template_of(value: str, dots: bool) -> Template:
    """Parse a template once per text."""
    return parse(value, dots=dots)


def literal_equal(kind: PropertyType, value: str, text: str) -> bool:
    """Compare a literal with a found value in the property's type."""
    if kind not in TYPED_LITERALS:
        return value == text
    wanted = canonical(kind, value)
    return value == text or (wanted is not None and wanted == canonical(kind, text))


def envelope_constraints(definition: Definition) -> Iterator[tuple[str, Constraint]]:
    """Yield (key, constraint) for the attributes that a definition declares, keys ``e.NAME``."""
    for prop in definition.envelopemetadata:
        key = f"e.{prop.name}"
        yield key, _constraint(key, prop, bits32=True)


def protocol_constraints(
    definition: Definition, protocol: str, *, hop_by_hop: bool
) -> Iterator[tuple[str, Constraint]]:
    """Yield (key, constraint) for the options of a definition that *protocol* carries, keys ``p.PATH``.

    Those of type binary are looked for under ``b.PATH``: the bytes of a value, whatever it is, as base64 text.
    Properties that change hop by hop are left out unless asked for (section 5, rule 5).
    """
    for prop in definition.protocoloptions:
        if not hop_by_hop and (prop.name in HOP_BY_HOP or prop.name.startswith(HOP_BY_HOP_SECTIONS)):
            continue
        key = f"p.{prop.name}"
        if prop.type == "binary" and key not in MEDIA_PROPERTIES:
            yield _of_bytes(prop)
            continue
        dots = protocol == "NATS" and prop.name in ("subject", "reply-to")
        yield key, _constraint(key, prop, dots=dots)


def property_of(key: str) -> str:
    """Return the key of the property that a key looks at: ``b.PATH`` and ``p.PATH`` are of one."""
    return f"p.{key[2:]}" if key.startswith("b.") else key


def content_constraint(definition: Definition) -> Constraint | None:
    """Return rule 6 as a constraint on the key ``d``; None when the definition sets no content type."""
    if not definition.datacontenttype:
        return None
    return Constraint("media", "string", definition.datacontenttype, optional=True, counts=False)


def _of_bytes(prop: Property) -> tuple[str, Constraint]:
    key = f"p.{prop.name}" if prop.name == BASE64_KEY else f"b.{prop.name}"
    if prop.value is None:
        return key, _constraint(key, prop)
    return key, Constraint("literal", "binary", base64.b64encode(binary_value(text_of(prop.value))).decode("ascii"))


def _constraint(key: str, prop: Property, *, dots: bool = False, bits32: bool = False) -> Constraint:
    if prop.value is None:
        kind: Kind = "present" if prop.required else "optional"
        return Constraint(kind, prop.type, optional=not prop.required, counts=False, bits32=bits32)
    value = text_of(prop.value)
    if prop.type == "timestamp" and is_any_timestamp(prop.value):
        return Constraint("present", "timestamp", value, counts=False)
    if prop.type in TEMPLATE_TYPES and not template_of(value, dots).is_literal:
        return Constraint("template", prop.type, value, dots=dots)
    if key in MEDIA_PROPERTIES:
        return Constraint("media", prop.type, value)
    return Constraint("literal", prop.type, value, bits32=bits32)
