"""Fetch documents within limits, parse them, and assemble those split into several files or pages."""
