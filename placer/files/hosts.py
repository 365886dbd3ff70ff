"""Hosts files (TOML): where the agents of a cluster listen.

::

    version = 1

    [[hosts]]
    address = "10.0.0.2:7201"    # what `placer worker --listen` printed on that host

    [[hosts]]
    address = "10.0.0.3:7201"

The order of the hosts is the order of their workers. An address is a host name or an IPv4
address, with a port.
"""

import dataclasses
import ipaddress
import re
import tomllib

from pydantic import Field

from placer.errors import FileFormatError, InvalidValueError
from placer.files.documents import (
    VERSION,
    Document,
    StrPath,
    check,
    check_version,
    naming,
    read_text,
    short,
)

_MAX_HOSTS = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Where something listens.

    Attributes:
        host: A host name or an IPv4 address.
        port: From 0 to 65535; 0 lets the system choose.

    Raises:
        InvalidValueError: If the host or the port cannot be one.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", self.host):
            raise InvalidValueError(
                f"host must be a host name or an IPv4 address, got {short(self.host)}"
            )
        if re.fullmatch(r"[0-9.]+", self.host) and not _is_ipv4(self.host):
            raise InvalidValueError(f"{self.host!r} is not an IPv4 address")
        if not 0 <= self.port <= 65535:
            raise InvalidValueError(f"port must be between 0 and 65535, got {self.port}")

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address that ``HOST:PORT`` says.

        Raises:
            InvalidValueError: If it says none.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,5}", port):
            raise InvalidValueError(f"an address is HOST:PORT, got {short(text)}")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """True if only this host can reach it."""
        if _is_ipv4(self.host):
            return ipaddress.IPv4Address(self.host).is_loopback
        return self.host == "localhost"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


class _HostEntry(Document):
    address: str


class _HostsDocument(Document):
    version: int = VERSION
    hosts: list[_HostEntry] = Field(max_length=_MAX_HOSTS)

    def addresses(self) -> tuple[Address, ...]:
        if not self.hosts:
            raise InvalidValueError("hosts: there must be at least one, got none")
        found: list[Address] = []
        for index, entry in enumerate(self.hosts):
            where = f"hosts[{index}].address"
            try:
                address = Address.parse(entry.address)
            except InvalidValueError as error:
                raise InvalidValueError(f"{where}: {error}") from error
            if address.port == 0:
                raise InvalidValueError(f"{where}: port 0 is no port to connect to")
            if address in found:
                raise InvalidValueError(f"{where}: {address} is there twice")
            found.append(address)
        return tuple(found)


def load_hosts(path: StrPath) -> tuple[Address, ...]:
    """Return the addresses of a hosts file, in its order.

    Raises:
        MissingFileError: If there is no such file.
        FileFormatError: If the file is not a hosts file; one line about the first error.
    """
    text = read_text(path)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not valid TOML: {error}") from error
    check_version(document, path)
    checked = check(_HostsDocument, document, path)
    with naming(path):
        return checked.addresses()
