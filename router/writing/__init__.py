"""Writing a judged batch: order, rendering, Spark's writes to Kafka, rejections, commits."""
