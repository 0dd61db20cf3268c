"""Goal: no connection is opened to a non-public address for a tenant.

Checked by the interpreter's audit event of every connect.
"""

import ssl
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from results.webhooks.endpoints.name_resolution import Resolver
from results.webhooks.tables import webhook_endpoints
from tests.integration.webhooks.conftest import (
    Site,
    deliver,
    delivering,
    fast_settings,
    new_deliverer,
    until,
)
from tests.integration.webhooks.receivers import Receiver, ok, receiving

PUBLIC = "93.184.216.34"

LITERALS = [
    "https://127.0.0.1:{port}/",
    "https://127.1:{port}/",
    "https://2130706433:{port}/",
    "https://0x7f000001:{port}/",
    "https://0177.0.0.1:{port}/",
    "https://0.0.0.0:{port}/",
    "https://[::1]:{port}/",
    "https://[::]:{port}/",
    "https://[::ffff:127.0.0.1]:{port}/",
    "https://[::ffff:7f00:1]:{port}/",
    "https://[64:ff9b::7f00:1]:{port}/",
    "https://[2002:7f00:1::]:{port}/",
    "https://localhost:{port}/",
    "https://x@127.0.0.1:{port}/",
    "https://8.8.8.8@127.0.0.1:{port}/",
    "https://127.0.0.1:{port}\\@8.8.8.8/",
    "https://①②⑦.⓪.⓪.①:{port}/",
    "https://１２７.0.0.1:{port}/",
    "https://169.254.169.254/latest/meta-data/",
    "https://[fd00:ec2::254]/latest/meta-data/",
    "https://100.64.0.1/",
    "https://10.0.0.1/",
    "http://127.0.0.1:{port}/",
]

ANSWERS = [
    ["127.0.0.1"],
    [PUBLIC, "127.0.0.1"],
    ["127.0.0.1", PUBLIC],
    ["::1"],
    ["::ffff:127.0.0.1"],
    ["64:ff9b::7f00:1"],
    ["2002:7f00:1::"],
    ["fe80::1%lo"],
    ["fc00::1"],
    ["100.64.0.1"],
    ["169.254.169.254"],
    [],
    [PUBLIC] * 65,
]

_connects: list[Any] = []
_listening = [False]


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _listening[0]:
        _connects.append(arguments[1])


sys.addaudithook(_audit)


@pytest.fixture
def connects() -> Iterator[Callable[[], list[str]]]:
    """Every network address that this process connects to in the block."""
    _connects.clear()
    _listening[0] = True
    yield lambda: [str(a[0]) for a in _connects if isinstance(a, tuple)]
    _listening[0] = False


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(ok) as running:
        yield running


STRICT = {"allow_private": False, "time_scale": 0.00001}


async def exhaust(site: Site, endpoints: list[UUID], resolve: Resolver, **given: object) -> None:
    """Run one process with a name server until the last tries have failed."""
    settings = fast_settings(**STRICT, **given)
    async with delivering(new_deliverer(site.engine, settings, resolve=resolve)):
        await until(
            lambda: all(site.states(endpoint) == ["exhausted"] for endpoint in endpoints),
            "the last tries",
        )


def resolving(*answers: list[str]) -> Resolver:
    """A name server that returns the answers in order, then the last one again and again."""
    left = list(answers)

    async def resolve(_host: str, _port: int) -> list[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


async def test_no_form_of_a_private_address_is_contacted(
    site: Site, receiver: Receiver, connects: Callable[[], list[str]]
) -> None:
    """Also when the URL was not written by the API."""
    endpoints = [site.endpoint(url.format(port=receiver.port))[0] for url in LITERALS]
    site.send()
    await exhaust(site, endpoints, resolving(["127.0.0.1"]))

    assert receiver.connections == 0
    assert connects() == []
    for endpoint in endpoints:
        assert {a.error_code for a in site.attempts(endpoint)} == {"address_refused"}


async def test_names_of_private_addresses_are_not_contacted(
    site: Site, receiver: Receiver, connects: Callable[[], list[str]]
) -> None:
    names = {f"n{number}.example.com": answer for number, answer in enumerate(ANSWERS)}

    async def resolve(host: str, _: int) -> list[str]:
        return names[host]

    endpoints = [site.endpoint(f"https://{name}:{receiver.port}/")[0] for name in names]
    site.send()
    await exhaust(site, endpoints, resolve)

    assert receiver.connections == 0
    assert connects() == []


async def test_dns_rebinding_is_resolved_once_per_attempt(
    site: Site, receiver: Receiver, connects: Callable[[], list[str]]
) -> None:
    """Public at the first look-up, private later: the checked address is contacted."""
    asked = []
    answers = resolving([PUBLIC], ["127.0.0.1"])

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return await answers(host, port)

    endpoint, _ = site.endpoint(f"https://rebinding.example.com:{receiver.port}/")
    site.send()
    await exhaust(site, [endpoint], resolve, timeout_s=0.3)

    assert set(connects()) == {PUBLIC}
    assert receiver.connections == 0
    assert len(asked) == len(site.attempts(endpoint))


async def test_environment_proxies_are_not_used(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving(ok) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        endpoint, _ = site.endpoint(receiver.url)
        site.send()
        await deliver(site, endpoint)

    assert proxy.connections == 0


async def test_tls_verifies_the_name_at_the_checked_address(site: Site, tmp_path: Path) -> None:
    server_tls, client_tls = tls_contexts(tmp_path, "hooks.example.com")
    with receiving(ok, server_tls) as receiver:
        port = receiver.port
        good, _ = site.endpoint(f"https://hooks.example.com:{receiver.port}/")
        deliverer = new_deliverer(
            site.engine, fast_settings(), resolve=resolving(["127.0.0.1"]), tls=client_tls
        )
        site.send()
        async with delivering(deliverer):
            await until(lambda: site.states(good) == ["delivered"], "delivery")
            url = f"https://other.example.com:{receiver.port}/"
            site.execute(sa.update(webhook_endpoints).values(url=url))
            site.send()
            await until(lambda: len(site.attempts(good)) >= 3, "tries of a wrong name")

    assert [a.error_code for a in site.attempts(good)][1:3] == ["tls_failed"] * 2
    assert receiver.requests[0].headers["host"] == f"hooks.example.com:{port}"


def tls_contexts(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a server's and a client's side of a certificate for `name` alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cafile=str(path))
