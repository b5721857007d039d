import json

import pytest

from legato.core import Layer, Workload
from legato.errors import InputError

WORKLOAD = Workload("two", (Layer("a", 8, 0.5, 1.0), Layer("act", 0, 0.25, 0.5), Layer("b", 4, 1.0, 2.0)))


def test_json_in_and_out() -> None:
    assert Workload.from_json(WORKLOAD.to_json()) == WORKLOAD


def test_layers_without_bytes_compute_but_do_not_travel() -> None:
    assert [(tensor.name, tensor.priority) for tensor in WORKLOAD.tensors] == [("a", 0), ("b", 2)]
    assert WORKLOAD.compute_s == 5.25
    timing = WORKLOAD.timing()
    assert timing.forward_s == (0.5, 1.25)
    assert sum(timing.backward_s) == 3.5


def test_scaling_keeps_elements_whole() -> None:
    scaled = WORKLOAD.scaled(bytes_by=0.1, time_by=2)
    assert [layer.num_bytes for layer in scaled.layers] == [4, 0, 4]
    assert scaled.compute_s == 10.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON, line 1"),
        ("[]", "expected"),
        ('{"layers": [{"name": "a"}]}', "layer 0 must have exactly the fields"),
        ('{"layers": [{"name": "a", "num_bytes": "8", "forward_s": 1, "backward_s": 1}]}', "must be numbers"),
        ('{"layers": [{"name": "a", "num_bytes": -8, "forward_s": 1, "backward_s": 1}]}', "must be 0 or more"),
        (json.dumps({"layers": []}), "at least one layer must have bytes"),
        ('{"layers": [{"name": "a", "num_bytes": 8, "forward_s": NaN, "backward_s": 1}]}', "must be 0 or more"),
    ],
)
def test_wrong_documents_are_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Workload.from_json(text)
