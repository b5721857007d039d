"""Who is told of training while it runs."""

from dataclasses import dataclass, field
from pathlib import Path

from legato.errors import InputError
from legato.transports.rendezvous.addresses import is_loopback, text
from legato.transports.rendezvous.keys import MIN_KEY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveConfig:
    """What is to be told, and where."""

    dashboard: tuple[str, int] | None = None
    """Host and port at which rank 0 serves the page; None is nowhere."""
    token: str | None = field(default=None, repr=False)
    """What readers must show; None is nothing, which only the loopback may have."""
    progress_s: float | None = None
    """How often rank 0 prints a line; None is never."""
    tensorboard: Path | None = None
    """The folder for TensorBoard."""
    wandb: str | None = None
    """The project of an offline run of Weights & Biases."""

    def __post_init__(self) -> None:
        if self.dashboard is not None:
            check_exposure(*self.dashboard, self.token)

    @property
    def is_on(self) -> bool:
        """Whether there is anybody to tell."""
        return any(each is not None for each in (self.dashboard, self.progress_s, self.tensorboard, self.wandb))


def check_exposure(host: str, port: int, token: str | None) -> None:
    """Refuse to tell strangers."""
    if token is not None and len(token.encode()) < MIN_KEY_BYTES:
        raise InputError(
            f"LEGATO_DASHBOARD_TOKEN holds {len(token.encode())} bytes; accepted are {MIN_KEY_BYTES} or more, such as "
            "`openssl rand -hex 16` makes"
        )
    if token is None and not is_loopback(host):
        raise InputError(
            f"the dashboard at {text(host, port)} could be read by everyone who reaches this machine; set "
            "LEGATO_DASHBOARD_TOKEN, or serve it at 127.0.0.1"
        )
