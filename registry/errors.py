"""The errors that the specification names, each with its type, HTTP status and title (core ``spec.md``, ``http.md``).

A title is a template of its ``args`` and the subject. Whatever raises a :class:`Refusal` has changed nothing: the
transaction around it is undone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_CORE: Final = "https://github.com/xregistry/spec/blob/main/core/spec.md#"
_HTTP: Final = "https://github.com/xregistry/spec/blob/main/core/http.md#"
_OWN: Final = "urn:xrouter:registry:"
_FIELD: Final = re.compile(r"<([a-z_]+)>")
_FLAW: Final = 'For "<subject>", an error was found in "{}" value (<value>): <error_detail>.'

TITLES: Final[Mapping[str, tuple[int, str]]] = {
    "action_not_supported": (405, "The action (<action>) is not supported for: <subject>."),
    "ancestor_circular_reference": (400, 'For "<subject>", the ancestors would form a circle: <list>.'),
    "bad_defaultversionid": (400, _FLAW.format("defaultversionid")),
    "bad_details": (400, '"$details" cannot be used here: <subject>.'),
    "bad_filter": (400, _FLAW.format("filter")),
    "bad_flag": (400, "The flag (<flag>) is not allowed here: <subject>."),
    "bad_ignore": (400, _FLAW.format("ignore")),
    "bad_inline": (400, _FLAW.format("inline")),
    "bad_request": (400, "<error_detail>."),
    "bad_sort": (400, _FLAW.format("sort")),
    "cannot_doc_xref": (400, 'Versions of "<subject>" have no document view, since it uses "xref".'),
    "capability_error": (400, "There is an error in the capabilities: <error_detail>."),
    "capability_missing_value": (400, 'The capability "<name>" needs to contain "<value>".'),
    "capability_unknown": (400, "The capability is unknown: <field>."),
    "capability_value": (400, 'The value (<value>) is not allowed for capability "<field>". Allowed: <list>.'),
    "capability_wildcard": (400, 'Where "<field>" has "*", it can have no other value.'),
    "compatibility_unknown": (400, 'Compatibility (<compat>) of "<subject>" is not supported for format "<format>".'),
    "compatibility_violation": (400, 'Versions of "<subject>" would violate its compatibility rule (<compat>).'),
    "constraint_failure": (
        400,
        'Versions of "<subject>" would violate the constraint "<kind>" of their group for attribute "<path>".',
    ),
    "data_retrieval_error": (500, "Not all of the data that was asked for could be read."),
    "defaultversionid_request": (400, '"<subject>": "request" means a new version, and none was processed.'),
    "extra_xref_attribute": (400, 'Attribute "<name>" cannot be there since the "<singular>" (<subject>) uses "xref".'),
    "format_external": (400, 'The document of version "<subject>" is stored elsewhere, so it was not validated.'),
    "format_unknown": (400, 'Version "<subject>" has a "format" (<format>) that is not supported.'),
    "format_violation": (400, 'Version "<subject>" does not comply with its "format" (<format>).'),
    "groups_only": (400, 'Attribute "<name>" is invalid: only types of groups can be in this request: <subject>.'),
    "hasdocument_violation": (400, 'Version "<subject>" has a document, but "hasdocument" of "<plural>" is false.'),
    "inline_noninlineable": (400, "The attribute (<name>) cannot be inlined on: <subject>."),
    "invalid_attribute": (400, 'The attribute "<name>" for "<subject>" is not valid: <error_detail>.'),
    "malformed_id": (400, 'For "<subject>", the ID (<id>) is malformed: <error_detail>.'),
    "malformed_xid": (400, 'For "<subject>", the XID (<xid>) is malformed: <error_detail>.'),
    "malformed_xref": (400, 'For "<subject>", the xref (<xref>) is malformed: <error_detail>.'),
    "mismatched_epoch": (400, 'The epoch (<bad_epoch>) for "<subject>" is not its current one (<epoch>).'),
    "mismatched_id": (400, 'The "<singular>id" (<invalid_id>) for "<subject>" needs to be "<expected_id>".'),
    "mismatched_version_attribute": (400, 'Attribute "<name>" would differ between the versions of "<subject>".'),
    "misplaced_epoch": (400, 'The "epoch" for "<subject>" needs to be in its "meta".'),
    "model_compliance_error": (400, "Entities of the registry would not comply with this model."),
    "model_error": (400, "There is an error in the model: <error_detail>."),
    "model_required_true": (400, 'The model\'s attribute "<name>" has a default, so it needs "required" to be true.'),
    "model_scalar_default": (400, 'The model\'s attribute "<name>" is no scalar, so it can have no default.'),
    "multiple_roots": (400, 'There would be several root versions of "<subject>", which "<plural>" cannot have.'),
    "not_available": (400, "What was asked for (<subject>) is not available."),
    "not_found": (404, "The entity (<subject>) cannot be found."),
    "one_resource": (400, 'Only one attribute of "<list>" can be present at a time for: <subject>.'),
    "parsing_data": (400, "The data cannot be parsed: <error_detail>."),
    "readonly": (400, "The entity (<subject>) is read-only and cannot be updated."),
    "required_attribute_missing": (400, 'Mandatory attributes of "<subject>" are missing: <list>.'),
    "resources_only": (
        400,
        'Attribute "<name>" is invalid: only types of resources can be in this request: <subject>.',
    ),
    "server_busy": (503, 'There are too many requests to complete "<subject>"; try again later.'),
    "server_error": (500, "Something unexpected went wrong; try again later."),
    "setdefaultversionsticky_false": (400, '"<subject>" cannot be sticky since "maxversions" is 1.'),
    "sort_noncollection": (400, "Only collections can be sorted, not: <subject>."),
    "too_large": (406, 'For "<subject>", the answer is too large for one response.'),
    "too_many_versions": (400, 'For "<subject>", "setdefaultversionid" is "request", which allows one version only.'),
    "unknown_attribute": (400, 'An unknown attribute (<name>) was given for "<subject>".'),
    "unknown_group_type": (400, 'An unknown type of group (<name>) was given in "<subject>".'),
    "unknown_id": (400, 'For "<subject>", the "<singular>" with the "<singular>id" "<id>" cannot be found.'),
    "unknown_resource_type": (400, 'An unknown type of resource (<name>) was given for type of group "<group>".'),
    "unsupported_specversion": (400, 'The "specversion" (<specversion>) is not supported. Supported: <list>.'),
    "versionid_not_allowed": (400, 'A "versionid" was given for "<subject>", which "<plural>" do not allow.'),
    # Of the HTTP binding.
    "api_not_found": (404, "There is no such API: <subject>."),
    "details_required": (405, "PATCH needs the suffix $details for: <subject>."),
    "extra_xregistry_header": (400, 'For "<subject>", header "<name>" is not allowed: <error_detail>.'),
    "header_error": (400, 'For "<subject>", header "<name>" cannot be read: <error_detail>.'),
    "missing_body": (400, "For \"<subject>\", the request has no body; try '{}'."),
    "missing_versions": (400, 'For "<subject>", at least one version is needed in the request.'),
    # Of ours.
    "conflict": (409, 'For "<subject>", this is in conflict with what is there: <error_detail>.'),
    "findings": (400, '"<subject>" would make a catalog with errors: <error_detail>.'),
    "forbidden": (403, "<error_detail>."),
    "precondition_failed": (412, 'The condition of the request does not hold for "<subject>".'),
    "storage_full": (507, "The registry cannot write: its disk is full. Nothing has changed; try again later."),
    "rate_limited": (429, "There were too many writes; try again in <seconds> s."),
    "unauthorized": (401, "<error_detail>."),
}
_OF_HTTP: Final = frozenset(
    ("api_not_found", "details_required", "extra_xregistry_header", "header_error", "missing_body", "missing_versions")
)
_OF_OURS: Final = frozenset(
    ("conflict", "findings", "forbidden", "precondition_failed", "rate_limited", "storage_full", "unauthorized")
)


class Refusal(Exception):
    """A request that is refused with one of :data:`TITLES`, called by its ``name``.

    ``subject`` is the xid or path that it is about, ``detail`` more for the reader; ``more`` are extension members.
    """

    def __init__(
        self, name: str, subject: str = "", /, *, detail: str = "", more: Mapping[str, Any] | None = None, **args: str
    ) -> None:
        super().__init__(f"{name}: {subject} {args or ''}".strip())
        self.name = name
        self.subject = subject
        self.detail = detail
        self.args_given = args
        self.more = dict(more or {})

    @property
    def status(self) -> int:
        """The HTTP status."""
        return TITLES[self.name][0]

    @property
    def title(self) -> str:
        """The title with all its values."""
        values = {**self.args_given, "subject": self.subject}
        return _FIELD.sub(lambda hit: values.get(hit[1], hit[0]), TITLES[self.name][1])

    def body(self) -> dict[str, Any]:
        """Return the problem as its JSON has it (``http.md``, Error Processing)."""
        base = _HTTP if self.name in _OF_HTTP else _OWN if self.name in _OF_OURS else _CORE
        problem: dict[str, Any] = {"type": base + self.name, "title": self.title, "status": self.status}
        if self.detail:
            problem["detail"] = self.detail
        if self.subject:
            problem["subject"] = self.subject
        if self.args_given:
            problem["args"] = self.args_given
        return {**problem, **self.more}


def invalid(subject: str, name: str, why: str) -> Refusal:
    """Return the refusal of one attribute's value."""
    return Refusal("invalid_attribute", subject, name=name, error_detail=why)


def listed(values: Sequence[str]) -> str:
    """Write values one after the other, as the specification's lists have them."""
    return ",".join(values)
