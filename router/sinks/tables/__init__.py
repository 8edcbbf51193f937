"""Sinks of tables and files: appended once per batch, columns added, small files merged."""
