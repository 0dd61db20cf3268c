"""Where calls go: one server, named by the base URL, with its request heads and its addresses."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from core.errors import SettingsError

_ADDRESSES_S_MAX = 10.0  # as long as resolvers commonly keep them
_TARGET_SAFE = "/?%:@!$&'()*+,;=~"


class Origin:
    """Scheme, host, port and path prefix of a base URL."""

    def __init__(self, url: str) -> None:
        """Parse `url`. Raises SettingsError: its host, port or extras cannot be used."""
        try:
            parts = urlsplit(url)
            self.tls = _tls_context() if parts.scheme == "https" else None
            self.port = parts.port or (443 if self.tls else 80)
            self.host = _ascii_host(parts.hostname or "")
        except ValueError:
            raise SettingsError("The upstream is not a URL with a host and a port.") from None
        if "@" in parts.netloc or parts.query or parts.fragment:
            # A user would show in logs, and a query would swallow the endpoint.
            raise SettingsError("The upstream's URL may hold a host, a port and a path only.")
        self._prefix = parts.path.rstrip("/")
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self._host_field = shown if parts.port is None else f"{shown}:{parts.port}"
        self._addresses: list[str] = []
        self._addresses_until_s = 0.0  # on the loop's clock
        self._asking = asyncio.Lock()

    def head(self, method: str, endpoint: str, fields: Mapping[str, str]) -> bytes:
        """Return request line, Host and `fields` (ASCII, printable), up to the next field."""
        target = quote(self._prefix + endpoint, safe=_TARGET_SAFE)
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host_field}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "".join(f"{line}\r\n" for line in lines).encode("ascii")

    async def addresses(self) -> list[str]:
        """Return the host's addresses; each call starts with another. Raises OSError.

        Asked for once for all who wait, so that a burst of new connections is one look-up.
        """
        loop = asyncio.get_running_loop()
        async with self._asking:
            if not self._addresses or loop.time() >= self._addresses_until_s:
                found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
                self._addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
                self._addresses_until_s = loop.time() + _ADDRESSES_S_MAX
        addresses = self._addresses
        self._addresses = [*addresses[1:], *addresses[:1]]
        return addresses

    def avoid(self, address: str) -> None:
        """Leave out an address that did not answer; the host is asked again when none is left."""
        self._addresses = [other for other in self._addresses if other != address]


def _tls_context() -> ssl.SSLContext:
    """Trust what the system trusts, or `SSL_CERT_FILE`."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _ascii_host(host: str) -> str:
    """Return the host as DNS and the Host field want it. Raises ValueError."""
    if not host:
        raise ValueError("no host")
    return host if ":" in host else host.encode("idna").decode("ascii")
