"""xRegistry 1.0, the dialect of all others' canonical names."""

from __future__ import annotations

from typing import Final

from catalog.dialects.dialect import Dialect
from catalog.dialects.signs import has_listed_groups, is_registry

XREGISTRY: Final = Dialect(
    title="xRegistry 1.0",
    detects=lambda document: is_registry(document) or has_listed_groups(document),
    names={
        "groups": {"messagegroups": "messagegroups"},
        "messages": {"messages": "messages"},
        "selectors": {"envelope": "envelope", "protocol": "protocol"},
        "attributes": {
            "envelopemetadata": "envelopemetadata",
            "envelopeoptions": "envelopeoptions",
            "protocoloptions": "protocoloptions",
            "dataschemaformat": "dataschemaformat",
            "dataschema": "dataschema",
            "schema": "dataschema",
            "dataschemauri": "dataschemauri",
            "schemauri": "dataschemauri",
            "schemaurl": "dataschemauri",
            "dataschemaxid": "dataschemaxid",
            "datacontenttype": "datacontenttype",
        },
        "bases": {"basemessage": "basemessage"},
        "holders": {"protocoloptions": "protocoloptions"},
    },
    is_replaced=False,
)
