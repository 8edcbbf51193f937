"""Shared by JSON Schema and JSON Structure: composition, references, and reading JSON bodies."""
