"""Which addresses a policy allows."""

from __future__ import annotations

import pytest

from toolbus_toolkits.network import AddressPolicy, AddressRefused


@pytest.mark.parametrize(
    ("allow_hosts", "url"),
    [
        ((), "https://api.example.org/x"),
        (("api.example.org",), "https://API.example.org./x"),
        (("*.example.org",), "https://a.b.example.org/"),
        (("api.example.org:8443",), "https://api.example.org:8443/"),
        (("api.example.org:443",), "https://api.example.org/"),
        (("bücher.example",), "https://xn--bcher-kva.example/"),
        (("2001:4860:4860::8888",), "https://[2001:4860:4860:0::8888]/"),
        (("[2001:4860:4860::8888]:443",), "https://[2001:4860:4860::8888]/"),
    ],
)
def test_an_allowed_url_passes(allow_hosts: tuple[str, ...], url: str) -> None:
    AddressPolicy(allow_hosts).check_url(url)


@pytest.mark.parametrize(
    ("allow_hosts", "url", "words"),
    [
        (("example.org",), "https://api.example.org/", "not allowed: add it to allow_hosts"),
        (("*.example.org",), "https://example.org/", "not allowed"),
        (("*.example.org",), "https://evilexample.org/", "not allowed"),
        (("example.org:80",), "http://example.org:8080/", "not allowed"),
        ((), "file:///etc/passwd", "must begin with http"),
        ((), "//example.org/", "must begin with http"),
        ((), "https:///x", "has no host"),
        ((), "https://user:secret@example.org/", "contains a user or a password"),
        ((), "https://example.org:99999/", "is not valid"),
        ((), "http://127.0.0.1/", r"^127.0.0.1 is private: .*--allow-private"),
        ((), "http://[::ffff:10.0.0.1]/", "10.0.0.1, which is private"),
        ((), "http://[64:ff9b::a00:1]/", "10.0.0.1, which is private"),
        ((), "http://[2002:a00:1::]/", "10.0.0.1, which is private"),
        ((), "http://100.64.0.1/", "is private"),
        ((), "http://192.0.0.8/", "is private"),
        ((), "http://[64:ff9b:1::a00:1]/", "is private"),
        ((), "http://[::10.0.0.1]/", "is private"),
        ((), "http://[::ffff:0:10.0.0.1]/", "is private"),
        ((), "http://[fec0::1]/", "is private"),
        ((), "http://[3fff::1]/", "is private"),
        ((), "http://169.254.169.254/latest/meta-data", "never a public host"),
    ],
)
def test_any_other_url_is_refused_without_a_request(
    allow_hosts: tuple[str, ...], url: str, words: str
) -> None:
    with pytest.raises(AddressRefused, match=words) as refused:
        AddressPolicy(allow_hosts).check_url(url)
    assert refused.value.executed == "no"
    assert "secret" not in str(refused.value)


def test_link_local_addresses_need_their_own_entry_beside_allow_private() -> None:
    AddressPolicy(allow_private=True).check_address("here", "10.0.0.1")
    with pytest.raises(AddressRefused):
        AddressPolicy(allow_private=True).check_address("metadata", "169.254.169.254")
    AddressPolicy(("169.254.169.254",), allow_private=True).check_url("http://169.254.169.254/")


@pytest.mark.parametrize("entry", ["", "*", "a.*.org", "https://example.org", "example.org/x"])
def test_an_entry_that_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="write a host such as"):
        AddressPolicy((entry,))
