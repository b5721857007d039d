"""What tuning costs beside training: `python -m bench.tuning_cost`.

A search of the twin, from statistics to a choice, and the meta-network's predictions for 200 candidates, each in one
thread: the best, the median and the worst of the repetitions. Then what marks
and reports cost by themselves, and the share of a core that tuning takes in all: two ranks on this machine train
ResNet50's profile, whose layers sleep, with the tuner and without, in turns.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from statistics import median

import torch

import legato.torch as lg
from bench.sleeper import sleeping_model, step_times_s
from bench.testbed import crew
from bench.testbed.loopback import Loopback
from legato.core import Workload
from legato.sim.cluster import Cluster
from legato.sim.zoo import workload
from legato.testing.tuner_contract import measured
from legato.tuning.autobyte.features import candidate_features, job_features
from legato.tuning.autobyte.tuner import shipped_network
from legato.tuning.candidate import Space
from legato.tuning.live.meter import Meter
from legato.tuning.statistics import WINDOW_STEPS
from legato.tuning.twin.twin import Twin

CLUSTER = Cluster(workers=8, gbps=10, latency_s=50e-6, overhead_s=50e-6)
MODELS = ("alexnet", "resnet50", "densenet121")
PREDICTIONS = 200
REPETITIONS = 15
NUM_STEPS, WARM_UP = 400, 50
NUM_WORKERS = 2
NUM_TURNS = 16
STEP_S = 0.25
NUM_BYTES = 2_500_000
_PORT = 4600


def timed(what: str, call: Callable[[], object]) -> None:
    call()
    times_ms = []
    for _ in range(REPETITIONS):
        start_s = time.perf_counter()
        call()
        times_ms.append(1e3 * (time.perf_counter() - start_s))
    print(f"{what:48} {min(times_ms):6.1f} {median(times_ms):6.1f} {max(times_ms):6.1f} ms")


def search(model: Workload) -> None:
    space = Space()
    statistics = measured(space.start, CLUSTER, model)
    shape = replace(CLUSTER, gbps=1.0, latency_s=0.0, overhead_s=0.0)
    timed(f"twin, {model.name}, {len(space)} candidates", lambda: Twin(space, shape).tell(statistics))


def predict(model: Workload) -> None:
    network = shipped_network()
    candidates = list(islice(cycle(Space()), PREDICTIONS))

    def call() -> None:
        network.predict(job_features(model, CLUSTER, [1e9]), candidate_features(model, candidates))

    timed(f"meta-network, {model.name}, {PREDICTIONS} candidates", call)


def marks(num_layers: int) -> None:
    """What a rank spends on being measured, in processor time of its main thread, reports included."""
    meter = Meter(rank=0, num_layers=num_layers + 1, num_bytes=1, now_ns=time.monotonic_ns())

    def step(number: int) -> None:
        for layer in range(1, num_layers + 1):
            meter.enter(layer, time.monotonic_ns())
            meter.waited(time.monotonic_ns(), time.monotonic_ns())
        for layer in range(num_layers, 0, -1):
            meter.gradient(layer, time.monotonic_ns())
        meter.step(time.monotonic_ns(), (number, number))
        if meter.num_steps == WINDOW_STEPS:
            meter.report().to_json()
            meter.restart()

    for number in range(WARM_UP):
        step(number)
    begin_s = time.thread_time()
    for number in range(NUM_STEPS):
        step(number)
    each_ms = (time.thread_time() - begin_s) / NUM_STEPS * 1e3
    print(f"a step with {num_layers} parameters, each waited for      {each_ms:6.2f} ms of the main thread")


def train(station: crew.Station, address: str) -> dict[str, list[float]]:
    """Seconds of processor time of all threads of this rank, for a step; a figure for each turn."""
    torch.set_num_threads(1)
    os.environ.update(crew.torchrun_environment(station.rank, NUM_WORKERS, address, _PORT, on_one_host=True))
    lg.init()
    shape = workload("resnet50")
    # Few bytes, so that what sums cost does not hide what marks do; as many layers as ever.
    emulated = shape.scaled(bytes_by=NUM_BYTES / shape.num_bytes, time_by=STEP_S / shape.compute_s)
    trainers = {}
    for tuner in ("twin", "off"):  # a job's first schedule is the one that can be tuned
        model = sleeping_model(emulated, 1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        lg.schedule(model, optimizer, tuner=tuner)
        trainers[tuner] = model, optimizer
    cpu_s: dict[str, list[float]] = {tuner: [] for tuner in trainers}
    for _ in range(NUM_TURNS + 1):
        for tuner, (model, optimizer) in trainers.items():
            station.meet()
            begin_s = time.process_time()
            steps = len(step_times_s(model, optimizer, 2 * WINDOW_STEPS - 1)) + 1
            cpu_s[tuner].append((time.process_time() - begin_s) / steps)
            lg.flush(model)
    lg.shutdown()
    return {tuner: turns[1:] for tuner, turns in cpu_s.items()}


def share() -> None:
    """Of a core, by rank: rank 0 also brings the reports together."""
    with Loopback(hosts=NUM_WORKERS) as hosts:
        ranks = crew.run(hosts, range(NUM_WORKERS), train, hosts.address(0))
    for rank, cpu_s in enumerate(ranks):
        pairs = list(zip(cpu_s["twin"], cpu_s["off"], strict=True))
        more_ms = [1e3 * (tuned - untuned) for tuned, untuned in pairs]
        step_ms, of_core = median(cpu_s["off"]) * 1e3, median(more_ms) / (1e3 * STEP_S)
        print(
            f"rank {rank}: {step_ms:.1f} ms of processor a step of {STEP_S * 1e3:.0f} ms, measured "
            f"{median(more_ms):+.2f} ms ({min(more_ms):+.2f} to {max(more_ms):+.2f}): {of_core:.2%} of a core"
        )


def main() -> None:
    torch.set_num_threads(1)
    for name in MODELS:
        search(workload(name))
        predict(workload(name))
    marks(161)  # those of ResNet50
    share()


if __name__ == "__main__":
    main()
