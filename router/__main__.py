"""``python -m router`` is ``xrouter``."""

from __future__ import annotations

from router.cli import main

if __name__ == "__main__":
    main()
