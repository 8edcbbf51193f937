"""Monitoring: metrics, health, progress, and batches that take too long."""
