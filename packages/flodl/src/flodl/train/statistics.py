"""Statistics of gradients, weights and updates, one set for each parameter, every so many updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint.keys import unwrapped
from flodl.errors import ConfigError
from flodl.train.callbacks import Callback, Control, FitState

__all__ = ["Statistics", "gradient_statistics", "module_memory", "weight_statistics"]

_LOW = (torch.float16, torch.bfloat16)


@torch.no_grad()
def gradient_statistics(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of each gradient `name`: `grad_norm/name` (Euclidean), `grad_max/name` (largest absolute value), `grad_zeros/name` and
    `grad_nonfinite/name` (shares of the values); `grad_norm` is the norm over all. Each a tensor `()` on its device."""
    names, whole = list(gradients), list(gradients.values())
    # the rest of a sparse gradient is zeros, which change neither norm nor maximum
    values = [_wide(g.coalesce().values() if g.is_sparse else g) for g in whole]
    norms = _norms(values)
    result = {"grad_norm": _total(norms)} if norms else {}
    result |= _named("grad_norm", names, norms)
    result |= _named("grad_max", names, _norms(values, math.inf))
    zeros = [1 - v.count_nonzero() / g.numel() for v, g in zip(values, whole, strict=True)]
    result |= _named("grad_zeros", names, zeros)
    finite = [(~v.isfinite()).sum() / g.numel() for v, g in zip(values, whole, strict=True)]
    return result | _named("grad_nonfinite", names, finite)


@torch.no_grad()
def weight_statistics(weights: Mapping[str, Tensor], before: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Of each parameter `name`: `weight_norm/name`, `weight_max/name`, and `weight_norm` over all.

    before: the same parameters before the update; then also `update_ratio/name`, the norm of the change relative to that
    of the weights before it: about 0.001 where training goes well, NaN for weights that were all zero.
    """
    names, values = list(weights), [_wide(w) for w in weights.values()]
    norms = _norms(values)
    result = {"weight_norm": _total(norms)} if norms else {}
    result |= _named("weight_norm", names, norms) | _named("weight_max", names, _norms(values, math.inf))
    if before is not None and names:
        old = [_wide(before[name]) for name in names]
        changes, sizes = _norms(list(torch._foreach_sub(values, old))), _norms(old)
        ratios = [torch.where(s > 0, c / s, math.nan) for c, s in zip(changes, sizes, strict=True)]
        result |= _named("update_ratio", names, ratios)
    return result


def module_memory(model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, int]:
    """The bytes that each module keeps between steps, those inside it included, by label path ("" is the whole model):
    parameters, buffers, gradients and the optimizer's state. What is tied counts where it comes first."""
    total: dict[str, int] = {}
    seen: set[int] = set()
    for path, module in unwrapped(model).named_modules():
        total.setdefault(path, 0)
        for tensor in [*module._parameters.values(), *module._buffers.values()]:
            state = {} if optimizer is None or tensor is None else optimizer.state.get(tensor, {})
            for kept in (tensor, None if tensor is None else tensor.grad, *state.values()):
                if not isinstance(kept, Tensor) or id(kept) in seen:
                    continue
                seen.add(id(kept))
                parts = path.split(".") if path else []
                for depth in range(len(parts) + 1):
                    total[".".join(parts[:depth])] += _bytes(kept)
    return total


class Statistics(Callback):
    """Measures gradients, weights and updates at update 1, 1 + `every`, ... and hands them to `record(**metrics)`, such as
    `trainer.record`. Gradients are taken as the optimizer gets them, after clipping.

    In a loop of your own: `attach(model, optimizer)` before, `report()` after each `optimizer.step()`, `detach()` at the
    end. An update that does not go through `optimizer.step()`, in a compiled step, cannot be seen.
    """

    def __init__(self, record: Callable[..., object], *, every: int = 100) -> None:
        if every < 1:
            raise ConfigError(f"every is {every}; it must be at least 1")
        self.every = every
        self._record = record
        self._updates = 0
        self._found: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] | None = None
        self._hooks: list[Any] = []

    def attach(self, model: nn.Module, optimizer: Optimizer, updates: int = 0) -> None:
        """Look at each update from now on, of which `updates` were made before."""
        self.detach()
        self._updates = updates
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self._parameters = {
            ".".join(part for part in name.split(".") if part != "_orig_mod"): p
            for name, p in unwrapped(model).named_parameters()
            if id(p) in held and p.numel()
        }
        self._hooks = [optimizer.register_step_pre_hook(self._look), optimizer.register_step_post_hook(self._compare)]

    def detach(self) -> None:
        """Look no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def report(self) -> None:
        """Record what was measured since the last call, if anything was."""
        found, self._found = self._found, {}
        if found:
            self._record(**found)

    def _look(self, *_: Any) -> None:
        self._before = None
        if self._updates % self.every == 0:
            trained = {name: p for name, p in self._parameters.items() if p.grad is not None}
            self._before = {name: p.detach().clone() for name, p in trained.items()}
            self._found = gradient_statistics({name: p.grad for name, p in trained.items() if p.grad is not None})

    def _compare(self, *_: Any) -> None:
        self._updates += 1
        if self._before is not None:
            weights = {name: self._parameters[name].detach() for name in self._before}
            self._found |= weight_statistics(weights, self._before)
            self._before = None

    def on_fit_start(self, state: FitState, control: Control) -> None:
        self.attach(state.model, state.optimizer, state.step)

    def on_step_end(self, state: FitState, control: Control) -> None:
        self._updates = state.step
        self.report()

    def on_fit_end(self, state: FitState, control: Control) -> None:
        self.detach()

    def on_exception(self, state: FitState, control: Control, error: BaseException) -> None:
        self.detach()


def _bytes(tensor: Tensor) -> int:
    if tensor.is_sparse:
        return _bytes(tensor._indices()) + _bytes(tensor._values())
    return tensor.numel() * tensor.element_size()


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _LOW else tensor


def _norms(tensors: list[Tensor], order: float = 2) -> list[Tensor]:
    """Zero for a tensor without values: the maximum of nothing is an error."""
    full = [t for t in tensors if t.numel()]
    found = iter(torch._foreach_norm(full, order) if full else ())
    return [next(found) if t.numel() else t.new_zeros((), dtype=t.real.dtype) for t in tensors]


def _total(norms: list[Tensor]) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device, torch.float32) for n in norms]))
    return total


def _named(what: str, names: list[str], values: list[Tensor]) -> dict[str, Tensor]:
    return {f"{what}/{name}": value for name, value in zip(names, values, strict=True)}
