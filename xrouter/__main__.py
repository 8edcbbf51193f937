"""``xrouter``, and ``python -m xrouter``, which looks for no module in the working directory, though ``-m`` says so."""

# Small: Python wants it in a file of this name.

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    from router.cli import main

    main()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    main()
