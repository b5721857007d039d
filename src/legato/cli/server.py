"""`legato server`: sums gradients for a job's workers, until they have left."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from legato.elastic.server import ElasticServer
from legato.job import announce
from legato.launch.signals import ended_by_signals
from legato.settings import Role, Settings, read_key, read_settings
from legato.transports.native.session import NativeConfig, Server


def server(
    conductor: Annotated[
        str | None, typer.Option(help="Where rank 0 is, as host:port. Default: LEGATO_CONDUCTOR, or the launcher's.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers in the job. Default: WORLD_SIZE or DMLC_NUM_WORKER.")
    ] = None,
    servers: Annotated[
        int | None, typer.Option(min=1, help="Servers in the job. Default: LEGATO_SERVERS or DMLC_NUM_SERVER.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen at. Default: the one by which rank 0 is reached.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that read and write sockets. Default: LEGATO_THREADS, or 1.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the job's shared key. Default: LEGATO_KEY_FILE or LEGATO_KEY.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Talk without a key, where all users of all machines are trusted.")
    ] = False,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="The workers sum their share too (their role is joint).")
    ] = False,
) -> int:
    """Sum gradients for the workers of a job, beside them or instead of them."""
    settings = read_settings(
        os.environ, role=Role.SERVER, num_workers=workers, num_servers=servers, conductor=conductor
    )
    settings = replace(
        settings,
        num_servers=max(settings.num_servers, 1),
        host=host or settings.host,
        key=settings.key if key_file is None else read_key(key_file, "--key-file"),
        insecure=insecure or settings.insecure,
        num_io_threads=threads or settings.num_io_threads,
        workers_serve=mixed or settings.workers_serve,
    )
    _serve(settings, port)
    return 0


def _serve(settings: Settings, port: int) -> None:
    logging.basicConfig(level=logging.INFO, format="legato server: %(message)s")
    announce(settings)
    config = settings.native()
    config = replace(config, member=replace(config.member, port=port))
    with ended_by_signals(), _join(settings, config) as serving:
        logging.info("serving %d workers as member %d", settings.num_workers, serving.member)
        serving.wait()
        logging.info("every worker has left")


def _join(settings: Settings, config: NativeConfig) -> Server | ElasticServer:
    return Server(config) if settings.elastic is None else ElasticServer(config, settings.members_file)
