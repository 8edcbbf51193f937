"""XML Schemas, by libxml2, which knows XSD 1.0.

Bodies are parsed without DTD, entities, files and network, and what a body says of where its schema is
(``xsi:schemaLocation``) is taken out before libxml2 would follow it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from lxml import etree

from catalog.schemas.contract import (
    MAX_DIRECT_BYTES,
    MAX_FAULTS,
    Library,
    MissingTypeError,
    SchemaError,
    SchemaFault,
    SchemaSource,
    TooCostly,
    fault,
    short,
)
from catalog.schemas.xsd.documents import (
    XS,
    XsdDocuments,
    compile_documents,
    has_doctype,
    locations_of,
    read_documents,
    safe_parser,
)

# How much work an XML Schema may make of a body, as far as its documents show.
#
# libxml2 compares a value with each value of an enumeration, and tries patterns and content models that can be read in
# several ways in all of them: it gives up after half a second, but does so for each value of a body.

MAX_STEPS: Final = 20_000_000
"""Steps of about ten nanoseconds that one body may take."""
_VALUE_STEPS: Final = 500
_OPTION_STEPS: Final = 2
_MAX_SQUARED: Final = 4096
"""Bytes of a body up to which trying all ways to split its values in two takes a moment."""
_REPEATED_GROUP: Final = re.compile(r"\)(?:[*+]|\{)")
_VARIABLE: Final = re.compile(r"[*+]|\{\d*,")
_GROUPS: Final = (f"{XS}sequence", f"{XS}choice", f"{XS}group")


class XsdWork:
    """Bounds on the work of validating bodies by one schema."""

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        roots = [etree.fromstring(text, safe_parser(encoding="utf-8")) for text in texts.values()]
        self._options = max((_options(root) for root in roots), default=0)
        patterns = [str(each.get("value")) for root in roots for each in root.iter(f"{XS}pattern")]
        self._ambiguous = any(map(_REPEATED_GROUP.search, patterns)) or any(map(_has_ambiguous_model, roots))
        self._squares = any(len(_VARIABLE.findall(pattern)) > 1 for pattern in patterns)

    def is_soon_done(self, body: bytes) -> bool:
        """Tell whether validating a body takes a moment at most."""
        if self._ambiguous or len(body) > (_MAX_SQUARED if self._squares else MAX_DIRECT_BYTES):
            return False
        steps = _VALUE_STEPS + _OPTION_STEPS * self._options
        if len(body) * steps <= MAX_STEPS:
            return True
        return (body.count(b"<") // 2 + body.count(b"=") + body.count(b" ")) * steps <= MAX_STEPS


def _options(root: etree._Element) -> int:
    counts: dict[etree._Element | None, int] = {}
    for each in root.iter(f"{XS}enumeration"):
        counts[each.getparent()] = counts.get(each.getparent(), 0) + 1
    return max(counts.values(), default=0)


def _has_ambiguous_model(root: etree._Element) -> bool:
    """Tell whether a group is repeated a number of times, or within another that is repeated."""
    for each in root.iter(*_GROUPS):
        times = str(each.get("maxOccurs", "1"))
        if times not in ("0", "1", "unbounded"):
            return True
        if times == "unbounded" and any(
            str(over.get("maxOccurs", "1")) != "1" for over in each.iterancestors(*_GROUPS)
        ):
            return True
    return False


MAX_LOCATED_BYTES: Final = 32 * 1024
"""Size of a body up to which a fault says where it is: libxml2 counts siblings for it, of each of all faults."""
MAX_SECONDS: Final = 5
MAX_MEMORY: Final = 1024 * 1024 * 1024
_CHUNK: Final = 1024
_LOCATIONS: Final = etree.XPath(
    "//@*[namespace-uri() = 'http://www.w3.org/2001/XMLSchema-instance' and contains(local-name(), 'chemaLocation')]"
)
_TRIAL: Final = """
import json, resource, sys
job = json.load(sys.stdin)
for kind, most in (resource.RLIMIT_CPU, job["seconds"]), (resource.RLIMIT_AS, job["memory"]):
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
sys.path[:] = job["path"]
from lxml import etree
from catalog.schemas.xsd.documents import compile_documents
try:
    compile_documents({name: text.encode() for name, text in job["texts"].items()})
except (etree.XMLSchemaParseError, etree.XMLSyntaxError) as error:
    print(error)
    sys.exit(job["invalid"])
