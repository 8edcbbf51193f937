"""Checks that versions comply with their format, and are compatible as their resource requires."""
