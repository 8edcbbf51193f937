"""Pairs of messages: answers with what they answer, kept open for a time, delivered once, and told where none comes."""
