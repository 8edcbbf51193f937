"""Texts of JSON and YAML as plain trees, and the lines that findings stand in."""
