"""The first compiled step against the same step taken eagerly: a wrong graph trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint.rng import rng_state, set_rng_state

if TYPE_CHECKING:
    from flodl.train.update import UpdateRule

__all__ = ["first_step_agrees"]

_LOSS = 1e-3  # relative
_UPDATE = 0.3  # of its norm; below it lie gradients that are rounding alone, of which Adam makes whole steps


def first_step_agrees(
    loss_of: Callable[[], Tensor],
    model: nn.Module,
    optimizer: Optimizer,
    rule: UpdateRule | None,
    take: Callable[[], Tensor],
) -> str:
    """Take a step eagerly, then the same one by `take`. What is wrong with the latter; empty if nothing is.

    loss_of: the loss of the batch. Weights, states and buffers are as after one step in any case: that of `take`, or the
    eager one if they differ. It costs one step, and for its time a copy of weights and optimizer state.
    """
    ema = rule.ema if rule else None
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    states = [v for p in parameters for v in optimizer.state[p].values() if isinstance(v, Tensor)]
    buffers = list(model.buffers())
    live = [*parameters, *states, *buffers, *(ema.shadow.values() if ema else ())]
    random = rng_state()
    with torch.no_grad():
        other = [t.detach().clone() for t in live]
    loss = loss_of()
    loss.backward()  # type: ignore[no-untyped-call]
    if rule and rule.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, rule.clip_value)
    if rule and rule.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, rule.clip_norm)
    type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]  # without the hooks: no update of the run
    optimizer.zero_grad()
    expected = float(loss.detach())
    del loss
    if ema:
        averages, weights = ema.pairs()
        torch._foreach_lerp_(
            averages, [w.detach().to(a.dtype) for a, w in zip(averages, weights, strict=True)], ema.weight()
        )
    moved = _distance(live[: len(parameters)], other)
    _swap(live, other)  # as before the step; `other` is as after it
    set_rng_state(random)
    found = float(take())
    apart = _distance(live[: len(parameters)], other)
    loss_differs = abs(found - expected) > _LOSS * max(abs(expected), 1e-3)
    if expected != expected or not (loss_differs or apart > _UPDATE * moved):
        return ""
    _swap(live, other)
    return (
        f"its first step differs from the eager one (loss {found:.6g} instead of {expected:.6g}, "
        f"weights by {apart / moved if moved else apart:.1g} of their change)"
    )


def _distance(first: list[Tensor], second: list[Tensor]) -> float:
    with torch.no_grad():
        norms = [torch.linalg.vector_norm((a - b).double()) for a, b in zip(first, second, strict=False)]
        return float(torch.linalg.vector_norm(torch.stack(norms)))


def _swap(first: list[Tensor], second: list[Tensor]) -> None:
    with torch.no_grad():
        for a, b in zip(first, second, strict=True):
            kept = a.clone()
            a.copy_(b)
            b.copy_(kept)
