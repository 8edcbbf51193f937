"""Columns of payloads: the shapes that all families of schemas are read into."""
