"""Texts of JSON and YAML as plain trees, the lines that findings stand in, near names, and files within bounds."""
