"""The code blocks of README.md and docs/, and who runs those in Python.

Blocks are run where their framework is loaded: each folder of tests takes the pages in its list below, and
tests/docs/test_blocks.py checks that no page is missing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))

QUICKSTART = ("docs/quickstart.md",)
TORCH = (
    "README.md",
    "docs/asynchrony.md",
    "docs/benchmark.md",
    "docs/compatibility.md",
    "docs/compression.md",
    "docs/policies.md",
    "docs/pytorch.md",
    "docs/timeline.md",
    "docs/trainers.md",
    "docs/tuning.md",
)
MIGRATION = (
    "docs/migration/byteps.md",
    "docs/migration/bytescheduler.md",
    "docs/migration/ddp.md",
    "docs/migration/horovod.md",
)
RECIPES = ("docs/recipes.md",)
JAX = ("docs/jax.md",)
TENSORFLOW = ("docs/tensorflow.md",)
KERAS = ("docs/keras.md",)
MXNET = ("docs/mxnet.md",)  # in an environment of its own: all of its blocks are below
ELASTIC = ("docs/elastic.md",)  # the same, for jobs whose workers come and go

ELSEWHERE = {
    ("docs/benchmark.md", "The testbed"): "needs network namespaces; tests/bench/test_testbed.py makes the same calls",
    (
        "docs/mxnet.md",
        "BytePS's interface",
    ): "needs MXNet; tests/mxnet/test_examples.py runs an example that does the same",
    (
        "docs/mxnet.md",
        "ScheduledKVStore",
    ): "needs MXNet; tests/mxnet/test_examples.py runs an example that does the same",
    (
        "docs/elastic.md",
        "In a script",
    ): "needs an elastic job; tests/cli/test_elastic_training.py kills a rank of such scripts",
    (
        "docs/elastic.md",
        "Clipping, loss scaling, learning rates",
    ): "needs an elastic job; tests/elastic/test_loops.py runs loops that do the same",
    (
        "docs/elastic.md",
        "Horovod's interface",
    ): "needs an elastic job; tests/cli/test_elastic_training.py kills a rank of such scripts",
    ("docs/pytorch.md", "Sharded models (FSDP2)"): "needs four ranks; tests/torch/test_fsdp.py runs it",
    ("docs/trainers.md", "Ray Train"): "needs a Ray cluster; tests/examples/test_ray.py makes the same calls",
}
"""Blocks, by page and heading, that the tests of their page leave out."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    heading: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


_BLOCK = re.compile(r"^```([\w+-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(pages: Iterable[str], *languages: str) -> list[Block]:
    """All blocks in these languages; "" is a block that names none."""
    found = []
    for page in pages:
        text = (ROOT / page).read_text()
        for block in _BLOCK.finditer(text):
            if block[1] in languages:
                before = text[: block.start()]
                heading = ["", *re.findall(r"^#+ (.+)$", _BLOCK.sub("", before), re.MULTILINE)][-1]
                found.append(Block(page, before.count("\n") + 1, heading, block[1], block[2]))
    return found


def python_blocks(pages: Iterable[str]) -> list[Block]:
    return [block for block in blocks(pages, "python") if (block.page, block.heading) not in ELSEWHERE]
