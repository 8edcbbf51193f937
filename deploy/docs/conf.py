"""How Sphinx builds the site: ``make docs``. Its source folder is the whole checkout.

So pages beside the code are part of the site, with their links; this folder has the other pages.

For links "Edit this page", set ``XROUTER_DOCS_EDIT`` to the address at which a file is edited, with ``{filename}`` for
its path, or name the repository in pyproject.toml: ``[project.urls] Repository``, of GitHub, GitLab or Bitbucket.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

project = "xregistry-router"
author = "the authors of xregistry-router"
project_copyright = author
extensions = ["myst_parser", "tests.support.site"]
root_doc = "deploy/docs/index"
include_patterns = [
    "deploy/docs/**.md",
    *("README.md", "CHANGELOG.md"),
    *("deploy/OPERATIONS.md", "deploy/SETTINGS.md", "deploy/STATUS.md", "deploy/COMMANDS.md"),
    "deploy/examples/README.md",
    "deploy/examples/notebooks/*.ipynb",
    *("catalog/README.md", "catalog/RULES.md"),
    *("router/MATCHING.md", "router/ARCHITECTURE.md", "registry/ARCHITECTURE.md"),
    "tests/benchmarks/RESULTS.md",
]

# Notebooks become Markdown as they are read (tests/support/notebooks.py).
source_suffix = {".md": "markdown", ".ipynb": "markdown"}

# Headings have the same anchors as in a checkout that is viewed at a host of repositories.
myst_heading_anchors = 6
myst_enable_extensions = ["attrs_inline"]
nitpicky = True
# Quotes stay as they are written: some belong to commands.
smartquotes = False

html_theme = "furo"
html_title = "xregistry-router"
# Pages have the same paths as in the checkout; this one leads from the top to the start page.
html_extra_path = ["root"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
# Nothing is loaded from elsewhere: fonts are those of the reader's system.
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {"navigation_with_keys": True}
_urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
if edit := os.environ.get("XROUTER_DOCS_EDIT"):
    html_theme_options |= {"source_edit_link": edit}
elif repository := _urls.get("Repository"):
    html_theme_options |= {"source_repository": repository, "source_branch": "main", "source_directory": ""}
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"
