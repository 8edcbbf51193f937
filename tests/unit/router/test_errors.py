"""Every error has its own exit code."""

from __future__ import annotations

import router.errors as errors
from router.errors import EXIT_CODES, ConfigError, RouterError, SinkError


def test_table_is_complete_and_distinct() -> None:
    declared = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RouterError)}
    assert declared == set(EXIT_CODES)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert not {0, 2} & set(EXIT_CODES.values())


def test_codes_and_text() -> None:
    error = SinkError("lake", "cannot write\nhere", hint="free space")
    assert (error.exit_code, error.message, error.hint) == (8, "sink lake: cannot write here", "free space")
    assert str(error) == "sink lake: cannot write here (free space)"
    assert ConfigError("x").exit_code == 3
