"""Matching: one record against all its candidates, decided for a whole Arrow batch at once."""
