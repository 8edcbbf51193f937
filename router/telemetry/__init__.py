"""What the router tells OpenTelemetry: spans of its batches and its metrics, over OTLP, where settings ask for it."""
