"""The notebooks of ``deploy/examples/notebooks``: running them, and showing them as pages of the site.

Their outputs are in the repository. Run as a module it writes them anew: ``python -m tests.support.notebooks``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.router import submit_options

NOTEBOOKS: Final = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "notebooks"
_SECONDS: Final = 300


def run_notebook(path: Path) -> Any:
    """Return a notebook with the outputs that it has now; what programs log to standard error is none."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    # Workers of Spark run the interpreter of the tests, not whichever python3 comes first on the path.
    environ = {**os.environ, **submit_options(), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": ""}
    client = NotebookClient(
        notebook, timeout=_SECONDS, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute(env=environ)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    return notebook


def shown_by(notebook: Any) -> list[Any]:
    """Return the outputs of a notebook's cells."""
    return [[dict(each) for each in cell.get("outputs", ())] for cell in notebook["cells"]]


def page_of(text: str) -> str:
    """Return a notebook as a page in Markdown: code in blocks, and below it what it shows."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += map(_shown, cell.get("outputs", ()))
    return "\n\n".join(parts)


def _shown(output: Any) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="shown">\n{"".join(data["text/html"])}\n</div>'
    return f"```text\n{''.join(output.get('text', data.get('text/plain', ''))).rstrip()}\n```"


def main() -> None:
    """Write the outputs of all notebooks."""
    import nbformat

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(run_notebook(path), path)  # type: ignore[no-untyped-call]
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
