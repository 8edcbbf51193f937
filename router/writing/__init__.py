"""Writing an evaluated batch: key order, Kafka records, staged files, rejections, and the writes to sinks."""
