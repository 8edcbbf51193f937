"""Drafts of message definitions for dead letters that none matched."""
