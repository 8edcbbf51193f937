"""The model source that a registry begins with: endpoints, message groups and schema groups.

The structure is that of the specifications for messages, endpoints and schemas. Where documents of all ages differ, in
the options of protocols and the constraints in envelopes, the model takes any of them: what those mean is checked by
the catalog's own lint. Messages may have more than one version, as older specifications have them.
"""

from __future__ import annotations

from typing import Any, Final

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
