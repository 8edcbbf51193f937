"""Sinks that send messages: build a message for each row, and check it against its definition."""
