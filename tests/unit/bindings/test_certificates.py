"""When certificates end is told as openssl tells it."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bindings.certificates import CertificateCollector, parse_expiry
from tests.support.ports import Authority

NAME = "xrouter_certificate_end_timestamp_seconds"


def told_by_openssl(certificate: Path) -> float:
    command = ["openssl", "x509", "-in", str(certificate), "-noout", "-enddate"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(ssl.cert_time_to_seconds(done.stdout.strip().removeprefix("notAfter=")))


@pytest.mark.parametrize("days", [2, 30 * 365])
def test_the_end_is_that_of_openssl(tmp_path: Path, days: int) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("us", alternatives="DNS:localhost", days=days)
    chain = pair.certificate.read_text() + authority.certificate.read_text()
    assert parse_expiry(f"a note\n{chain}") == told_by_openssl(pair.certificate)


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 40, 100])
def test_what_is_no_certificate_is_told(tmp_path: Path, cut: int) -> None:
    whole = ssl.PEM_cert_to_DER_cert(Authority(tmp_path).certificate.read_text())
    with pytest.raises(ValueError):
        parse_expiry(ssl.DER_cert_to_PEM_cert(whole[:cut]))
    with pytest.raises(ValueError):
        parse_expiry("no certificate")


def test_a_renewed_file_counts_where_it_is_read_anew(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    short, long = authority.sign("short"), authority.sign("long", days=90)
    ends = [told_by_openssl(each.certificate) for each in (short, long)]
    file = tmp_path / "tls.crt"
    file.write_bytes(short.certificate.read_bytes())
    registry = CollectorRegistry()
    registry.register(CertificateCollector({"http.tls": file, "none": tmp_path / "none"}, {"logins": file}))

    def told() -> list[float | None]:
        return [registry.get_sample_value(NAME, {"certificate": key}) for key in ("http.tls", "logins", "none")]

    assert told() == [ends[0], ends[0], None]
    file.write_bytes(long.certificate.read_bytes())
    os.utime(file, ns=(1, 1))
    assert told() == [ends[0], ends[1], None]
    file.unlink()
    assert told() == [ends[0], None, None]
