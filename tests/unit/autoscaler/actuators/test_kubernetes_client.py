"""Goal: only an API server that the service account's certificate vouches for gets its token."""

import ssl
from pathlib import Path

import pytest

from autoscaler.actuators.actuator import ActuatorDeniedError, ActuatorError
from autoscaler.actuators.kubernetes.kubernetes_client import KubernetesClient
from autoscaler.actuators.safe_urls import url_problem
from tests.support.certificates import write_certificate
from tests.support.fake_kubernetes import NAMESPACE, TOKEN, FakeKubernetes

PATH = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"


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
