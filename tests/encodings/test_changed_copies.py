# SPDX-License-Identifier: Apache-2.0
"""What makes another encoding of one: a resized table, another schedule."""

from typing import Any

import pytest
import torch

from posenc import ENCODINGS
from test_every_encoding import of_layers

CHANGED = [
    (text, method, arguments)
    for name, cls in ENCODINGS.items()
    for text in (name, f"{name}:merge=concat")[: 1 + ("merge" in cls.arguments())]
    for method, arguments in {"resized": ((3, 5), {}), "with_schedule": (("linear",), {"factor": 2.0})}.items()
    if hasattr(cls, method)
]


@pytest.mark.parametrize(
    ("name", "method", "arguments"), CHANGED, ids=[f"{name} {method}" for name, method, _ in CHANGED]
)
def test_a_changed_copy_is_as_its_original_in_all_else(name: str, method: str, arguments: Any) -> None:
    encoding = of_layers(name, 2).bfloat16().eval().requires_grad_(False)
    given, options = arguments
    other = getattr(encoding, method)(*given, **options)
    assert type(other) is type(encoding)
    assert not other.training
    of_other = dict(other.named_parameters())
    for at, parameter in encoding.named_parameters():
        assert of_other[at].dtype == parameter.dtype
        assert not of_other[at].requires_grad
        assert of_other[at].data_ptr() != parameter.data_ptr()
        assert torch.equal(of_other[at], parameter) == (of_other[at].shape == parameter.shape)
