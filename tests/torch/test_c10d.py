"""Training over a process group: the same results as torch's DDP, whatever the order of gradients on each rank."""

import pytest

from tests.torch.cases import CASES, compare
from tests.torch.crew import Crew

TOLERANCE = 1e-9


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_fifty_steps_equal_ddp(crew: Crew, case: str, size: int) -> None:
    for differences in crew.run(compare, case, ("c10d",), size=size):
        for (optimizer, system), (in_losses, in_weights) in differences.items():
            assert in_losses <= TOLERANCE, (optimizer, system)
            assert in_weights <= TOLERANCE, (optimizer, system)
