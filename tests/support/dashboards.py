"""The queries of the dashboards in ``deploy/``, filled in as Grafana fills them in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from tests.support.prometheus import DEPLOY, Prometheus

DASHBOARDS: Final = tuple(sorted((DEPLOY / "grafana/dashboards").glob("*.json")))
KUBERNETES: Final = "namespace"
"""The variable that has values in Kubernetes only; "All" takes series without the label as well."""
_LABEL_VALUES: Final = re.compile(r"label_values\((.+), (\w+)\)")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    dashboard: str
    panel: str
    legend: str
    expression: str

    def __str__(self) -> str:
        return f"{self.dashboard}, {self.panel}, {self.legend}: {self.expression}"


def panels(dashboard: Path) -> Iterator[dict[str, Any]]:
    """Yield all panels of a dashboard, those inside of rows too."""
    for panel in json.loads(dashboard.read_text(encoding="utf-8"))["panels"]:
        yield panel
        yield from panel.get("panels", ())


def queries() -> Iterator[Query]:
    """Yield all queries as they are written."""
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel.get("targets", ()):
                yield Query(dashboard.stem, panel["title"], target.get("legendFormat", ""), target["expr"])


def filled_in(query: Query, prometheus: Prometheus) -> str:
    """Return a query's expression with the variables of its dashboard, all of which stand at "All".

    Grafana's ``$__rate_interval`` is four scrapes at least.

    Raises:
        LookupError: a variable has no values; Grafana's list would be empty, and each panel that goes by it.
    """
    values = {name: _value(variable, prometheus) for name, variable in _variables(query.dashboard).items()}
    values["__rate_interval"] = f"{4 * prometheus.interval // timedelta(milliseconds=1)}ms"
    return _VARIABLE.sub(lambda found: values[found[1] or found[2]], query.expression)


def _variables(dashboard: str) -> dict[str, dict[str, Any]]:
    (path,) = (each for each in DASHBOARDS if each.stem == dashboard)
    known = json.loads(path.read_text(encoding="utf-8"))["templating"]["list"]
    return {each["name"]: each for each in known if each["type"] != "datasource"}


def _value(variable: dict[str, Any], prometheus: Prometheus) -> str:
    asked = _LABEL_VALUES.fullmatch(variable["query"]["query"])
    assert asked, f"the variable {variable['name']} is no label_values(...)"
    found = prometheus.label_values(_VARIABLE.sub(".*", asked[1]), asked[2])
    if not found and variable["name"] != KUBERNETES:
        raise LookupError(f"the variable {variable['name']} has no values")
    return str(variable["allValue"]) if variable.get("allValue") else f"({'|'.join(map(re.escape, found))})"
