"""Errors of the API: the specification's, each with its type, HTTP status and title (core ``spec.md``, ``http.md``).

A title is a template of its ``args`` and the subject. A request that raises a :class:`Refusal` has changed nothing: its
transaction is rolled back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_CORE: Final = "https://github.com/xregistry/spec/blob/main/core/spec.md#"
_HTTP: Final = "https://github.com/xregistry/spec/blob/main/core/http.md#"
_OWN: Final = "urn:xrouter:registry:"
_PLACEHOLDER: Final = re.compile(r"<([a-z_]+)>")
_VALUE_FAULT: Final = 'For "<subject>", an error was found in "{}" value (<value>): <error_detail>.'

_CORE_TITLES: Final[Mapping[str, tuple[int, str]]] = {
    "action_not_supported": (405, "The action (<action>) is not supported for: <subject>."),
    "ancestor_circular_reference": (400, 'For "<subject>", the ancestors would form a cycle: <list>.'),
    "bad_defaultversionid": (400, _VALUE_FAULT.format("defaultversionid")),
    "bad_details": (400, '"$details" is not allowed here: <subject>.'),
    "bad_filter": (400, _VALUE_FAULT.format("filter")),
    "bad_flag": (400, "The flag (<flag>) is not allowed here: <subject>."),
    "bad_ignore": (400, _VALUE_FAULT.format("ignore")),
    "bad_inline": (400, _VALUE_FAULT.format("inline")),
    "bad_request": (400, "<error_detail>."),
    "bad_sort": (400, _VALUE_FAULT.format("sort")),
    "cannot_doc_xref": (400, 'Versions of "<subject>" have no document view, since it uses "xref".'),
    "capability_error": (400, "There is an error in the capabilities: <error_detail>."),
    "capability_missing_value": (400, 'The capability "<name>" must contain "<value>".'),
    "capability_unknown": (400, "The capability is unknown: <field>."),
    "capability_value": (400, 'The value (<value>) is not allowed for capability "<field>". Allowed: <list>.'),
    "capability_wildcard": (400, 'If "<field>" contains "*", it must not contain other values.'),
    "compatibility_unknown": (400, 'Compatibility (<compat>) of "<subject>" is not supported for format "<format>".'),
    "compatibility_violation": (400, 'Versions of "<subject>" would violate its compatibility rule (<compat>).'),
    "constraint_failure": (
        400,
        'Versions of "<subject>" would violate the constraint "<kind>" of their group for attribute "<path>".',
    ),
    "defaultversionid_request": (400, '"<subject>": "request" needs a version in the request, and it has none.'),
    "extra_xref_attribute": (400, 'Attribute "<name>" is not allowed: the "<singular>" (<subject>) uses "xref".'),
    "format_external": (400, 'The document of version "<subject>" is external, so it was not validated.'),
    "format_unknown": (400, 'Version "<subject>" has a "format" (<format>) that is not supported.'),
    "format_violation": (400, 'Version "<subject>" does not comply with its "format" (<format>).'),
    "groups_only": (400, 'Attribute "<name>" is invalid: only group types are allowed in this request: <subject>.'),
    "hasdocument_violation": (400, 'Version "<subject>" has a document, but "hasdocument" of "<plural>" is false.'),
    "inline_noninlineable": (400, "The attribute (<name>) cannot be inlined on: <subject>."),
    "invalid_attribute": (400, 'The attribute "<name>" for "<subject>" is not valid: <error_detail>.'),
    "malformed_id": (400, 'For "<subject>", the ID (<id>) is malformed: <error_detail>.'),
    "malformed_xref": (400, 'For "<subject>", the xref (<xref>) is malformed: <error_detail>.'),
    "mismatched_epoch": (400, 'The epoch (<bad_epoch>) for "<subject>" is not the current one (<epoch>).'),
    "mismatched_id": (400, 'The "<singular>id" (<invalid_id>) for "<subject>" must be "<expected_id>".'),
    "mismatched_version_attribute": (400, 'Attribute "<name>" would differ between the versions of "<subject>".'),
    "misplaced_epoch": (400, 'The "epoch" for "<subject>" belongs in its "meta".'),
    "model_compliance_error": (400, "Existing entities do not comply with this model."),
    "model_error": (400, "There is an error in the model: <error_detail>."),
    "model_required_true": (400, 'The model\'s attribute "<name>" has a default, so "required" must be true.'),
    "model_scalar_default": (400, 'The model\'s attribute "<name>" is not a scalar, so it must not have a default.'),
    "multiple_roots": (400, '"<subject>" would have several root versions, which "<plural>" do not allow.'),
    "not_found": (404, "The entity (<subject>) was not found."),
    "one_resource": (400, 'Only one attribute of "<list>" can be present at a time for: <subject>.'),
    "parsing_data": (400, "The data could not be parsed: <error_detail>."),
    "readonly": (400, "The entity (<subject>) is read-only and cannot be updated."),
    "required_attribute_missing": (400, 'Mandatory attributes of "<subject>" are missing: <list>.'),
    "resources_only": (
        400,
        'Attribute "<name>" is invalid: only resource types are allowed in this request: <subject>.',
    ),
    "server_busy": (503, 'The server is too busy for "<subject>"; try again later.'),
    "server_error": (500, "An unexpected error occurred; try again later."),
    "setdefaultversionsticky_false": (400, '"<subject>" cannot have a sticky default version: "maxversions" is 1.'),
    "sort_noncollection": (400, "Only collections can be sorted, not: <subject>."),
    "too_large": (406, 'For "<subject>", the response would be too large.'),
    "too_many_versions": (400, 'For "<subject>", "setdefaultversionid" is "request", which allows only one version.'),
    "unknown_attribute": (400, 'Unknown attribute (<name>) for "<subject>".'),
    "unknown_group_type": (400, 'Unknown group type (<name>) in "<subject>".'),
    "unknown_id": (400, 'For "<subject>", the "<singular>" with the "<singular>id" "<id>" was not found.'),
    "unknown_resource_type": (400, 'Unknown resource type (<name>) for group type "<group>".'),
    "unsupported_specversion": (400, 'The "specversion" (<specversion>) is not supported. Supported: <list>.'),
    "versionid_not_allowed": (400, '"versionid" is set for "<subject>", which "<plural>" do not allow.'),
}
_HTTP_TITLES: Final[Mapping[str, tuple[int, str]]] = {
    "api_not_found": (404, "There is no such API: <subject>."),
    "details_required": (405, "PATCH requires the suffix $details for: <subject>."),
    "extra_xregistry_header": (400, 'For "<subject>", header "<name>" is not allowed: <error_detail>.'),
    "header_error": (400, 'For "<subject>", header "<name>" could not be parsed: <error_detail>.'),
    "missing_body": (400, "For \"<subject>\", the request has no body; try '{}'."),
    "missing_versions": (400, 'For "<subject>", the request must contain at least one version.'),
}
_OWN_TITLES: Final[Mapping[str, tuple[int, str]]] = {
    "conflict": (409, 'The request conflicts with the current state of "<subject>": <error_detail>.'),
    "findings": (400, "The catalog would have errors after this request (<subject>): <error_detail>."),
    "forbidden": (403, "<error_detail>."),
    "precondition_failed": (412, 'A precondition of the request failed for "<subject>".'),
    "storage_full": (507, "The registry cannot write: its disk is full. Nothing was changed; try again later."),
    "rate_limited": (429, "Too many writes; try again in <seconds> s."),
}
TITLES: Final = {**_CORE_TITLES, **_HTTP_TITLES, **_OWN_TITLES}


class Refusal(Exception):
    """A request was refused. ``name`` is a key of :data:`TITLES`.

    ``subject`` is the xid or path concerned, ``detail`` a longer explanation; ``more`` are extension members.
    """

    def __init__(
        self, name: str, subject: str = "", /, *, detail: str = "", more: Mapping[str, Any] | None = None, **args: str
    ) -> None:
        super().__init__(f"{name}: {subject} {args or ''}".strip())
        self.name = name
        self.subject = subject
        self.detail = detail
        self.title_args = args
        self.more = dict(more or {})

    @property
    def status(self) -> int:
        """The HTTP status."""
        return TITLES[self.name][0]

    @property
    def title(self) -> str:
        """The title with its values filled in."""
        values = {**self.title_args, "subject": self.subject}
        return _PLACEHOLDER.sub(lambda hit: values.get(hit[1], hit[0]), TITLES[self.name][1])

    def problem_json(self) -> dict[str, Any]:
        """Return the JSON of the problem (``http.md``, Error Processing)."""
        base = _HTTP if self.name in _HTTP_TITLES else _OWN if self.name in _OWN_TITLES else _CORE
        problem: dict[str, Any] = {"type": base + self.name, "title": self.title, "status": self.status}
        if self.detail:
            problem["detail"] = self.detail
        if self.subject:
            problem["subject"] = self.subject
        if self.title_args:
            problem["args"] = self.title_args
        return {**problem, **self.more}


def invalid_value(subject: str, name: str, why: str) -> Refusal:
    """Return a :class:`Refusal` for an invalid attribute."""
    return Refusal("invalid_attribute", subject, name=name, error_detail=why)


def join_values(values: Sequence[str]) -> str:
    """Join values with commas, as the specification's ``list`` arguments do."""
    return ",".join(values)