"""
_INVALID: Final = 3
"""How the trial ends when libxml2 refuses the schema: that counts too, for it also refuses when memory is short."""


def compile_schema(source: SchemaSource, library: Library) -> XsdValidator:
    """Compile an XML Schema; ``source.name`` is the local name that the root element of bodies must have.

    Without a name every global element may be the root. Documents that it includes or imports are asked of the library.

    Raises:
        SchemaError: it is no XML Schema 1.0, a document is unknown, it has not the element, or it takes too much.
    """
    if source.pointer:
        hint = "append :Name of a global element to its reference, or #/xs:schema/xs:element[@name='Name']"
        raise MissingTypeError(f"{short(source.pointer)} leads to no element of an XML Schema", hint=hint)
    if not isinstance(source.document, str):
        raise SchemaError("an XML Schema is a text", hint="give the text of the .xsd file as a string")
    documents = read_documents(source, library)
    if not documents.elements:
        raise SchemaError("the XML Schema declares no global element", hint="declare the root element of the messages")
    if source.name and source.name not in documents.elements:
        known = short(", ".join(sorted(documents.elements)))
        raise MissingTypeError(f"the XML Schema declares no element {short(source.name)}", hint=f"it declares {known}")
    if documents.intricate:
        _try(documents, source.version)
    try:
        return XsdValidator(compile_documents(documents.texts), source.name, XsdWork(documents.texts))
    except (etree.XMLSchemaParseError, etree.XMLSyntaxError) as error:
        raise _refused(documents, source.version, str(error)) from error


def references_of(source: SchemaSource) -> Iterable[str]:
    """Give the locations of included, imported and redefined documents, as written."""
    return locations_of(source)


def _try(documents: XsdDocuments, version: str) -> None:
    """Compile in a process with limits first: some hundred bytes of XSD can take libxml2 all memory, or days."""
    texts = {name: text.decode("utf-8") for name, text in documents.texts.items()}
    job = {"texts": texts, "path": sys.path, "seconds": MAX_SECONDS, "memory": MAX_MEMORY, "invalid": _INVALID}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _TRIAL],
            input=json.dumps(job).encode(),
            capture_output=True,
            check=False,
            timeout=10 * MAX_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _too_much() from error
    if done.returncode == _INVALID:
        raise _refused(documents, version, done.stdout.decode("utf-8", "replace"))
    if done.returncode < 0 or b"MemoryError" in done.stderr:
        raise _too_much()
    if done.returncode != 0:  # nothing that a schema can bring about
        raise RuntimeError(f"the trial compilation failed: {done.stderr[-500:].decode('utf-8', 'replace')}")


def _too_much() -> SchemaError:
    limits = f"{MAX_SECONDS} s or {MAX_MEMORY // 1024**2} MiB"
    hint = "use fewer optional elements in one type, and groups and unions that refer to each other less often"
    return SchemaError(f"compiling the XML Schema takes more than {limits}", hint=hint)


def _refused(documents: XsdDocuments, version: str, reason: str) -> SchemaError:
    if documents.later:
        hint = f"only XSD 1.0 is known: do without {documents.later}, which is of XSD 1.1"
    elif version.startswith("1.1"):
        hint = "correct the schema, and note that only XSD 1.0 is known"
    else:
        hint = "correct the schema; `xmllint --schema` says the same of it"
    return SchemaError(f"not a valid XML Schema: {short(reason)}", hint=hint)


class XsdValidator:
    """A compiled XML Schema."""

    def __init__(self, schema: etree.XMLSchema, name: str, work: XsdWork) -> None:
        self._schema = schema
        self._work = work
        self._name = name
        self._parser = safe_parser()

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return why *body* does not conform, with an XPath where the body is no larger than MAX_LOCATED_BYTES.

        The encoding is what the body itself declares. The content type is not looked at.

        Raises:
            TooCostly: it may take more than a moment, and *at_any_cost* was not given.
        """
        return next(iter(self._faults(body, 1, at_any_cost=at_any_cost)), None)

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return all that does not conform, at most MAX_FAULTS; raises as :meth:`fault`."""
        return self._faults(body, MAX_FAULTS, at_any_cost=False)

    def _faults(self, body: bytes | None, most: int, *, at_any_cost: bool) -> list[SchemaFault]:
        if not body:
            return [fault("there is no body, which is no XML")]
        if not at_any_cost and not self._work.is_soon_done(body):
            raise TooCostly
        try:
            root = etree.fromstring(body, self._parser)
        except (etree.XMLSyntaxError, ValueError) as error:
            return [fault(f"not XML: {error}")]
        if has_doctype(root):
            return [fault("a DOCTYPE is not allowed")]
        local = etree.QName(root).localname
        if self._name and local != self._name:
            return [fault(f"the root element is {local} and not {self._name}", "/*")]
        locations = _LOCATIONS(root)
        for each in locations if isinstance(locations, list) else ():
            del each.getparent().attrib[each.attrname]  # type: ignore[union-attr,arg-type]  # an attribute, by the XPath
        if len(body) <= MAX_LOCATED_BYTES:
            return self._located_faults(root, most)
        if locations:
            body = etree.tostring(root, encoding="utf-8")
        del root
        return self._first_faults(body, most)

    def _located_faults(self, root: etree._Element, most: int) -> list[SchemaFault]:
        try:
            if self._schema.validate(root):
                return []
        except etree.XMLSchemaValidateError as error:
            # of a value that a pattern may fit in too many ways
            return [fault(f"the validator gave up: {error}")]
        return [fault(str(each.message), str(each.path or "")) for each in islice(iter(self._schema.error_log), most)]  # type: ignore[call-overload]

    def _first_faults(self, body: bytes, most: int) -> list[SchemaFault]:
        """Validate while parsing, and stop when there are enough faults: a large body may have millions."""
        parser = safe_parser(schema=self._schema)
        try:
            for begin in range(0, len(body), _CHUNK):
                parser.feed(body[begin : begin + _CHUNK])
                if len(parser.feed_error_log) >= most:
                    return _faults_of(parser.feed_error_log, most)
            parser.close()
        except (etree.XMLSyntaxError, etree.XMLSchemaError) as error:
            return _faults_of(parser.feed_error_log, most) or [fault(str(error))]
        return _faults_of(parser.feed_error_log, most)


def _faults_of(log: Iterable[etree._LogEntry], most: int) -> list[SchemaFault]:
    return [fault(str(each.message)) for each in islice(log, most)]
