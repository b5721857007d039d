"""What bpslaunch is told: BytePS's variables on each machine, instead of options."""

from collections.abc import Mapping
from dataclasses import dataclass

from legato.environment import Environment, one_of
from legato.errors import InputError
from legato.launchers import DEFAULT_PORT, PORT_OFFSET

_ROLES = one_of({role: role for role in ("worker", "server", "scheduler")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of BytePS's, of which each has several ranks."""

    role: str
    num_machines: int
    number: int
    num_ranks: int
    address: str
    port: int
    """torchrun's, from which the conductor's follows."""


def machine_of(environ: Mapping[str, str]) -> Machine | None:
    """What the environment says; None where it does not speak BytePS's language."""
    read = Environment(environ)
    role = read.value("DMLC_ROLE", _ROLES)
    if role is None or not read.has("DMLC_NUM_WORKER"):
        return None
    num_machines = read.number("DMLC_NUM_WORKER", at_least=1)
    port = read.number("DMLC_PS_ROOT_PORT", DEFAULT_PORT, at_least=PORT_OFFSET + 1, below=65536)
    address = read.text("DMLC_PS_ROOT_URI")
    if address is None and num_machines > 1:
        raise InputError("DMLC_PS_ROOT_URI is not set; accepted is the address of worker 0")
    devices = read.text("NVIDIA_VISIBLE_DEVICES")
    is_alone = num_machines == 1 or role != "worker"
    return Machine(
        role=role,
        num_machines=num_machines,
        number=read.number("DMLC_WORKER_ID", 0 if is_alone else None, below=num_machines),
        num_ranks=read.number("BYTEPS_LOCAL_SIZE", len(devices.split(",")) if devices else 1, at_least=1),
        address=address or "127.0.0.1",
        port=port - PORT_OFFSET,
    )
