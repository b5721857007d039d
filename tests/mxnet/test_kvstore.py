"""ScheduledKVStore in real jobs: workers, servers and a scheduler of MXNet's on loopback."""

import pytest

from legato.errors import InputError
from tests.mxnet.cluster import Reports, cluster, run

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

import mxnet as mx

from legato.mxnet import ScheduledKVStore
from legato.mxnet.keys import KeySpace
from legato.mxnet.sizes import Sizes, fitted
from tests.mxnet import cases

# MXNet is older than the numpy and scipy that it runs on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TOLERANCE = 2e-4
"""Relative, after 50 steps in float32: sums of two workers are rounded in another order than those of one batch."""


@pytest.fixture(scope="module")
def job() -> Reports:
    """Two workers and two servers. The last case leaves an optimizer on the servers."""
    return run(
        "values",
        "order",
        "layer_by_layer",
        "changing_sets",
        "sizes",
        "sizes 512KiB",
        "mistakes",
        "mismatch",
        "gluon worker sgd bytescheduler",
        "gluon worker adam rsag",
        "gluon worker sgd fifo",
        "gluon server sgd bytescheduler",
    )


def test_arrays_are_cut_summed_and_put_together_again(job: Reports) -> None:
    assert job["values"] == [[], []]


def test_each_start_is_the_most_urgent_part_that_is_ready_and_fits_the_credit(job: Reports) -> None:
    for log in job["order"]:
        waiting: dict[int, int] = {}
        in_flight_bytes = num_sent = 0
        for kind, tensor, num_bytes in log:
            if kind == "ready":
                waiting[tensor] = cases.NUM_PARTS[tensor]
            elif kind == "start":
                assert tensor == min(each for each, parts in waiting.items() if parts)
                waiting[tensor] -= 1
                in_flight_bytes += num_bytes
                assert in_flight_bytes <= 400
            elif kind == "sent":
                num_sent += 1
                in_flight_bytes -= num_bytes
        assert num_sent == sum(cases.NUM_PARTS)
        assert waiting == {0: 0, 1: 0, 2: 0}


def test_a_more_urgent_array_overtakes_one_that_is_under_way(job: Reports) -> None:
    for log in job["order"]:
        starts = [tensor for kind, tensor, _ in log if kind == "start"]
        first, second, last = cases.NUM_PARTS
        early = cases.EARLY_PARTS
        assert starts == [2] * early + [0] * first + [1] * second + [2] * (last - early)


def test_an_array_can_be_read_before_the_others_have_arrived(job: Reports) -> None:
    assert job["layer_by_layer"] == [[True, True], [True, True]]


def test_keys_may_stay_out_of_steps(job: Reports) -> None:
    assert job["changing_sets"] == [[], []]


def test_parts_are_as_large_as_the_links_say_unless_the_user_does(job: Reports) -> None:
    """Of 1 MiB, at 100 MB/s; all servers' and all workers' arrays arrive in any case."""
    assert job["sizes"] == [[[262_144] * 4, 2.0 * (1 << 18)]] * 2
    assert job["sizes 512KiB"] == [[[524_288] * 2, 2.0 * (1 << 18)]] * 2


@pytest.mark.parametrize(
    ("gbps", "given", "expected"),
    [
        (0.1, Sizes(None, None), Sizes(262_144, 786_432)),
        (1.0, Sizes(None, None), Sizes(262_144, 786_432)),
        (10.0, Sizes(None, None), Sizes(4_000_000, 12_000_000)),
        (100.0, Sizes(None, None), Sizes(4_000_000, 12_000_000)),
        (1.0, Sizes(1_000, None), Sizes(1_000, 3_000)),
        (1.0, Sizes(None, 5_000), Sizes(262_144, 5_000)),
    ],
)
def test_sizes_that_fit_a_link(gbps: float, given: Sizes, expected: Sizes) -> None:
    """A part takes up to 4 ms; ByteScheduler's own sizes are the largest."""
    assert fitted(given, gbps / 8 * 1e9) == expected


