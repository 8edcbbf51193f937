"""Matching records against all their candidate definitions, for a whole Arrow batch at once."""
