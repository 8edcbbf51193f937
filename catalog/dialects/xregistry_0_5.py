"""xRegistry 0.5: message groups, with names that 1.0 has changed."""

from __future__ import annotations

from typing import Final

from catalog.dialects.dialect import Dialect
from catalog.dialects.signs import is_registry, version_of

OLDER_XREGISTRY: Final = Dialect(
    title="xRegistry 0.5",
    detects=lambda document: version_of(document).startswith("0.5") and is_registry(document),
    names={
        "groups": {"messagegroups": "messagegroups"},
        "messages": {"messages": "messages"},
        "selectors": {"envelope": "envelope", "format": "envelope", "protocol": "protocol", "binding": "protocol"},
        "attributes": {
            "envelopemetadata": "envelopemetadata",
            "envelopeoptions": "envelopeoptions",
            "protocoloptions": "protocoloptions",
            "protocolmetadata": "protocoloptions",
            "schemaformat": "dataschemaformat",
            "schema": "dataschema",
            "dataschemaurl": "dataschemauri",
            "schemauri": "dataschemauri",
            "schemaurl": "dataschemauri",
            "datacontenttype": "datacontenttype",
        },
        "bases": dict.fromkeys(("basemessageuri", "basemessageurl", "basemessagexid"), "basemessage"),
        "holders": {"protocoloptions": "protocoloptions", "protocolmetadata": "protocoloptions"},
        "metadata": {"metadata": "envelopemetadata"},
    },
)
