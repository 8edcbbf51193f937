"""How Sphinx builds the site: ``make docs``. Its source folder is the whole checkout.

So the pages that stand beside the code are part of it as they are, with the links that they have; the pages that are of
the site alone are in this folder.
"""

from __future__ import annotations

import sys
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
    *("catalog/README.md", "catalog/RULES.md"),
    *("router/JUDGING.md", "router/ARCHITECTURE.md", "registry/ARCHITECTURE.md"),
    "tests/benchmarks/RESULTS.md",
]

# Headings have the anchors that links of the pages use, as in the places where the checkout is looked at.
myst_heading_anchors = 6
myst_enable_extensions = ["attrs_inline"]
nitpicky = True
# Quotes are those that were written: some belong to commands.
smartquotes = False

html_theme = "furo"
html_title = "xregistry-router"
# Pages have the paths that they have in the checkout; this one leads from the top to where to begin.
html_extra_path = ["root"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
# Nothing is loaded from elsewhere: fonts are those of the reader's system.
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
