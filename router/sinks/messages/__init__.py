"""Sinks that send messages: what is sent for a row, held against its definition."""
