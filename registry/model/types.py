"""The compiled model: types of groups, and of the resources in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from registry.model.attributes import ModelAttribute, all_written

_TYPEMAP: Final = {"application/json": "json", "*+json": "json", "text/plain": "string"}


@dataclass(frozen=True, slots=True)
class ModelConstraint:
    """What groups ask of an attribute of their resources: ``path`` within the resource (``model.md``, constraints)."""

    resources: str
    path: str
    default: Any = None
    enum: tuple[Any, ...] = ()
    equals: str = ""

    @property
    def key(self) -> str:
        """The key of it in ``constraints``."""
        return f"{self.resources}.{self.path}"


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A type of resource: aspects as in ``model.md``; ``attributes`` are those of versions, ``meta`` of the resource.

    ``home`` is the type of group that defines it: types imported from one home are the same type.
    """

    plural: str
    singular: str
    home: str
    attributes: Mapping[str, ModelAttribute]
    meta: Mapping[str, ModelAttribute]
    resource: Mapping[str, ModelAttribute]
    maxversions: int = 0
    setversionid: bool = True
    hasdocument: bool = True
    versionmode: str = "manual"
    singleversionroot: bool = False
    validateformat: bool = False
    validatecompatibility: bool = False
    strictvalidation: bool = False
    typemap: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def document_names(self) -> tuple[str, str, str]:
        """The three attributes that give a document: as JSON, as base64, and by URL."""
        return self.singular, f"{self.singular}base64", f"{self.singular}url"

    def form_of(self, contenttype: str | None) -> str:
        """Tell how documents of a content type are written: ``json``, ``string`` or ``binary`` (typemap)."""
        media = (contenttype or "").partition(";")[0].strip().lower()
        for given in (self.typemap, _TYPEMAP):
            forms = {form for key, form in given.items() if _fits(key.lower(), media)}
            if forms:
                return forms.pop() if len(forms) == 1 else "binary"
        return "binary"

    def written(self) -> dict[str, Any]:
        """Return it as ``/model`` shows it."""
        return {
            "plural": self.plural,
            "singular": self.singular,
            **self.said,
            "maxversions": self.maxversions,
            "setversionid": self.setversionid,
            "hasdocument": self.hasdocument,
            "versionmode": self.versionmode,
            "singleversionroot": self.singleversionroot,
            "validateformat": self.validateformat,
            "validatecompatibility": self.validatecompatibility,
            "strictvalidation": self.strictvalidation,
            **({"typemap": dict(self.typemap)} if self.typemap else {}),
            "attributes": all_written(self.attributes),
            "resourceattributes": all_written(self.resource),
            "metaattributes": all_written(self.meta),
        }


@dataclass(frozen=True, slots=True)
class GroupType:
    """A type of group; ``said`` are the descriptive aspects that the source gives."""

    plural: str
    singular: str
    attributes: Mapping[str, ModelAttribute]
    resources: Mapping[str, ResourceType]
    constraints: tuple[ModelConstraint, ...] = ()
    said: Mapping[str, Any] = field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """Return it as ``/model`` shows it."""
        shown: dict[str, Any] = {"plural": self.plural, "singular": self.singular, **self.said}
        if self.constraints:
            shown["constraints"] = {each.key: _rule(each) for each in self.constraints}
        shown["attributes"] = all_written(self.attributes)
        shown["resources"] = {name: each.written() for name, each in self.resources.items()}
        return shown


@dataclass(frozen=True)
class Model:
    """The whole model; ``source`` is what it was made of."""

    attributes: Mapping[str, ModelAttribute]
    groups: Mapping[str, GroupType]
    source: Mapping[str, Any]

    @cached_property
    def written(self) -> dict[str, Any]:
        """The model as ``/model`` shows it."""
        said = {key: self.source[key] for key in ("description", "documentation", "labels") if key in self.source}
        groups = {name: each.written() for name, each in self.groups.items()}
        return {**said, "attributes": all_written(self.attributes), "groups": groups}


