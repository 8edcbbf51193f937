"""Schema ids in the frames of Kafka bodies, and the schema registries (Confluent's API) that resolve them."""
