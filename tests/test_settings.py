"""Settings: where am I, from whichever launcher speaks; wrong values get one line that says what to do."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from legato.cli.environment_page import environment_page
from legato.errors import InputError
from legato.launchers import UNKNOWN_LAUNCHERS, VARIABLES, first_node
from legato.observe.notes import LAST_STEP
from legato.settings import Role, Settings, read_settings
from legato.variables import BYTEPS_STALENESS, PREFIX, SETTINGS

ROOT = Path(__file__).parents[1]
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
MVAPICH = {name.replace("OMPI", "MV2"): value for name, value in MPI.items()}
MPICH = {
    "PMI_RANK": "2",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
    "MASTER_ADDR": "head",
}
PALS = {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "2", "MASTER_ADDR": "head"}
HOROVOD = {
    "HOROVOD_RANK": "2",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.3",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "40500",
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
        (DMLC, (3, 4, 0, 1, "BytePS"), ("10.0.0.2", 1234)),
        (HOROVOD, (2, 4, 0, 2, "horovodrun"), ("10.0.0.3", 41500)),
        (HOROVOD | {"HOROVOD_LOCAL_SIZE": "4"}, (2, 4, 0, 4, "horovodrun"), ("127.0.0.1", 41500)),
        (MPI, (2, 4, 0, 2, "Open MPI"), ("head", 29400)),
        (MVAPICH, (2, 4, 0, 2, "MVAPICH2"), ("head", 29400)),
        (MPICH, (2, 4, 0, 2, "MPICH"), ("head", 29400)),
        (PALS, (2, 4, 0, 2, "MPICH"), ("head", 29400)),
        (MPICH | {"MPI_LOCALNRANKS": "4", "MASTER_ADDR": ""}, (2, 4, 0, 4, "MPICH"), ("127.0.0.1", 29400)),
        (SLURM | {"SLURM_PROCID": "0"} | MPICH, (2, 4, 0, 2, "MPICH"), ("head", 29400)),
        (SLURM | {"PMI_RANK": "3", "PMI_SIZE": "8"}, (3, 8, 1, 2, "Slurm"), ("gpu003", 29417)),
        (SLURM | {"PMIX_RANK": "3"}, (3, 8, 1, 2, "Slurm"), ("gpu003", 29417)),
        (MPI | {"PMIX_RANK": "2"}, (2, 4, 0, 2, "Open MPI"), ("head", 29400)),
        (SLURM, (3, 8, 1, 2, "Slurm"), ("gpu003", 29417)),
        (SLURM | MPI | HOROVOD | DMLC | TORCHRUN, (5, 8, 1, 4, "torchrun"), ("10.0.0.1", 30500)),
        (SLURM | {"MASTER_ADDR": "here", "MASTER_PORT": "65000"}, (3, 8, 1, 2, "Slurm"), ("here", 64000)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 1, 2, "torchrun"), ("127.0.0.1", 29400)),
    ],
)
def test_where_am_i(environ: Mapping[str, str], expected: tuple[object, ...], where: tuple[str, int]) -> None:
    settings = read_settings(environ)
    assert place(settings) == expected
    assert conductor(settings) == where


@pytest.mark.parametrize("num_machines", [1, 2])
def test_byteps_starts_several_processes_on_each_machine(num_machines: int) -> None:
    """Its launcher's number of workers is that of machines; legato's is that of processes that train."""
    found = [
        read_settings(
            {
                "DMLC_ROLE": "worker",
                "DMLC_NUM_WORKER": str(num_machines),
                "DMLC_WORKER_ID": str(machine),
                "DMLC_PS_ROOT_URI": "10.0.0.2",
                "BYTEPS_LOCAL_RANK": str(local_rank),
                "BYTEPS_LOCAL_SIZE": "2",
            }
        )
        for machine in range(num_machines)
        for local_rank in range(2)
    ]
    size = 2 * num_machines
    assert [place(settings) for settings in found] == [(rank, size, rank % 2, 2, "BytePS") for rank in range(size)]


def test_byteps_server_is_for_all_processes_of_all_machines() -> None:
    settings = read_settings(DMLC | {"DMLC_ROLE": "server", "BYTEPS_LOCAL_SIZE": "2"})
    assert (settings.rank, settings.num_workers) == (None, 8)


@pytest.mark.parametrize(
    ("environ", "told_by"),
    [
        ({}, "nobody"),
        (TORCHRUN, "torchrun (RANK, WORLD_SIZE)"),
        (DMLC | {"BYTEPS_LOCAL_SIZE": "1"}, "BytePS (DMLC_WORKER_ID, DMLC_NUM_WORKER, BYTEPS_LOCAL_SIZE)"),
        (SLURM, "Slurm (SLURM_PROCID, SLURM_NTASKS)"),
    ],
)
def test_who_told_it(environ: Mapping[str, str], told_by: str) -> None:
    assert read_settings(environ).told_by == told_by


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ()),
        (TORCHRUN | {"SLURM_NTASKS": "2"}, ()),
        ({"MASTER_ADDR": "head", "LOCAL_RANK": "0"}, ("LOCAL_RANK", "MASTER_ADDR")),
        ({"SLURM_NTASKS": "4"}, ("SLURM_NTASKS",)),
        ({"SLURM_NTASKS": "1"}, ()),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}, ()),
        ({"RANK": "0", "WORLD_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "4"}, ("OMPI_COMM_WORLD_SIZE",)),
    ],
)
def test_variables_that_someone_alone_should_look_at(environ: Mapping[str, str], names: tuple[str, ...]) -> None:
    assert read_settings(environ).overlooked == names
    assert read_settings(environ, rank=0, num_workers=1).overlooked == ()


@pytest.mark.parametrize("name", ["PMIX_RANK", "FLUX_TASK_RANK", "PALS_RANKID", "ALPS_APP_PE", "JSM_NAMESPACE_RANK"])
def test_a_launcher_that_is_not_understood_is_refused(name: str) -> None:
    """Otherwise each of its processes would train alone, in silence."""
    with pytest.raises(InputError, match=f"{name} is '1', from a launcher that legato does not understand; set RANK"):
        read_settings({name: "1"})
    assert read_settings({name: "1"}, rank=1, num_workers=2).rank == 1


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


def key_file(folder: Path, text: str) -> Path:
    path = folder / "key"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def test_keys(tmp_path: Path) -> None:
    path = key_file(tmp_path, "a secret from a file\n")
    assert read_settings({}).key is None
    assert read_settings({"LEGATO_KEY": "a spoken secret!"}).key == b"a spoken secret!"
    settings = read_settings({"LEGATO_KEY": "a spoken secret!", "LEGATO_KEY_FILE": str(path)})
    assert settings.key == b"a secret from a file"
    assert "from a file" not in repr(settings)
    assert "from a file" not in repr(settings.native())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_file_that_others_can_open_is_refused(mode: int, tmp_path: Path) -> None:
    path = key_file(tmp_path, "a secret from a file\n")
    path.chmod(mode)
    said = f"LEGATO_KEY_FILE is '{path}', which others can open (its mode is {mode:04o}); run: chmod 600 {path}"
    with pytest.raises(InputError, match=re.escape(said)):
        read_settings({"LEGATO_KEY_FILE": str(path)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path, "a secret from a file\n")
    os.chown(path, 65534, 65534)
    with pytest.raises(InputError, match="which belongs to user 65534; accepted is a file of this user's or root's"):
        read_settings({"LEGATO_KEY_FILE": str(path)})


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="LEGATO_KEY holds 15 bytes; accepted are 16 or more, such as `openssl rand"):
        read_settings({"LEGATO_KEY": "fifteen letters"})
    path = key_file(tmp_path, "fifteen letters\n")
    with pytest.raises(InputError, match=re.escape(f"LEGATO_KEY_FILE is '{path}', which holds 15 bytes; accepted")):
        read_settings({"LEGATO_KEY_FILE": str(path)})


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
        "LEGATO_KEY": "a secret of many bytes",
        "LEGATO_WIRE": "authenticated",
    }
    native = read_settings(TORCHRUN | environ).native()
    assert (native.member.timeout_s, native.member.join_timeout_s) == (7.0, 8.0)
    assert (native.engine.heartbeat_s, native.engine.num_io_threads) == (0.5, 3)
    assert (native.engine.wire, read_settings(TORCHRUN).native().engine.wire) == ("authenticated", "plain")
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
        (DMLC | {"BYTEPS_LOCAL_SIZE": "2"}, "BYTEPS_LOCAL_RANK is not set; accepted is a whole number from 0 to 1"),
        ({"BYTEPS_LOCAL_RANK": "1"}, "DMLC_NUM_WORKER is not set; accepted is a whole number from 1 on"),
        ({"HOROVOD_RANK": "1"}, "HOROVOD_SIZE is not set; accepted is a whole number from 1 on"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE is not set; accepted is a whole number from 1 on"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "MPI_LOCALNRANKS is not set; accepted is a whole number from 1 to 2"),
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
    with pytest.raises(InputError, match="which is empty"):
        read_settings({"LEGATO_KEY_FILE": str(key_file(tmp_path, "\n"))})


@pytest.mark.parametrize(("rank", "num_workers"), [(0, None), (None, 2), (2, 2), (0, 0)])
def test_wrong_places_in_code_are_refused(rank: int | None, num_workers: int | None) -> None:
    with pytest.raises(InputError, match=f"rank={rank}"):
        read_settings({}, rank=rank, num_workers=num_workers)


# ---- the model ----


def test_the_page_is_made_from_the_model() -> None:
    """`make environment-page` writes it."""
    assert (ROOT / "docs/environment.md").read_text() == environment_page()


def test_every_setting_is_read_and_its_origin_kept() -> None:
    assert [found.setting for found in read_settings({}).found] == list(SETTINGS.values())


def test_whatever_looks_like_a_variable_of_ours_in_the_code_is_one() -> None:
    folders = (ROOT / "src", ROOT / "bench", ROOT / "examples")
    code = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    names = set(re.findall(rf"\b{PREFIX}[A-Z0-9_]+\b", code))
    assert names - {setting.variable for setting in SETTINGS.values()} == {"LEGATO_TIMEOUT"}  # a slip, in the page


def test_what_launchers_say_is_in_their_table() -> None:
    code = (ROOT / "src/legato/launchers.py").read_text()
    listed = {name for row in VARIABLES for name in row.names}
    read = set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z]+)+|RANK)"', code))
    assert len(listed) > 30
    assert read - listed == {"DMLC_ROLE", *UNKNOWN_LAUNCHERS}


def test_only_settings_read_the_environment() -> None:
    """Others hand it over. MXNet's own variables belong to MXNet's KVStore, torchrun's to what it starts."""
    folder = ROOT / "src/legato"
    readers = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if re.search(r"getenv|environ(\[|\.get|b\b)|Environment\(os", path.read_text())
    }
    assert readers == {"environment.py", "mxnet/api.py", "launch/host.py", "launch/rank.py"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LEGATO_PARTITON_BYTES", "LEGATO_PARTITION_BYTES"),
        ("LEGATO_PARTITION", "LEGATO_PARTITION_BYTES"),
        ("LEGATO_TIMEOUT", "LEGATO_TIMEOUT_S"),
        ("LEGATO_KEYFILE", "LEGATO_KEY_FILE"),
        ("LEGATO_NUM_SERVERS", "LEGATO_SERVERS"),
    ],
)
def test_a_slip_of_the_fingers_is_an_error(name: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"^{name} is not a variable of legato; did you mean {meant}\\?$"):
        read_settings({name: "1"})


