"""The comparison of a model with hand-written PyTorch that the tests of every construct share."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

F64 = torch.float64


def linear(i: int = 4, o: int = 4) -> nn.Linear:
    return nn.Linear(i, o, dtype=F64)


def same(model: nn.Module, reference: Callable[[Tensor], Tensor], x: Tensor | None = None, tol: float = 1e-12) -> None:
    """Same values and same gradients of input and parameters, also after a copy; gradients are right by differences."""
    x = torch.randn(5, 4, dtype=F64, requires_grad=True) if x is None else x
    parameters = [p for p in model.parameters() if p.requires_grad]
    got, expected = model(x), reference(x)
    torch.testing.assert_close(got, expected, rtol=tol, atol=tol)
    weight = torch.randn_like(got)
    for a, b in zip(
        torch.autograd.grad(got, [x, *parameters], weight, allow_unused=True),
        torch.autograd.grad(expected, [x, *parameters], weight, allow_unused=True),
        strict=True,
    ):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tol, atol=tol)
    torch.testing.assert_close(copy.deepcopy(model)(x), expected, rtol=tol, atol=tol)
    assert torch.autograd.gradcheck(model, (x,))
