"""Waits between streams, removed one by one: each must be missed by the test that is named beside it.

    python -m tests.mutants --out bench/results/cuda-mutants.md

Needs an accelerator. The package is copied, one line of the copy is replaced, and the test runs against that.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 100
AT_ONCE = 3
"""The tests delay streams, not hosts: others on the same accelerator do not hide a wait that is missing."""
STREAMS = "tests/torch/test_streams.py::"
BLOCKING = "native, blocking"
IN_HOST = "native, in the host"


@dataclass(frozen=True)
class Mutant:
    """One hand-over without its wait."""

    wait: str
    """What hands over to what."""
    file: str
    line: str
    """The line, which must occur once."""
    instead: str
    test: str


def _in_turn(*ids: str) -> str:
    return f"{STREAMS}test_each_stream_in_turn_is_late_and_no_weight_changes[{'-'.join(ids)}]"


MUTANTS = (
    Mutant(
        "native: gradient → copy to the host",
        "torch/sync/pieces.py",
        "out.wait_stream(torch.cuda.current_stream(tensor.device))  # a",
        "pass",
        _in_turn("native", "auto", "gradient"),
    ),
    Mutant(
        "native: copy to the host → the engine, by a word",
        "torch/sync/pieces.py",
        "self._collector.ready_when(way.watch, word, mark, place, num_ready)  # b",
        "self._collector.ready(place, num_ready)",
        _in_turn("native", "auto", "copy to the host"),
    ),
    Mutant(
        "native: engine → copy home, by a word",
        "torch/sync/pieces.py",
        "cuda_wait_for_word(home.cuda_stream, word, mark)  # c",
        "pass",
        _in_turn("native", "auto", "copy to the host"),
    ),
    Mutant(
        "native: copy home → next copy into the same pinned memory",
        "torch/sync/pieces.py",
        "out.wait_event(self._home[place])  # d",
        "pass",
        f"{STREAMS}test_averages_come_home_on_one_stream_while_gradients_are_given_on_another[native-none]",
    ),
    Mutant(
        "native: copy home → update",
        "torch/sync/pieces.py",
        "current.wait_event(self._home[place])  # f",
        "pass",
        _in_turn("native", "auto", "copy back"),
    ),
    Mutant(
        "native: copy home → the allocator, of what a cast had made",
        "torch/sync/pieces.py",
        "tensor.record_stream(current)",
        "pass",
        f"{STREAMS}test_averages_come_home_on_one_stream_while_gradients_are_given_on_another[native-fp16]",
    ),
    Mutant(
        "update → FSDP's gathering of what was updated",
        "torch/scheduling/modules.py",
        "group._wait_all_gather_streams_on_event(updated)",
        "pass",
        "tests/torch/test_fsdp_streams.py::test_streams_are_late_and_no_weight_changes[resharded-copy back]",
    ),
    Mutant(
        "native: a gradient's average → the next gradient of the same tensor, on the host",
        "torch/sync/native.py",
        "self._confirm(index)  # the engine has one step of a tensor at a time",
        "pass",
        _in_turn("native", "auto", "copy to the host"),
    ),
    Mutant(
        "native, blocking: gradient → copy to the host",
        "torch/sync/staging.py",
        "stream.wait_stream(torch.cuda.current_stream(tensor.device))",
        "pass",
        _in_turn(BLOCKING, "auto", "gradient"),
    ),
    Mutant(
        "native, blocking: copy to the host → engine",
        "torch/sync/staging.py",
        "copied.synchronize()",
        "pass",
        _in_turn(BLOCKING, "auto", "copy to the host"),
    ),
    Mutant(
        "native, blocking: copy back → next copy into the same pinned memory",
        "torch/sync/staging.py",
        "self._stream(tensor.device).wait_stream(current)",
        "pass",
        f"{STREAMS}test_averages_come_home_on_one_stream_while_gradients_are_given_on_another[{BLOCKING}-none]",
    ),
    Mutant(
        "native, blocking: copy back → the allocator, of what a cast had made",
        "torch/sync/staging.py",
        "tensor.record_stream(current)",
        "pass",
        f"{STREAMS}test_averages_come_home_on_one_stream_while_gradients_are_given_on_another[{BLOCKING}-fp16]",
    ),
    Mutant(
        "in the host: gradient → pack",
        "torch/sync/in_host.py",
        "self._stream.wait_stream(torch.cuda.current_stream(self._device))",
        "pass",
        _in_turn(IN_HOST, "auto", "gradient"),
    ),
    Mutant(
        "in the host: reduce-scatter → copy of the share to the host",
        "torch/sync/in_host.py",
        "self._inner.submit(number, share)  # b",
        "with torch.cuda.stream(torch.cuda.default_stream()): self._inner.submit(number, share)",
        _in_turn(IN_HOST, "auto", "backend's result"),
    ),
    Mutant(
        "in the host: copy of the share home → all-gather",
        "torch/sync/in_host.py",
        "self._inner.wait(number)  # f",
        "with torch.cuda.stream(torch.cuda.default_stream()): self._inner.wait(number)",
        _in_turn(IN_HOST, "auto", "copy back"),
    ),
    Mutant(
        "in the host: all-gather and copy home → update",
        "torch/sync/in_host.py",
        "torch.cuda.current_stream(self._device).wait_event(passage.home)  # c",
        "pass",
        _in_turn(IN_HOST, "auto", "copy home"),
    ),
    Mutant(
        "c10d: gradient → pack",
        "torch/sync/c10d.py",
        "self._stream.wait_stream(torch.cuda.current_stream(self._device))",
        "pass",
        _in_turn("c10d", "auto", "gradient"),
    ),
    Mutant(
        "c10d: pack → collective",
        "transports/c10d/collectives.py",
        "self._stream.wait_event(cargo.ready)",
        "pass",
        _in_turn("c10d", "auto", "pack"),
    ),
    Mutant(
        "c10d: collective issued on our stream, not on the caller's",
        "transports/c10d/collectives.py",
        "with torch.cuda.stream(self._stream):",
        "if True:",
        _in_turn("c10d", "auto", "pack"),
    ),
    Mutant(
        "c10d over Gloo: result on the device → landing (on our stream)",
        "transports/c10d/collectives.py",
        "with self._on_stream:",
        "if True:",
        _in_turn("c10d", "rsag", "backend's result"),
    ),
    Mutant(
        "c10d over Gloo: landing → finished",
        "transports/c10d/collectives.py",
        "_passed(self._stream).synchronize()",
        "pass",
        _in_turn("c10d", "auto", "backend's result"),
    ),
    Mutant(
        "c10d over NCCL: result → landing",
        "transports/c10d/collectives.py",
        "work.wait()  # does not block: it puts our stream behind NCCL's",
        "pass",
        f"{STREAMS}test_nccl_of_one_rank[backend's result-rsag]",
    ),
    Mutant(
        "c10d over NCCL: landing → finished",
        "transports/c10d/collectives.py",
        "self._event.synchronize()",
        "pass",
        f"{STREAMS}test_what_nccl_has_finished_may_be_read_on_any_stream",
    ),
    Mutant(
        "c10d: copy home → next pack into the same bucket",
        "torch/sync/c10d.py",
        "self._stream.wait_event(home)",
        "pass",
        f"{STREAMS}test_averages_come_home_on_one_stream_while_gradients_are_given_on_another[c10d-none]",
    ),
    Mutant(
        "c10d: copy home of a bucket → another of its gradients, on another stream",
        "torch/sync/c10d.py",
        "torch.cuda.current_stream(self._device).wait_event(passage.home)",
        "pass",
        f"{STREAMS}test_a_buckets_second_gradient_is_waited_for_on_another_stream",
    ),
    Mutant(
        "look at a gradient on one stream → update on another",
        "torch/scheduling/hooks.py",
        "stream.wait_stream(torch.cuda.current_stream(stream.device))",
        "pass",
        f"{STREAMS}test_gradients_are_looked_at_on_another_stream",
    ),
    Mutant(
        "update on one stream → forward on another",
        "torch/scheduling/hooks.py",
        "current.wait_event(updated[1])",
        "pass",
        f"{STREAMS}test_an_update_that_came_early_is_waited_for_on_another_stream[native]",
    ),
)


def outcome(mutant: Mutant) -> str:
    """What the test printed last, or that it passed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "legato"
        shutil.copytree(ROOT / "src" / "legato", copy)
        source = copy / mutant.file
        text = source.read_text()
        assert text.count(mutant.line) == 1, f"{mutant.file}: {mutant.line!r} occurs {text.count(mutant.line)} times"
        source.write_text(text.replace(mutant.line, mutant.instead))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.test]
        try:
            ran = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return "hung"
    if ran.returncode not in (0, 1):
        return f"did not run: {ran.stdout[-300:]}"
    errors = re.findall(r"^E\s+(.*)$", ran.stdout, re.MULTILINE)
    return "PASSED" if ran.returncode == 0 else f"failed: {errors[0] if errors else ''}"[:120]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the table, as Markdown")
    arguments = parser.parse_args()
    lines = ["| wait removed | line | test | it |", "|---|---|---|---|"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, said in zip(MUTANTS, pool.map(outcome, MUTANTS), strict=True):
            test = mutant.test.removeprefix(STREAMS)
            lines.append(f"| {mutant.wait} | `{mutant.file}`: `{mutant.line}` | `{test}` | {said} |")
            print(lines[-1], flush=True)
            arguments.out.write_text("\n".join(lines) + "\n")
    return int(any(not line.rsplit("| ", 1)[1].startswith(("failed", "hung")) for line in lines[2:]))


if __name__ == "__main__":
    sys.exit(main())
