"""Certificates of a cluster: one authority, a server and its clients."""

import datetime
import ipaddress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME: Final = datetime.timedelta(days=1)


class Authority:
    """An authority whose certificates hold for a day. Each has its key beside it."""

    def __init__(self, folder: Path) -> None:
        """Write `ca.crt` into the folder."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("millrace-test-ca", "")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        own = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "ca.crt"
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str) -> tuple[Path, Path]:
        """Return certificate and key of a server on the loopback address."""
        return self._issue(name, "", ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, user: str, group: str = "") -> tuple[Path, Path]:
        """Return certificate and key of a user of Kubernetes."""
        return self._issue(user, group, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(self, name: str, group: str, usage: x509.ObjectIdentifier) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        issued = (
            self._builder(_subject(name, group), key)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        file = self._folder / f"{name.replace(':', '-')}.crt"
        file.write_bytes(issued.public_bytes(serialization.Encoding.PEM))
        return file, write_key(file.with_suffix(".key"), key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFETIME)
            .not_valid_after(now + _LIFETIME)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )


def write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write a private key without a password, as Kubernetes reads it; return the file."""
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return file


def _subject(name: str, group: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if group:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)
