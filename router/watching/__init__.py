"""For those who watch: metrics, health, progress, and batches that take too long."""
