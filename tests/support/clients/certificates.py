"""Certificates for tests: a certificate authority of the test, and a server certificate signed by
it.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pki(NamedTuple):
    """Files of a certificate authority, and of a server certificate that it signed."""

    authority: Path
    cert: Path
    key: Path

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--tls-cert", str(self.cert), "--tls-key", str(self.key))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    """Begin a certificate of "our CA", with what Python requires from 3.13 on."""
    now = datetime.datetime.now(datetime.UTC)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    own_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    is_authority = key is signer
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("our CA"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(issuer_key, critical=False)
        .add_extension(own_key, critical=False)
    )


_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def make_pki(folder: Path, password: bytes | None = None) -> Pki:
    """Make an authority, and a certificate signed by it for 127.0.0.1 and several.test."""
    folder.mkdir(exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("our CA", authority_key, authority_key)
    own = authority.add_extension(_SIGNS, critical=True).sign(authority_key, hashes.SHA256())
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    here = x509.SubjectAlternativeName([address, x509.DNSName("several.test")])
    cert = _certificate("server", key, authority_key)
    signed = cert.add_extension(here, critical=False).sign(authority_key, hashes.SHA256())
    encryption = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password)
    )
    packed_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    pki = Pki(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    pki.authority.write_bytes(own.public_bytes(serialization.Encoding.PEM))
    pki.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pki.key.write_bytes(packed_key)
    return pki