def test_a_variable_that_may_be_somebody_elses_gets_a_line() -> None:
    assert read_settings({"LEGATO_SPROCKET": "1", "LEGATO_NOTHING": ""}).without_effect == (
        "LEGATO_SPROCKET has no effect: legato does not know it (docs/environment.md)",
    )


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


def test_partition_and_credit_are_sizes() -> None:
    settings = read_settings({"LEGATO_PARTITION_BYTES": "4MB", "LEGATO_CREDIT_BYTES": "16MiB"})
    assert (settings.partition_bytes, settings.credit_bytes) == (4_000_000, 16 << 20)
    settings = read_settings({})
    assert (settings.partition_bytes, settings.credit_bytes) == (None, None)


@pytest.mark.parametrize(
    ("environ", "partition_bytes", "credit_bytes", "warnings"),
    [
        ({"BYTEPS_PARTITION_BYTES": "1024000", "BYTEPS_SCHEDULING_CREDIT": "4"}, 1_024_000, 4_096_000, 2),
        ({"BYTEPS_SCHEDULING_CREDIT": "2"}, None, 8_192_000, 1),
        ({"BYTESCHEDULER_PARTITION": "1000000", "BYTESCHEDULER_CREDIT": "4000000"}, 4_000_000, 16_000_000, 2),
        ({"BYTESCHEDULER_PARTITION": "1000", "LEGATO_PARTITION_BYTES": "64KiB"}, 65536, None, 0),
    ],
)
def test_the_predecessors_sizes_are_converted_to_bytes(
    environ: dict[str, str], partition_bytes: int | None, credit_bytes: int | None, warnings: int
) -> None:
    settings = read_settings(environ)
    assert (settings.partition_bytes, settings.credit_bytes) == (partition_bytes, credit_bytes)
    assert len(settings.translated) == warnings


def test_what_a_predecessors_variable_is_taken_for_is_told() -> None:
    settings = read_settings({"BYTESCHEDULER_CREDIT": "1000", "BYTEPS_ENABLE_ASYNC": "1", "DMLC_NODE_HOST": "10.0.0.1"})
    assert settings.translated == (
        "BYTESCHEDULER_CREDIT is taken for LEGATO_CREDIT_BYTES=4000",
        "BYTEPS_ENABLE_ASYNC is taken for LEGATO_STALENESS=16",
    )


@pytest.mark.parametrize("name", ["LEGATO_PARTITION_BYTES", "LEGATO_CREDIT_BYTES", "BYTEPS_PARTITION_BYTES"])
@pytest.mark.parametrize("value", ["much", "0", "-3"])
def test_what_is_no_size_is_named(name: str, value: str) -> None:
    with pytest.raises(InputError, match=name):
        read_settings({name: value})
