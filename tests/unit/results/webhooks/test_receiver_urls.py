"""Goal: ambiguous URLs and private addresses are refused."""

import pytest

from results.webhooks.endpoints.address_policy import AddressPolicy, address_policy
from results.webhooks.endpoints.receiver_urls import URL_CHARS_MAX, UrlError, is_address, parse_url
from results.webhooks.settings import WebhookSettings

MALFORMED = [
    "",
    "https://",
    "https:///path",
    "http://example.com/",  # not encrypted
    "HTTPS://example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/_x",
    "//example.com/",
    "https:example.com",
    "https://user@example.com/",
    "https://user:secret@example.com/",
    "https://example.com@127.0.0.1/",
    "https://127.0.0.1#@example.com/",
    "https://example.com/#fragment",
    "https://example.com\\@127.0.0.1/",
    "https://example.com/a b",
    "https://example.com/\r\nHost: internal",
    "https://example.com/\x00",
    "https://exa\tmple.com/",
    "https://①②⑦.⓪.⓪.①/",  # Unicode digits
    "https://１２７.0.0.1/",
    "https://exämple.com/",
    "https://example。com/",
    "https://ⓔxample.com/",
    "https://%31%32%37.0.0.1/",
    "https://2130706433/",  # 127.0.0.1 as one number
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://127.0.0.01/",
    "https://256.256.256.256/",
    "https://1.2.3.4.5/",
    "https://127.0.0.1./",
    "https://example.com./",
    "https://localhost/",
    "https://metadata/",
    "https://.example.com/",
    "https://exa..mple.com/",
    "https://-example.com/",
    "https://" + "a" * 64 + ".com/",
    "https://" + ".".join(["a" * 60] * 5) + "/",
    "https://[::1",
    "https://[::1%25lo]/",
    "https://[fe80::1%eth0]/",
    "https://[v1.x]/",
    "https://[1.2.3.4]/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:99999999999/",
    "https://example.com:+443/",
    "https://example.com:/",
    "https://example.com:443:443/",
    "https://example.com/" + "a" * URL_CHARS_MAX,
]

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254", "255.255.255.255"),
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),  # private
    *("100.64.0.1", "100.100.100.200", "168.63.129.16", "169.254.169.254"),  # of clouds
    *("192.0.0.8", "192.0.0.170", "192.0.2.1", "192.88.99.1"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1"),  # benchmarks and documents
    *("224.0.0.1", "239.255.255.250", "240.0.0.1"),  # multicast and reserved
    *("::", "::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1"),
    *("::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1"),  # IPv4 inside
    *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1"),
    *("2001::1", "2001:0:7f00:1::", "2002:7f00:1::", "2002:a9fe:a9fe::"),
    *("100::1", "2001:10::1", "2001:20::1", "2001:db8::1", "3fff::1", "5f00::1"),
    *("not an address", ""),
]

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2001:4860:4860::8888"]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_url_is_refused(text: str) -> None:
    with pytest.raises(UrlError):
        parse_url(text, allow_private=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_non_public_addresses_are_refused(address: str) -> None:
    assert not AddressPolicy().allows(address)


def test_all_addresses_of_a_name_must_be_public() -> None:
    assert all(map(AddressPolicy().allows, PUBLIC))
    assert AddressPolicy().allows_all(PUBLIC)
    assert not AddressPolicy().allows_all([*PUBLIC, "10.0.0.1"])
    assert not AddressPolicy().allows_all([])


def test_denied_networks_are_refused() -> None:
    policy = address_policy(WebhookSettings(denied_networks="8.8.8.0/24, 2606:4700::/32"))

    addresses = ("8.8.8.8", "2606:4700::1111", "1.1.1.1")
    assert [policy.allows(address) for address in addresses] == [False, False, True]


def test_url_is_parsed() -> None:
    url = parse_url("https://Hooks.Example.com:8443/a/b?c=d%20e", allow_private=False)
    bare = parse_url("https://example.com?x=1", allow_private=False)
    v6 = parse_url("https://[2606:4700:0::1111]/", allow_private=False)

    assert (url.host, url.port, url.target) == ("hooks.example.com", 8443, "/a/b?c=d%20e")
    assert url.host_field == "hooks.example.com:8443"
    assert (bare.port, bare.target, bare.host_field) == (443, "/?x=1", "example.com")
    assert v6.host_field == "[2606:4700::1111]"
    assert is_address(v6.host)
    assert is_address("8.8.8.8")
    assert not is_address(url.host)


def test_development_may_use_plain_http_and_short_names() -> None:
    url = parse_url("http://localhost:8080/hook", allow_private=True)

    assert not url.is_tls
    assert AddressPolicy(allow_private=True).allows("127.0.0.1")
