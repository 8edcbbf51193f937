"""Pairs of messages: answers with what they answer, kept open for a time and delivered once, or given up."""
