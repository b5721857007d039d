"""Addresses: where members listen, and through which interface."""

import fcntl
import ipaddress
import socket
import struct

from legato.errors import InputError

_SIOCGIFADDR = 0x8915


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name counts when all its addresses do."""
    try:
        return all(ipaddress.ip_address(ip).is_loopback for ip in resolve(host))
    except InputError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether listening at `host` means at every interface, which is no address to give to others."""
    return host in ("0.0.0.0", "::")


def resolve(host: str) -> list[str]:
    """The IP addresses of a host, in the system's order of preference."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(
            f"host {host!r} cannot be resolved ({error}); give a name or address of this network"
        ) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def host_of_interface(name: str) -> str:
    """The IPv4 address of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            known = ", ".join(interface for _, interface in socket.if_nameindex())
            raise InputError(f"interface {name!r} has no IPv4 address here; interfaces are {known}") from None
    return socket.inet_ntoa(answer[20:24])


def interface_of(host: str) -> str:
    """The name of the interface with this address; "any" for the wildcard, "?" where it cannot be told."""
    if is_wildcard(host):
        return "any"
    for _, name in socket.if_nameindex():
        try:
            if host_of_interface(name) == host:
                return name
        except InputError:
            continue  # an interface without an IPv4 address
    return "?"


def text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
