"""Hosts files and addresses: what is read, and the one line about what is wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import FileFormatError, InvalidValueError, MissingFileError
from placer.files.hosts import Address, load_hosts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hosts.toml"


def hosts(*addresses: str) -> str:
    entries = [f'[[hosts]]\naddress = "{address}"\n' for address in addresses]
    return "version = 1\n" + "".join(entries)


def test_hosts_are_read_in_their_order(file):
    file.write_text(hosts("10.0.0.3:7201", "10.0.0.2:7201", "node-a.local:80"))

    assert load_hosts(file) == (
        Address("10.0.0.3", 7201),
        Address("10.0.0.2", 7201),
        Address("node-a.local", 80),
    )


def test_two_agents_of_one_host_have_two_ports(file):
    file.write_text(hosts("127.0.0.1:7201", "127.0.0.1:7202"))

    assert [address.port for address in load_hosts(file)] == [7201, 7202]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version = 2\n", "expected version 1, got 2"),
        ('[[hosts]]\naddress = "a:1"\n', "expected version 1, the file has none"),
        ("version = 1\n", "hosts is missing"),
        ("version = 1\nhosts = []\n", "hosts: there must be at least one, got none"),
        ("version = 1\nhosts = 3\n", "hosts should be a list, got 3"),
        ("version = 1\n[[hosts]]\n", "hosts[0].address is missing"),
        ("version = 1\n[[hosts]]\naddress = 7\n", "hosts[0].address should be a string, got 7"),
        (hosts("a:1") + "adress = 1\n", "hosts[0]: unknown key 'adress'; did you mean 'address'?"),
        (hosts("a:1", "b"), "hosts[1].address: an address is HOST:PORT, got 'b'"),
        (hosts("a:1", "b:0"), "hosts[1].address: port 0 is no port to connect to"),
        (hosts("a:1", "b:1", "a:1"), "hosts[2].address: a:1 is there twice"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(file, text, reason):
    file.write_text(text)

    with pytest.raises(FileFormatError) as error:
        load_hosts(file)

    assert str(error.value) == f"{file}: {reason}"


def test_a_file_that_is_not_toml_is_told_in_one_line(file):
    file.write_text("version = = 1")

    with pytest.raises(FileFormatError) as error:
        load_hosts(file)

    assert str(error.value).startswith(f"{file} is not valid TOML: ")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_text_is_told(file):
    file.write_bytes(b"version = 1\n\xff")

    with pytest.raises(FileFormatError, match="is not a text file: byte 12 is not UTF-8"):
        load_hosts(file)


def test_a_missing_file_is_told(file):
    with pytest.raises(MissingFileError, match=r"there is no file .*hosts\.toml"):
        load_hosts(file)


# Addresses.


@given(
    host=st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z][a-z0-9]{0,8}){0,2}", fullmatch=True)
    | st.ip_addresses(v=4).map(str),
    port=st.integers(0, 65535),
)
def test_an_address_is_read_back_from_its_text(host, port):
    address = Address(host, port)

    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "7201", ":7201", "a:", "a:-1", "a:65536", "a:1.5", "a: 1", "a b:1", "[::1]:1", "::1:80",
     "-a:1", "a-:1", "300.0.0.1:1", "1.2.3:4", "a,b:1", "ä:1", "a:٣"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidValueError):
        Address.parse(text)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("localhost", True), ("10.0.0.2", False),
     ("128.0.0.1", False), ("node-a", False)],
)  # fmt: skip
def test_loopback_is_what_only_this_host_can_reach(host, is_loopback):
    assert Address(host, 1).is_loopback is is_loopback
