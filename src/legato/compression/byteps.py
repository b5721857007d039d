"""BytePS's dictionary of compression parameters, as its users write it."""

from collections.abc import Mapping
from typing import Any

from legato.compression.scheme import CODECS, NESTEROV_MU, Scheme
from legato.errors import InputError

_CODEC_KEYS = ("k", "scaling", "seed", "partition", "normalize")
_OTHER_KEYS = ("compressor", "ef", "momentum", "momentum_mu", "fp16")


def is_byteps(value: Mapping[str, Any]) -> bool:
    """Whether these are parameters of BytePS, not patterns of names."""
    return "compressor" in value or "fp16" in value


def from_byteps(parameters: Mapping[str, Any]) -> Scheme:
    """`{"compressor": "topk", "k": 0.01, "ef": "vanilla", "momentum": "nesterov"}` as a scheme.

    `fp16` is BytePS's cast within a host, which there is none of here: without a compressor it is one.
    """
    given = {key: value for key, value in parameters.items() if value or key in _CODEC_KEYS}
    for key in given:
        if key not in _CODEC_KEYS + _OTHER_KEYS:
            raise InputError(
                f"compression parameter {key!r} is unknown; accepted: {', '.join(_OTHER_KEYS + _CODEC_KEYS)}"
            )
    name = given.get("compressor", "fp16")
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
    mu = float(given.get("momentum_mu", NESTEROV_MU))
    return Scheme(
        codec=CODECS[name].make(values), error_feedback=feedback is not None, momentum=mu if momentum else 0.0
    )
