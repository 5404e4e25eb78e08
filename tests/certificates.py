"""Certificates of an authority that the tests make up."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .servers import Certificates


def make_certificates(directory: Path) -> Certificates:
    """An authority, and a server on 127.0.0.1 and a client that it has signed."""
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign("authority", key, "authority", key)
    paths = {"authority": _write(directory / "authority.pem", authority)}
    for name in ("server", "client"):
        own = ec.generate_private_key(ec.SECP256R1())
        signed = _sign(name, own, "authority", key)
        paths[name] = _write(directory / f"{name}.pem", signed, own)
    return Certificates(**paths)


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, it)]) for it in (name, issuer)]
    builder = x509.CertificateBuilder(
        subject_name=names[0],
        issuer_name=names[1],
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(days=1),
        not_valid_after=now + datetime.timedelta(days=1),
    )
    builder = builder.add_extension(addresses, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(name == issuer, None), critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def _write(
    path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey | None = None
) -> Path:
    data = certificate.public_bytes(serialization.Encoding.PEM)
    if key is not None:
        data += key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    path.write_bytes(data)
    return path
