"""Delivery of the registry's events to subscribers."""
