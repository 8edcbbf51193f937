"""The kinds of sources: topics (``kafka``), the inbox (``inbox``), and dead letters that are judged again."""

from __future__ import annotations

from typing import Literal

Kind = Literal["kafka", "inbox", "letters"]
