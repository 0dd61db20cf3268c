"""Decides which addresses may be contacted for a tenant: public unicast without embedded ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from results.webhooks.settings import WebhookSettings

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_PUBLIC_V6: Final = IPv6Network("2000::/3")
"""All assigned unicast addresses. Mapped IPv4, NAT64, local and multicast lie outside."""

_DENIED: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; also the metadata service of one cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # formally public, but the host's own service in one cloud
        "169.254.0.0/16",  # link-local: the metadata service of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # Teredo, ORCHID and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4: embeds an IPv4 address
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
"""Listed completely, since `is_global` of the standard library changes with its version."""


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The addresses that may be contacted."""

    allow_private: bool = False
    denied: tuple[Network, ...] = ()

    def allows(self, address: str) -> bool:
        """Whether a connection to a numeric address may be opened."""
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        if any(parsed in network for network in self.denied):
            return False
        return self.allow_private or is_public(parsed)

    def allows_all(self, addresses: Iterable[str]) -> bool:
        """Whether there is an address and all may be contacted; one refused address refuses all."""
        found = list(addresses)
        return bool(found) and all(map(self.allows, found))


def address_policy(settings: WebhookSettings) -> AddressPolicy:
    """Return the policy that `settings` define."""
    parts = filter(None, settings.denied_networks.split(","))
    return AddressPolicy(settings.allow_private, tuple(ip_network(part.strip()) for part in parts))


def is_public(address: Address) -> bool:
    """Whether an address is public unicast and embeds no other address."""
    if isinstance(address, IPv6Address) and (address not in _PUBLIC_V6 or address.scope_id):
        return False
    if address.is_multicast or not address.is_global:
        return False
    return not any(address in network for network in _DENIED)
