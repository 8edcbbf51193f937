"""Definitions: options, references and bases merged, and their constraints."""