def _rule(constraint: ModelConstraint) -> dict[str, Any]:
    given = {"default": constraint.default, "enum": list(constraint.enum), "equals": constraint.equals}
    return {name: value for name, value in given.items() if value not in (None, [], "")}


def _fits(key: str, media: str) -> bool:
    before, star, after = key.partition("*")
    if not star:
        return key == media
    return len(media) >= len(before) + len(after) and media.startswith(before) and media.endswith(after)


# The model source that a registry begins with: endpoints, message groups and schema groups.
#
# The structure is that of the specifications for messages, endpoints and schemas. Where documents of all ages differ,
# in the options of protocols and the constraints in envelopes, the model takes any of them: what those mean is checked
# by the catalog's own lint. Messages may have more than one version, as older specifications have them.

_PROTOCOLS: Final = ("AMQP/1.0", "MQTT/3.1.1", "MQTT/5.0", "KAFKA", "HTTP", "NATS")


def _open(kind: str = "object", **members: Any) -> dict[str, Any]:
    """An object with the given members and any others; names in it may have dashes and dots."""
    return {"type": kind, "namecharset": "extended", "attributes": {**members, "*": {"type": "any"}}}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _messages() -> dict[str, Any]:
    constraints = _open()
    attributes = {
        "basemessage": {"type": "uri", "description": "The message that this one inherits from."},
        "basemessageuri": {"type": "uri", "description": "The message that this one inherits from."},
        "envelope": {
            **_text("The envelope of messages, such as CloudEvents/1.0."),
            "ifvalues": {
                "CloudEvents/1.0": {"siblingattributes": {"envelopemetadata": constraints, "envelopeoptions": _open()}},
            },
        },
        "protocol": {
            **_text("The protocol that carries messages, such as AMQP/1.0."),
            "ifvalues": {name: {"siblingattributes": {"protocoloptions": constraints}} for name in _PROTOCOLS},
        },
        "dataschemaformat": _text("The format of the schema of the data."),
        "dataschema": {"type": "any", "description": "The schema of the data, as it is."},
        "dataschemauri": {"type": "uri", "description": "Where the schema of the data is."},
        "dataschemaxid": {"type": "xid", "description": "The schema of the data, in this registry."},
        "datacontenttype": _text("The content type of the data."),
        "*": {"type": "any"},
    }
    return {"singular": "message", "hasdocument": False, "attributes": attributes}


def _schemas() -> dict[str, Any]:
    return {
        "singular": "schema",
        "validateformat": True,
        "validatecompatibility": True,
        "attributes": {
            "format": {**_text("What the schema is, such as JsonSchema/draft-07."), "matchversions": True},
            "*": {"type": "any"},
        },
    }


def model_source() -> dict[str, Any]:
    """Return the model source of a new registry."""
    groups = {
        "endpoints": {
            "singular": "endpoint",
            "attributes": {
                "usage": {
                    "type": "array",
                    "item": {"type": "string"},
                    "description": "What clients do here: subscriber, consumer or producer.",
                },
                "channel": _text("What endpoints that belong together have in common."),
                "envelope": _text("The envelope of messages."),
                "envelopeoptions": _open(),
                "protocol": _text("The protocol that is spoken."),
                "protocoloptions": _open(),
                "messagegroups": {
                    "type": "array",
                    "item": {"type": "uri"},
                    "description": "The groups of the messages that this endpoint takes or gives.",
                },
                "*": {"type": "any"},
            },
            "ximportresources": ["/messagegroups/messages"],
        },
        "messagegroups": {
            "singular": "messagegroup",
            "attributes": {
                "envelope": _text("The envelope that all messages of the group have."),
                "protocol": _text("The protocol that all messages of the group have."),
                "*": {"type": "any"},
            },
            "resources": {"messages": _messages()},
        },
        "schemagroups": {
            "singular": "schemagroup",
            "attributes": {"format": _text("The format that all schemas of the group have."), "*": {"type": "any"}},
            "constraints": {"schemas.format": {"equals": "format"}},
            "resources": {"schemas": _schemas()},
        },
    }
    return {"description": "Endpoints, messages and schemas.", "groups": groups}
