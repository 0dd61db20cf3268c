"""Parses URLs of receivers strictly: anything that parsers interpret differently is refused."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

URL_CHARS_MAX: Final = 2048
_HOST_CHARS_MAX: Final = 253

_URL: Final = re.compile(
    r"(?P<scheme>https?)://"
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9._-]+))"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<target>(?:[/?][\x21\x22\x24-\x5b\x5d-\x7e]*)?)"  # neither fragment nor backslash
)
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORTS: Final = {"https": 443, "http": 80}


class UrlError(ValueError):
    """An unusable URL; the message is shown to the client."""


@dataclass(frozen=True, slots=True)
class ReceiverUrl:
    """A parsed URL."""

    scheme: str
    host: str  # a lower-case name, or an address in canonical form
    port: int
    target: str  # path and query, as in the request line

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def host_field(self) -> str:
        """The value of the Host header."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == _PORTS[self.scheme] else f"{shown}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port; callbacks with the same origin share a delivery queue."""
        return f"{self.scheme}://{self.host}:{self.port}"


def parse_url(text: str, *, allow_private: bool) -> ReceiverUrl:
    """Parse a URL. Raises UrlError.

    For development, `allow_private` permits plain http and names without a dot.
    """
    if len(text) > URL_CHARS_MAX:
        raise UrlError(f"The URL is longer than {URL_CHARS_MAX} characters.")
    parts = _URL.fullmatch(text)
    if parts is None:
        raise UrlError("Give a URL like https://host/path: ASCII, without user and fragment.")
    scheme = parts["scheme"]
    if scheme != "https" and not allow_private:
        raise UrlError("The URL must begin with https://.")
    port = int(parts["port"] or _PORTS[scheme])
    if port > 65535:
        raise UrlError("The port must be between 1 and 65535.")
    host = _v6(parts["v6"]) if parts["v6"] else _name(parts["name"].lower(), allow_private)
    target = parts["target"]
    return ReceiverUrl(scheme, host, port, target if target.startswith("/") else f"/{target}")


def is_address(host: str) -> bool:
    """Whether a parsed host is a numeric address, which needs no look-up."""
    return ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def _v6(text: str) -> str:
    try:
        return str(IPv6Address(text))
    except ValueError:
        raise UrlError("The host is not a valid IPv6 address.") from None


def _name(text: str, allow_private: bool) -> str:
    labels = text.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # systems read 0x7f.1, 2130706433 or 0177.0.0.1 as addresses
        try:
            return str(IPv4Address(text))
        except ValueError:
            raise UrlError("The host is not an IPv4 address of four decimal numbers.") from None
    if len(text) > _HOST_CHARS_MAX or not all(map(_LABEL.fullmatch, labels)):
        raise UrlError("The host is not a valid domain name.")
    if len(labels) == 1 and not allow_private:
        raise UrlError("The host must be a fully qualified domain name.")
    return text
