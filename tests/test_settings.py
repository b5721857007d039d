"""Settings: where am I, from whichever launcher speaks; wrong values get one line that says what to do."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from legato.errors import InputError
from legato.observe.notes import LAST_STEP
from legato.settings import BYTEPS_STALENESS, Role, Settings, first_node, read_settings

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
DMLC = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "4",
    "DMLC_NUM_SERVER": "2",
    "DMLC_PS_ROOT_URI": "10.0.0.2",
    "DMLC_PS_ROOT_PORT": "1234",
    "DMLC_WORKER_ID": "3",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_ADDR": "head",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_TASKS_PER_NODE": "2(x4)",
    "SLURM_JOB_NODELIST": "gpu[003-005,9],cpu1",
    "SLURM_JOB_ID": "4017",
    "SLURM_LAUNCH_NODE_IPADDR": "10.9.9.9",
}


def place(settings: Settings) -> tuple[object, ...]:
    return (settings.rank, settings.num_workers, settings.local_rank, settings.local_size, settings.launcher)


def conductor(settings: Settings) -> tuple[str, int]:
    return (settings.conductor_host, settings.conductor_port)


@pytest.mark.parametrize(
    ("environ", "expected", "where"),
    [
        ({}, (0, 1, 0, 1, "none"), ("127.0.0.1", 29400)),
        (TORCHRUN, (5, 8, 1, 4, "torchrun"), ("10.0.0.1", 30500)),
        (DMLC, (3, 4, 0, 1, "DMLC"), ("10.0.0.2", 1234)),
        (MPI, (2, 4, 0, 2, "Open MPI"), ("head", 29400)),
        (SLURM, (3, 8, 1, 2, "Slurm"), ("gpu003", 29417)),
        (SLURM | MPI | DMLC | TORCHRUN, (5, 8, 1, 4, "torchrun"), ("10.0.0.1", 30500)),
        (SLURM | {"MASTER_ADDR": "here", "MASTER_PORT": "65000"}, (3, 8, 1, 2, "Slurm"), ("here", 64000)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 1, 2, "torchrun"), ("127.0.0.1", 29400)),
    ],
)
def test_where_am_i(environ: Mapping[str, str], expected: tuple[object, ...], where: tuple[str, int]) -> None:
    settings = read_settings(environ)
    assert place(settings) == expected
    assert conductor(settings) == where


def test_slurm_without_a_node_list_looks_at_the_launch_node() -> None:
    environ = {name: value for name, value in SLURM.items() if name != "SLURM_JOB_NODELIST"}
    assert conductor(read_settings(environ)) == ("10.9.9.9", 29417)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[01-04]", "n01"), ("a[7,9]-ib,b", "a7-ib"), ("gpu-a.b[1-2]", "gpu-a.b1")],
)
def test_first_node(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("other:4000", ("other", 4000)),
        ("other", ("other", 30500)),
        (":4000", ("10.0.0.1", 4000)),
        ("[fd00::2]:4000", ("fd00::2", 4000)),
    ],
)
def test_the_conductor_can_be_somewhere_else(value: str, where: tuple[str, int]) -> None:
    assert conductor(read_settings(TORCHRUN | {"LEGATO_CONDUCTOR": value})) == where
    assert conductor(read_settings(TORCHRUN, conductor=value)) == where


def test_code_comes_before_the_environment() -> None:
    settings = read_settings(TORCHRUN, rank=1, num_workers=2, num_servers=1, role=Role.WORKER)
    assert place(settings) == (1, 2, 1, 2, "code")
    assert conductor(settings) == ("127.0.0.1", 29400)
    assert (settings.num_servers, settings.workers_serve) == (1, False)


# ---- roles ----


@pytest.mark.parametrize(
    ("environ", "role", "num_servers", "workers_serve"),
    [
        (TORCHRUN, Role.JOINT, 0, True),
        (TORCHRUN | {"LEGATO_SERVERS": "2"}, Role.JOINT, 2, True),
        (TORCHRUN | {"LEGATO_SERVERS": "2", "LEGATO_ROLE": "worker"}, Role.WORKER, 2, False),
        (DMLC, Role.WORKER, 2, False),
        (DMLC | {"BYTEPS_ENABLE_MIXED_MODE": "1"}, Role.JOINT, 2, True),
        (DMLC | {"DMLC_NUM_SERVER": "0"}, Role.JOINT, 0, True),
        (DMLC | {"DMLC_ROLE": "joint"}, Role.JOINT, 2, True),
    ],
)
def test_roles(environ: Mapping[str, str], role: Role, num_servers: int, workers_serve: bool) -> None:
    settings = read_settings(environ)
    assert (settings.role, settings.num_servers, settings.workers_serve) == (role, num_servers, workers_serve)
    assert settings.native().member.deployment.workers_serve == workers_serve


@pytest.mark.parametrize(
    ("environ", "workers_serve"),
    [
        ({"DMLC_ROLE": "server"}, False),
        ({"DMLC_ROLE": "server", "BYTEPS_ENABLE_MIXED_MODE": "1"}, True),
        ({"LEGATO_ROLE": "server", "LEGATO_MIXED": "1"}, True),
    ],
)
def test_a_server_has_no_rank(environ: Mapping[str, str], workers_serve: bool) -> None:
    settings = read_settings({**DMLC, **environ})
    assert (settings.role, settings.rank, settings.num_workers) == (Role.SERVER, None, 4)
    assert settings.workers_serve == workers_serve


# ---- keys ----


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("from a file\n")
    assert read_settings({}).key is None
    assert read_settings({"LEGATO_KEY": "spoken"}).key == b"spoken"
    settings = read_settings({"LEGATO_KEY": "spoken", "LEGATO_KEY_FILE": str(path)})
    assert settings.key == b"from a file"
    assert "from a file" not in repr(settings)
    assert "from a file" not in repr(settings.native())


def test_an_interface_gives_its_address() -> None:
    assert read_settings({"LEGATO_INTERFACE": "lo"}).host == "127.0.0.1"
    assert read_settings({"LEGATO_HOST": "10.0.0.7"}).host == "10.0.0.7"


def test_everything_reaches_the_transport() -> None:
    environ = {
        "LEGATO_TIMEOUT_S": "7",
        "LEGATO_JOIN_TIMEOUT_S": "8",
        "LEGATO_HEARTBEAT_S": "0.5",
        "LEGATO_CONNECTIONS": "2",
        "LEGATO_SHARED_MEMORY": "0",
        "LEGATO_THREADS": "3",
        "LEGATO_INSECURE": "1",
    }
    native = read_settings(TORCHRUN | environ).native()
    assert (native.member.timeout_s, native.member.join_timeout_s) == (7.0, 8.0)
    assert (native.engine.heartbeat_s, native.engine.num_io_threads) == (0.5, 3)
    assert (native.member.num_connections, native.member.join.insecure) == (2, True)
    assert (native.member.rank, native.member.conductor_port) == (5, 30500)
    assert (native.member.shared_memory, read_settings(TORCHRUN).native().member.shared_memory) == (False, True)


# ---- mistakes ----


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'; accepted is a whole number from 0 to 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is '2'; accepted is a whole number from 0 to 1"),
        ({"RANK": "0"}, "WORLD_SIZE is not set; accepted is a whole number from 1 on"),
        ({"WORLD_SIZE": "2"}, "RANK is not set; accepted is a whole number from 0 to 1"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT is '0'; accepted is a whole number from 1 to 65535"),
        (TORCHRUN | {"LOCAL_RANK": "9"}, "LOCAL_RANK is '9'; accepted is a whole number from 0 to 3"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is not set, and torchrun does not say where rank 0 is"),
        (DMLC | {"DMLC_WORKER_ID": ""}, "DMLC_WORKER_ID is not set; accepted is a whole number from 0 to 3"),
        (DMLC | {"DMLC_ROLE": "scheduler"}, "DMLC_ROLE is 'scheduler'; accepted are worker, server, joint"),
        (DMLC | {"DMLC_ROLE": "boss"}, "DMLC_ROLE is 'boss'; accepted are worker, server, joint"),
        (MPI | {"MASTER_ADDR": ""}, "MASTER_ADDR is not set, and Open MPI does not say where rank 0 is"),
        ({"LEGATO_ROLE": "worker"}, "LEGATO_SERVERS is 0, but the role is 'worker'"),
        ({"LEGATO_ROLE": "server"}, "WORLD_SIZE is not set; accepted is the number of workers"),
        ({"LEGATO_SERVERS": "-1"}, "LEGATO_SERVERS is '-1'; accepted is a whole number from 0 on"),
        ({"LEGATO_CONDUCTOR": "a:b:c"}, "LEGATO_CONDUCTOR is 'a:b:c'; accepted is host:port, host or :port"),
        ({"LEGATO_CONDUCTOR": "a:99999"}, "LEGATO_CONDUCTOR is 'a:99999'; accepted is host:port"),
        ({"LEGATO_TIMEOUT_S": "soon"}, "LEGATO_TIMEOUT_S is 'soon'; accepted is a number of seconds above 0"),
        ({"LEGATO_SHARED_MEMORY": "no"}, "LEGATO_SHARED_MEMORY is 'no'; accepted are 1, true, 0, false"),
        ({"LEGATO_HEARTBEAT_S": "inf"}, "LEGATO_HEARTBEAT_S is 'inf'; accepted is a number of seconds above 0"),
        ({"LEGATO_INSECURE": "maybe"}, "LEGATO_INSECURE is 'maybe'; accepted are 1, true, 0, false"),
        ({"LEGATO_THREADS": "0"}, "LEGATO_THREADS is '0'; accepted is a whole number from 1 on"),
        ({"LEGATO_INTERFACE": "eth77"}, "LEGATO_INTERFACE is 'eth77': interface 'eth77' has no IPv4 address here"),
        ({"LEGATO_KEY_FILE": "/nowhere"}, "LEGATO_KEY_FILE is '/nowhere', which cannot be read (No such file"),
        (SLURM | {"SLURM_JOB_NODELIST": "[1-2]"}, "SLURM_JOB_NODELIST is '[1-2]'; accepted is a node list"),
    ],
)
def test_a_wrong_value_gets_one_line(environ: Mapping[str, str], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        read_settings(environ)
    assert "\n" not in str(caught.value)


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n")
    with pytest.raises(InputError, match="which is empty"):
        read_settings({"LEGATO_KEY_FILE": str(tmp_path / "key")})


@pytest.mark.parametrize(("rank", "num_workers"), [(0, None), (None, 2), (2, 2), (0, 0)])
def test_wrong_places_in_code_are_refused(rank: int | None, num_workers: int | None) -> None:
    with pytest.raises(InputError, match=f"rank={rank}"):
        read_settings({}, rank=rank, num_workers=num_workers)


def test_every_variable_is_documented() -> None:
    """docs/environment.md is the one table: what the code reads is in it."""
    root = Path(__file__).parents[1]
    code = (root / "src/legato/settings.py").read_text()
    names = set(re.findall(r'"((?:LEGATO|DMLC|BYTEPS|OMPI|SLURM|LOCAL|MASTER|WORLD)_[A-Z_]+|RANK)"', code))
    documented = set(re.findall(r"`([A-Z_]+)`", (root / "docs/environment.md").read_text()))
    assert names <= documented


def test_smallest_compressed_tensor() -> None:
    assert read_settings({}).min_compress_bytes is None
    assert read_settings({"BYTEPS_MIN_COMPRESS_BYTES": "1000"}).min_compress_bytes == 1000
    both = {"BYTEPS_MIN_COMPRESS_BYTES": "1000", "LEGATO_MIN_COMPRESS_BYTES": "0"}
    assert read_settings(both).min_compress_bytes == 0
    with pytest.raises(InputError, match="BYTEPS_MIN_COMPRESS_BYTES is '-1'"):
        read_settings({"BYTEPS_MIN_COMPRESS_BYTES": "-1"})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 0),
        ({"BYTEPS_ENABLE_ASYNC": "0"}, 0),
        ({"BYTEPS_ENABLE_ASYNC": "1"}, BYTEPS_STALENESS),
        ({"LEGATO_STALENESS": "4"}, 4),
        ({"BYTEPS_ENABLE_ASYNC": "1", "LEGATO_STALENESS": "0"}, 0),
    ],
)
def test_staleness(environ: dict[str, str], expected: int) -> None:
    assert read_settings(environ).staleness == expected


@pytest.mark.parametrize(
    ("environ", "expected"), [({}, None), ({"LEGATO_CHECK": "1"}, True), ({"LEGATO_CHECK": "0"}, False)]
)
def test_comparing_weights(environ: dict[str, str], expected: bool | None) -> None:
    assert read_settings(environ).check is expected


def test_a_staleness_that_is_none() -> None:
    with pytest.raises(InputError, match="LEGATO_STALENESS is 'much'; accepted is a whole number from 0 on"):
        read_settings({"LEGATO_STALENESS": "much"})
    with pytest.raises(InputError, match="BYTEPS_ENABLE_ASYNC is 'yes'"):
        read_settings({"BYTEPS_ENABLE_ASYNC": "yes"})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"LEGATO_TIMELINE": "a.json"}, ("a.json", 0, LAST_STEP)),
        ({"LEGATO_TIMELINE": "a.json", "LEGATO_TIMELINE_STEPS": "5-7"}, ("a.json", 5, 7)),
        ({"LEGATO_TIMELINE": "a.json", "LEGATO_TIMELINE_STEPS": "5-"}, ("a.json", 5, LAST_STEP)),
        ({"BYTESCHEDULER_TIMELINE": "b.json"}, ("b.json", 0, LAST_STEP)),
        ({"LEGATO_TIMELINE": "a.json", "BYTESCHEDULER_TIMELINE": "b.json"}, ("a.json", 0, LAST_STEP)),
        ({"BYTEPS_TRACE_ON": "1"}, ("timeline.json", 10, 20)),
        (
            {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_START_STEP": "1", "BYTEPS_TRACE_END_STEP": "3"},
            ("timeline.json", 1, 3),
        ),
        ({"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_DIR": ".."}, ("../timeline.json", 10, 20)),
        ({"BYTEPS_TRACE_DIR": "..", "BYTEPS_TRACE_START_STEP": "1"}, None),
    ],
)
def test_a_timeline(environ: Mapping[str, str], expected: tuple[str, int, int] | None) -> None:
    timeline = read_settings(environ).timeline
    found = None if timeline is None else (str(timeline.path), timeline.first_step, timeline.last_step)
    assert found == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LEGATO_TIMELINE": "/nowhere/a.json"}, "timeline: '/nowhere', where it should be written, is not a folder"),
        (
            {"LEGATO_TIMELINE": "a.json", "LEGATO_TIMELINE_STEPS": "7"},
            "LEGATO_TIMELINE_STEPS is '7'; accepted are the first and the last step, 10-20, or the first alone, 10-",
        ),
        ({"LEGATO_TIMELINE": "a.json", "LEGATO_TIMELINE_STEPS": "7-3"}, "steps 7 to 3; accepted is 0 <= first <= last"),
        ({"BYTEPS_TRACE_ON": "yes"}, "BYTEPS_TRACE_ON is 'yes'; accepted are 1, true, 0, false"),
    ],
)
def test_a_wrong_timeline_gets_one_line(environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        read_settings(environ)
