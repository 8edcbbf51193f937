"""Drafts of definitions for records that no definition took."""
