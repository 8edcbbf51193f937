"""Effective definitions: merged with their bases, and their constraints."""