def test_mistakes_are_told_in_one_line(job: Reports) -> None:
    expected = (
        "InputError: key 'w' has not been initialised",
        "InputError: tensor 'i' is int32; a KVStore's servers sum float32, float64, float16 only",
        "InputError: key 'w' has been initialised before",
        "InputError: key 'w' was initialised as float32 (3,); this array is float32 (4,)",
        "InputError: key 'w' was initialised as float32 (3,); this array is float64 (3,)",
        "InputError: key 'w' is a row_sparse array; accepted are dense NDArrays",
        "InputError: LAMB looks at whole arrays",
        "InputError: compression {'type': '2bit'} is not for a ScheduledKVStore",
        "InputError: key 'late' comes after the first push",
        "ClosedError: the KVStore is closed",
    )
    for said in job["mistakes"]:
        assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == list(expected)
        assert not any("\n" in line for line in said)


def test_different_shapes_are_an_error_on_every_worker(job: Reports) -> None:
    for said in job["mismatch"]:
        assert said == (
            "MismatchError: tensor 'w' differs between ranks: "
            "rank 0 says 'w' is float32 (3, 4); rank 1 says 'w' is float32 (4, 3)"
        )


@pytest.mark.parametrize(
    ("case", "optimizer"),
    [
        ("gluon worker sgd bytescheduler", "sgd"),
        ("gluon worker adam rsag", "adam"),
        ("gluon worker sgd fifo", "sgd"),
        ("gluon server sgd bytescheduler", "sgd"),
    ],
)
def test_gluon_trains_as_one_process_on_the_joined_batch(job: Reports, case: str, optimizer: str) -> None:
    alone = cases.train_gluon(None, 1, 0, on_server=None, optimizer=optimizer)
    assert _mean(job[case]) == pytest.approx(alone, rel=TOLERANCE)
    assert alone[-1] < alone[0] / 1.5


@pytest.mark.parametrize("on_server", ["0", "1"])
def test_module_trains_as_one_process_on_the_joined_batch(on_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = cases.train_module(None, 1, 0)
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", on_server)
    assert _mean(run("module")["module"]) == pytest.approx(alone, rel=TOLERANCE)


def test_an_optimizer_on_the_servers_keeps_the_multipliers_of_each_parameter() -> None:
    assert run("server_multipliers")["server_multipliers"] == [[[-1.0], [-0.5]]] * 2


def test_a_lost_worker_is_an_error_that_names_the_array_and_the_process_ends() -> None:
    with cluster() as job:
        job.start_workers(["lost_worker"])
        outputs = job.outputs(60.0)
        [survivor] = [number for number, worker in enumerate(job.workers) if worker.returncode != 0]
    assert "waited 3 s for tensor 'weight' in step 2" in outputs[survivor]
    assert "a rank has not started it, or cannot be reached" in outputs[survivor]


def test_what_is_not_a_distributed_kvstore_is_refused() -> None:
    with pytest.raises(InputError, match="kv is 'local'; accepted are KVStores of MXNet's of type dist_sync"):
        ScheduledKVStore(mx.kv.create("local"))
    with pytest.raises(InputError, match="policy 'fastest' is unknown; accepted: fifo"):
        ScheduledKVStore(mx.kv.create("local"), "fastest")
    with pytest.raises(InputError, match="policy 'mgwfbp' merges tensors"):
        ScheduledKVStore(mx.kv.create("local"), "mgwfbp")


@pytest.mark.parametrize("num_servers", [1, 2, 4, 7])
def test_parts_spread_over_all_servers(num_servers: int) -> None:
    keys = KeySpace(num_servers, 1_000_000)
    load = [0] * num_servers
    taken = set()
    for part in range(100):
        place = keys.place(1000 + part, 4000 + 4 * part)
        [server] = place.servers
        assert place.key * 9973 % num_servers == server, "not where MXNet will keep it"
        load[server] += 4000 + 4 * part
        taken.add(place.key)
    assert max(load) - min(load) <= 4400
    assert len(taken) == 100
    assert keys.place(1_000_000, 4_000_000).servers == tuple(range(num_servers))


def _mean(losses: list[list[float]]) -> list[float]:
    return [sum(each) / len(each) for each in zip(*losses, strict=True)]
