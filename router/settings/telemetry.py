"""Settings of what is sent to OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import Field

from router.settings.logins import PLAIN_TEXT, TlsSettings
from router.settings.places import names_secret
from router.settings.section import Section
from router.settings.values import Duration, Options


class OtlpSettings(Section):
    """A collector of OpenTelemetry, over OTLP/HTTP. It needs the extra `telemetry` of the package."""

    endpoint: str = Field(
        description="URL of the collector, such as https://otel.example.com:4318; `/v1/traces`, `/v1/metrics` follow.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s?#]*[^\s?#/])?$",
    )
    headers: Options = Field({}, description="Headers of each request, such as `authorization`, by reference.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)
    tls: TlsSettings | None = Field(None, description="Certificates of the connection.")
    traces: bool = Field(True, description="Whether each batch is sent as a span, with one for each of its steps.")
    metrics: bool = Field(True, description="Whether all that /metrics has is sent.")
    interval: Duration = Field(timedelta(seconds=15), gt=timedelta(0), description="How often metrics are sent.")
    service: str = Field("xrouter", description="Name of the service (`service.name`).", min_length=1)


class TelemetrySettings(Section):
    """What is sent to others, besides what /metrics has for those who ask."""

    otlp: OtlpSettings | None = Field(None, description="A collector of OpenTelemetry; unset, nothing is sent.")


def telemetry_faults(telemetry: TelemetrySettings, remedy: str) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets in headers that would be sent without TLS, and for half a certificate."""
    otlp = telemetry.otlp
    if otlp is None:
        return
    secure = otlp.endpoint.startswith("https://")
    if any(map(names_secret, otlp.headers)) and not secure and not otlp.allow_plaintext_password:
        yield "telemetry.otlp.headers", f"would be sent to {otlp.endpoint} in plain text; {remedy}"
    if otlp.tls is not None and not secure:
        yield "telemetry.otlp.tls", f"has no use for {otlp.endpoint}; write https://, or leave it out"
    if otlp.tls is not None and (otlp.tls.cert is None) != (otlp.tls.key is None):
        yield "telemetry.otlp.tls", "needs cert and key together"
