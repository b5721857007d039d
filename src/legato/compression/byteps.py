"""BytePS's dictionary of compression parameters, as its users write it."""

from collections.abc import Mapping
from typing import Any

from legato.compression.scheme import CODECS, NESTEROV_MU, Scheme
from legato.errors import InputError

_CODEC_KEYS = ("k", "scaling", "seed", "partition", "normalize")
_OTHER_KEYS = ("compressor", "ef", "momentum", "mu", "momentum_mu")


def is_byteps(value: Mapping[str, Any]) -> bool:
    """Whether these are parameters of BytePS, not patterns of names."""
    return "compressor" in value


def from_byteps(parameters: Mapping[str, Any]) -> Scheme:
    """`{"compressor": "topk", "k": 0.01, "ef": "vanilla", "momentum": "nesterov", "mu": 0.9}` as a scheme."""
    given = {key: value for key, value in parameters.items() if value is not None}
    for key in given:
        if key not in _CODEC_KEYS + _OTHER_KEYS:
            raise InputError(f"compression parameter {key!r} is unknown; accepted: {', '.join(_OTHER_KEYS + _CODEC_KEYS)}")
    name = given["compressor"]
    if name not in CODECS:
        raise InputError(f"compressor is {name!r}; accepted: {', '.join(CODECS)}")
    feedback, momentum = given.get("ef"), given.get("momentum")
    if feedback not in (None, "vanilla"):
        raise InputError(f"ef is {feedback!r}; accepted: vanilla")
    if momentum not in (None, "nesterov"):
        raise InputError(f"momentum is {momentum!r}; accepted: nesterov")
    values = {key: str(value) for key, value in given.items() if key in _CODEC_KEYS}
    if name == "onebit":
        values.setdefault("scaling", "false")  # BytePS scales only when told to
    mu = float(given.get("momentum_mu", given.get("mu", NESTEROV_MU)))
    return Scheme(
        codec=CODECS[name].make(values), error_feedback=feedback is not None, momentum=mu if momentum else 0.0
    )
