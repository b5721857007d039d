"""Profiles of real models on this machine's accelerator, as workloads for `legato sim`.

    PYTHONPATH=src python -m bench.profile_zoo --out DIR

Writes DIR/MODEL.json for each model, with the zoo's batch, and DIR/environment.json. It needs PyTorch alone: no install
and no native module.
"""

import argparse
import importlib.util
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from torch.nn import functional

from bench.models import TASKS, Task
from examples.models import alexnet
from legato.core import Workload
from legato.sim.zoo import ZOO

MODELS = {"alexnet": Task(alexnet, 32, (3, 224, 224), 1000, False), **TASKS}


def _profiler() -> ModuleType:
    """`legato.torch.tuning.profile` by itself: the room around it would load the native module, which needs a build."""
    path = Path(__file__).parents[1] / "src/legato/torch/tuning/profile.py"
    spec = importlib.util.spec_from_file_location("legato_profile", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def measure(name: str, task: Task, device: str, warmup: int, passes: int) -> Workload:
    """One model, with the loss that it is trained with."""
    profiler = _profiler()
    torch.manual_seed(0)
    model = task.make().to(device).train()
    inputs, labels = task.data(device)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.flatten())

    config = profiler.ProfileConfig(warmup=warmup, passes=passes)
    workload: Workload = profiler.profile(name, model, inputs, loss=loss, config=config)
    return workload


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile_zoo", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, help="samples; else the zoo's for each model")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--passes", type=int, default=50)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = {name: replace(MODELS[name], batch=options.batch or ZOO[name].batch) for name in options.models}
    is_cuda = torch.device(options.device).type == "cuda"
    environment = {
        "device": torch.cuda.get_device_name() if is_cuda else f"{platform.machine()} processor",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "dtype": "float32",
        "cudnn_tf32": is_cuda and torch.backends.cudnn.allow_tf32,
        "matmul_tf32": is_cuda and torch.backends.cuda.matmul.allow_tf32,
        "passes": options.passes,
        "batch": {name: task.batch for name, task in tasks.items()},
        "sample": {name: list(task.shape) for name, task in tasks.items()},
    }
    (options.out / "environment.json").write_text(json.dumps(environment, indent=1) + "\n")
    for name, task in tasks.items():
        workload = measure(name, task, options.device, options.warmup, options.passes)
        (options.out / f"{name}.json").write_text(workload.to_json() + "\n")
        forward_s = sum(layer.forward_s for layer in workload.layers)
        print(
            f"{name}: batch {task.batch}, {len(workload.layers)} layers, {workload.num_bytes / 1e6:.1f} MB, "
            f"forward {forward_s * 1e3:.2f} ms, backward {(workload.compute_s - forward_s) * 1e3:.2f} ms",
            flush=True,
        )
        if is_cuda:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
