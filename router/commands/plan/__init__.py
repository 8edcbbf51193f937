"""What a new catalog would do to the last records: those read again, judged twice, and told apart."""
