"""Export of spans and metrics to OpenTelemetry over OTLP."""
