"""Sizes, rates and durations as people write them."""

import math
import re

from legato.errors import InputError

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ/]*)\s*")

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_GBPS = {"": 1.0, "gbps": 1.0, "gbit/s": 1.0, "mbps": 1e-3, "mbit/s": 1e-3, "kbps": 1e-6, "kbit/s": 1e-6}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


def parse_bytes(text: str) -> int:
    """`4MB` is 4,000,000 bytes, `4MiB` 4 × 2²⁰; a plain number is bytes."""
    return round(_parse(text, _BYTES, "a size such as 65536, 64KB, 4MB or 4MiB"))


def parse_gbps(text: str) -> float:
    """`10` and `10Gbps` are ten gigabits per second, `500Mbps` half of one."""
    return _parse(text, _GBPS, "a rate such as 10, 10Gbps or 500Mbps")


def parse_seconds(text: str) -> float:
    """`20us`, `1.5ms`, `2s`; a plain number needs its unit, except 0."""
    units = {**_SECONDS, "": 0.0} if text.strip() in ("0", "0.0") else _SECONDS
    return _parse(text, units, "a duration such as 20us, 1.5ms or 2s")


def format_bytes(num_bytes: int) -> str:
    """The shortest exact way to write a size."""
    for name in ("GB", "MB", "KB", "GiB", "MiB", "KiB"):
        if num_bytes and num_bytes % _BYTES[name.lower()] == 0:
            return f"{num_bytes // _BYTES[name.lower()]}{name}"
    return f"{num_bytes}B"


def _parse(text: str, units: dict[str, int] | dict[str, float], accepted: str) -> float:
    match = _NUMBER.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units or not math.isfinite(value := float(match.group(1)) * units[unit]):
        raise InputError(f"{text!r} is not {accepted}")
    return value
