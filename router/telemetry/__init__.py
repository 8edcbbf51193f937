"""What the router sends to OpenTelemetry over OTLP, where settings ask for it: spans of batches, and metrics."""
