"""Drafts of definitions for records that match no definition."""
