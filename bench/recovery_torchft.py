"""torchft's workers as bench.recovery wants them: a lighthouse, and workers that are started again when they end.

torchft leaves restarts to whoever starts the replica groups; here one process is one group. The lighthouse has the
settings of torchft's README.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

LOOK_S = 0.05


def main() -> None:
    from torchft.coordination import LighthouseServer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--min", type=int, required=True, help="workers without which nobody trains")
    parser.add_argument("--max", type=int, required=True, help="workers")
    parser.add_argument("--restarts", type=int, required=True)
    parser.add_argument("script", nargs="+", help="and its arguments")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=options.min, join_timeout_ms=10_000, quorum_tick_ms=100
    )
    environ = {
        **os.environ,
        "TORCHFT_LIGHTHOUSE": lighthouse.address(),
        "TORCHFT_MIN_REPLICAS": str(options.min),
    }

    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *options.script], env={**environ, "TORCHFT_REPLICA": str(number)})

    workers = [start(number) for number in range(options.max)]
    restarts = options.restarts
    try:
        while True:
            for number, worker in enumerate(workers):
                if worker.poll() is not None:
                    if restarts == 0:
                        sys.exit(f"worker {number} has ended, and has been started again often enough")
                    restarts -= 1
                    workers[number] = start(number)
            time.sleep(LOOK_S)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        lighthouse.shutdown()


if __name__ == "__main__":
    main()
