"""What a new catalog would do to the last records: they are read again, judged by both catalogs, and compared."""
