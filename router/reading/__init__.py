"""From where queries read: positions, generations of checkpoints, streams, ranges of a batch."""
