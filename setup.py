"""The description of the package: README.md, whose links lead somewhere from any page that shows it."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]


def _to_absolute(link: re.Match[str]) -> str:
    """Return a link into the repository, if the urls name one; else its text."""
    repository = URLS.get("Repository")
    return f"{link[1]}({repository}/blob/main/{link[3]})" if repository else link[2]


def describe(text: str) -> str:
    """Return a page of this checkout without relative links."""
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)", "", text)
    return re.sub(r"(\[([^\]]*)\])\((?!https?:|#)([^)]*)\)", _to_absolute, text)


if __name__ == "__main__":
    readme = describe((ROOT / "README.md").read_text("utf-8"))
    setup(long_description=readme, long_description_content_type="text/markdown")
