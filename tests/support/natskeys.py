"""What NATS servers and clients in tests prove who they are with: certificates, nkeys, accounts with their users."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nkeys  # type: ignore[import-untyped]

PREFIXES: Final = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}


@dataclass(frozen=True, slots=True)
class Key:
    """An nkey: what is kept, and what is shown."""

    seed: str
    public: str


@dataclass(frozen=True, slots=True)
class Accounts:
    """An operator's server settings, and a credentials file of one user of its one account."""

    settings: dict[str, Any]
    credentials: Path


def key(kind: str = "user") -> Key:
    """Make an nkey."""
    seed = nkeys.encode_seed(os.urandom(32), PREFIXES[kind])
    return Key(bytes(seed).decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())


def accounts(folder: Path) -> Accounts:
    """Make an operator, an account with JetStream's limits open, and the credentials file of a user."""
    operator, account, user = key("operator"), key("account"), key("user")
    limits = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
    held = {"mem_storage": 2**26, "disk_storage": 2**28, "streams": -1, "consumer": -1}
    account_jwt = _jwt(operator, account.public, {"type": "account", "limits": {**limits, **held}})
    user_jwt = _jwt(account, user.public, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    credentials = folder / "user.creds"
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    operator_jwt = folder / "operator.jwt"
    operator_jwt.write_text(_jwt(operator, operator.public, {"type": "operator"}))
    settings = {
        "operator": str(operator_jwt),
        "resolver": "MEMORY",
        "resolver_preload": {account.public: account_jwt},
    }
    return Accounts(settings, credentials)


def _jwt(issuer: Key, subject: str, claims: dict[str, Any]) -> str:
    header = _encoded({"typ": "JWT", "alg": "ed25519-nkey"})
    body = {"jti": "T", "iat": 1, "iss": issuer.public, "name": "test", "sub": subject}
    payload = _encoded({**body, "nats": {**claims, "version": 2}})
    signed = f"{header}.{payload}"
    signature = nkeys.from_seed(bytearray(issuer.seed.encode())).sign(signed.encode())
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Certificates:
    """A CA, and a certificate of its own making for a server at 127.0.0.1 and for a client."""

    ca: Path
    certificate: Path
    key: Path


def certificates(folder: Path, name: str = "127.0.0.1") -> Certificates:
    """Make them with openssl; *name* is the address that the certificate is for."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    authority = ["-x509", "-subj", "/CN=test CA", "-keyout", str(folder / "ca.key"), "-out", str(made.ca)]
    kind = "IP" if name[0].isdigit() else "DNS"
    leaf = ["-x509", "-subj", "/CN=leaf", "-keyout", str(made.key), "-out", str(made.certificate)]
    leaf += ["-CA", str(made.ca), "-CAkey", str(folder / "ca.key"), "-addext", f"subjectAltName={kind}:{name}"]
    leaf += ["-addext", "basicConstraints=critical,CA:FALSE"]
    for arguments in (authority, leaf):
        subprocess.run(["openssl", "req", *curve, *arguments], check=True, capture_output=True, timeout=60)
    return made
