"""Ray Train over legato: `TorchTrainer(..., torch_config=LegatoConfig())`.

Ray places the workers, makes their process group and watches over them, as with its own `TorchConfig`. What a launcher
would tell by variables, the job's key and where rank 0 is, the backend tells each worker. The training function then
runs as a rank of the job: it calls `legato.torch.schedule`, and neither `init` nor `shutdown`.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import TorchConfigContextManager, _TorchBackend
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import legato.torch as lg
from legato.errors import InputError
from legato.settings import Role, read_settings
from legato.transports.native.session import Server

_PLACEMENT_TIMEOUT_S = 60


@dataclass
class LegatoConfig(TorchConfig):
    """Ray's `TorchConfig`, and legato beside its process group."""

    servers: int = 0
    """Extra processes that only sum: actors with one CPU each, spread over the nodes. Workers then only train."""

    def __post_init__(self) -> None:
        if self.servers < 0:
            raise InputError(f"servers is {self.servers}; accepted is 0 or more")

    @property
    def backend_cls(self) -> type["_LegatoBackend"]:
        return _LegatoBackend

    @property
    def train_func_context(self) -> type["_Membership"]:
        return _Membership

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "servers": self.servers}


class _Membership(TorchConfigContextManager):
    """Around the training function. One that fails leaves at once, so that the others hear of it."""

    def __enter__(self) -> None:
        super().__enter__()
        job = lg.init()
        if job.settings.num_servers:
            job.group  # noqa: B018 - joins now: servers do not wait until a function has loaded its data

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        lg.shutdown(now=error is not None)
        return bool(super().__exit__(kind, error, trace))


class _LegatoBackend(_TorchBackend):
    """Lives in Ray's controller of one run; workers that Ray starts anew after a failure are told anew."""

    def __init__(self) -> None:
        self._servers: list[Any] = []
        self._places: PlacementGroup | None = None

    def on_start(self, worker_group: Any, backend_config: LegatoConfig) -> None:
        super().on_start(worker_group, backend_config)
        num_servers = backend_config.servers
        told = {
            "LEGATO_CONDUCTOR": worker_group.execute_single(0, _free_address),
            "LEGATO_KEY": secrets.token_hex(32),
            "LEGATO_SERVERS": str(num_servers),
        }
        worker_group.execute(_tell, {**told, "LEGATO_ROLE": Role.WORKER if num_servers else Role.JOINT})
        if num_servers:
            self._start_servers(num_servers, {**told, "WORLD_SIZE": str(len(worker_group))})

    def _start_servers(self, num_servers: int, told: Mapping[str, str]) -> None:
        self._places = placement_group([{"CPU": 1}] * num_servers, strategy="SPREAD")
        if not self._places.wait(_PLACEMENT_TIMEOUT_S):
            raise InputError(f"servers is {num_servers}, and the cluster has no CPU left for each of them")
        for index in range(num_servers):
            place = PlacementGroupSchedulingStrategy(self._places, placement_group_bundle_index=index)
            server = ray.remote(_ServerActor).options(num_cpus=1, scheduling_strategy=place).remote()
            server.serve.remote(told)
            self._servers.append(server)

    def on_shutdown(self, worker_group: Any, backend_config: LegatoConfig) -> None:
        try:
            super().on_shutdown(worker_group, backend_config)
        finally:
            while self._servers:
                ray.kill(self._servers.pop())
            if self._places is not None:
                remove_placement_group(self._places)
                self._places = None


class _ServerActor:
    def serve(self, told: Mapping[str, str]) -> None:
        """Until every worker has left."""
        with Server(read_settings({**os.environ, **told}, role=Role.SERVER).native()) as server:
            server.wait()


def _tell(told: Mapping[str, str]) -> None:
    os.environ.update(told)


def _free_address() -> str:
    """Of this worker's node, where its conductor will listen."""
    from ray.train._internal.utils import get_address_and_port

    host, port = get_address_and_port()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
