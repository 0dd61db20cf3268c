"""The server that a base URL names: its request heads and its addresses."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from core.errors import SettingsError

_ADDRESSES_S_MAX = 10.0  # as long as resolvers commonly cache them
_TARGET_SAFE = "/?%:@!$&'()*+,;=~"


class Origin:
    """Scheme, host, port and path prefix of a base URL."""

    def __init__(self, url: str) -> None:
        """Parse `url`. Raises SettingsError for an unusable host, port or extra."""
        try:
            parts = urlsplit(url)
            self.tls = _tls_context() if parts.scheme == "https" else None
            self.port = parts.port or (443 if self.tls else 80)
            self.host = _ascii_host(parts.hostname or "")
        except ValueError:
            raise SettingsError("The upstream is not a URL with a host and a port.") from None
        if "@" in parts.netloc or parts.query or parts.fragment:
            # A user would appear in logs, and a query would absorb the endpoint.
            raise SettingsError("The upstream's URL may hold a host, a port and a path only.")
        self._prefix = parts.path.rstrip("/")
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self._host_field = shown if parts.port is None else f"{shown}:{parts.port}"
        self._addresses: list[str] = []
        self._addresses_until_s = 0.0  # on the loop's clock
        self._resolving = asyncio.Lock()

    def head(self, method: str, endpoint: str, fields: Mapping[str, str]) -> bytes:
        """Return the request line, Host and `fields` (printable ASCII), open for further fields."""
        target = quote(self._prefix + endpoint, safe=_TARGET_SAFE)
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host_field}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "".join(f"{line}\r\n" for line in lines).encode("ascii")

    async def addresses(self) -> list[str]:
        """Return the host's addresses, rotated by each call. Raises OSError.

        Concurrent calls share one DNS query.
        """
        loop = asyncio.get_running_loop()
        async with self._resolving:
            if not self._addresses or loop.time() >= self._addresses_until_s:
                found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
                self._addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
                self._addresses_until_s = loop.time() + _ADDRESSES_S_MAX
        addresses = self._addresses
        self._addresses = [*addresses[1:], *addresses[:1]]
        return addresses

    def drop_address(self, address: str) -> None:
        """Drop an address that did not respond; after the last one the host is resolved again."""
        self._addresses = [other for other in self._addresses if other != address]


def _tls_context() -> ssl.SSLContext:
    """Trust the system's certificates, or `SSL_CERT_FILE`."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _ascii_host(host: str) -> str:
    """Return the host in ASCII, for DNS and the Host field. Raises ValueError."""
    if not host:
        raise ValueError("no host")
    return host if ":" in host else host.encode("idna").decode("ascii")
