"""Goal: only an API server that the service account's certificate vouches for gets its token."""

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from autoscaler.actuators.actuator import ActuatorDeniedError, ActuatorError
from autoscaler.actuators.kubernetes.kubernetes_client import KubernetesClient
from autoscaler.actuators.safe_urls import url_problem
from tests.support.fake_kubernetes import NAMESPACE, TOKEN, FakeKubernetes

PATH = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"


def write_certificate(folder: Path, name: str) -> Path:
    """Write a certificate of 127.0.0.1 that signs itself, with its key; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file


async def test_the_certificate_is_checked_and_read_again_when_it_is_rotated(tmp_path: Path) -> None:
    served, other = write_certificate(tmp_path, "served"), write_certificate(tmp_path, "other")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ca.crt").write_bytes(other.read_bytes())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(served)
    api = FakeKubernetes()
    async with api.serve(tls) as url:
        client = KubernetesClient(url, tmp_path / "token", tmp_path / "ca.crt")
        with pytest.raises(ActuatorError, match="cannot be reached"):
            await client.call("GET", PATH)
        assert api.calls == []

        (tmp_path / "ca.crt").write_bytes(served.read_bytes() + b"\n")
        assert await client.call("GET", PATH) == {"items": [], "metadata": {}}
        await client.close()


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
async def test_files_that_cannot_be_used_are_a_denial(
    tmp_path: Path, content: bytes | None
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    client = KubernetesClient("https://127.0.0.1:1", tmp_path / "token", tmp_path / "ca.crt")

    with pytest.raises(ActuatorDeniedError, match="service account"):
        await client.call("GET", PATH)
    await client.close()


@pytest.mark.parametrize("token", ["", "a\nb: c", "a\rb", "a\x00b", "a b", "é"])
async def test_a_token_that_is_no_part_of_a_header_is_a_denial(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_bytes(token.encode())
    client = KubernetesClient("http://127.0.0.1:1", tmp_path / "token", tmp_path / "ca.crt")

    with pytest.raises(ActuatorDeniedError, match="service account"):
        await client.call("GET", PATH)
    await client.close()


@pytest.mark.parametrize("character", ["\t", "\n", "\r", "\x00", "\x7f", " ", "é"])
def test_a_url_with_such_a_character_is_refused(character: str) -> None:
    assert url_problem(f"https://example.com/a{character}b") == "The URL is not valid."
    assert url_problem("https://example.com/ab") is None
