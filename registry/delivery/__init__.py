"""Delivery of the registry's events to those who subscribed to them."""
