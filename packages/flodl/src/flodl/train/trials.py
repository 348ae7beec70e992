"""Try something on a model and its optimizer, and leave no trace of it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint.rng import rng_state, set_rng_state
from flodl.data import to_device
from flodl.errors import ConfigError
from flodl.train.checks import check_loss, check_optimizer
from flodl.train.compiled import TrainFn, split_result
from flodl.train.trainer import Trainer

__all__ = ["Setup", "Snapshot", "untouched"]


@contextmanager
def untouched(model: nn.Module, optimizer: Optimizer) -> Iterator[Snapshot]:
    """Whatever is trained inside, everything in `Snapshot` is the same afterwards, also after an error.

    Hooks on the optimizer's steps (a trainer counts in one) are off inside.
    """
    snapshot = Snapshot(model, optimizer)
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    try:
        yield snapshot
    finally:
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks
        snapshot.restore()


class Snapshot:
    """Parameters, buffers, gradients and their absence, modes, the optimizer's state and settings, and the states of the
    global random generators. The copies are in the CPU's memory, so that a GPU has as much free as without them.

    Every tensor stays the same object. Other attributes of modules are not looked at.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        parameters = [*model.parameters(), *(p for group in optimizer.param_groups for p in group["params"])]
        self._gradients = [(p, p.grad) for p in dict.fromkeys(parameters)]
        self._modes = [(module, module.training) for module in model.modules()]
        self._buffers = [(module._buffers, dict(module._buffers)) for module in model.modules()]
        self._state = {key: (values, _shallow(values)) for key, values in optimizer.state.items()}
        self._groups = [(group, _shallow(group)) for group in optimizer.param_groups]
        held: list[Any] = [*parameters, *(g for _, g in self._gradients), *model.buffers()]
        for _, values in [*self._state.values(), *self._groups]:
            held += values.values()
        tensors = {id(t): t for t in held if isinstance(t, Tensor)}
        self._values = [(t, t.detach().to("cpu", copy=True)) for t in tensors.values()]
        self._rng = rng_state()

    @torch.no_grad()
    def restore(self) -> None:
        """Everything is as it was. May be called again."""
        for tensor, value in self._values:
            tensor.copy_(value)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for module, training in self._modes:
            module.training = training
        state = self._optimizer.state
        for key in [key for key in state if key not in self._state]:
            del state[key]
        state.update({key: values for key, (values, _) in self._state.items()})
        for values, before in [*self._buffers, *self._state.values(), *self._groups]:
            values.clear()
            values.update(_shallow(before))
        set_rng_state(self._rng)


def _shallow(values: dict[str, Any]) -> dict[str, Any]:
    """The same tensors and the same list of parameters; copies of all else that may be changed in place."""
    return {
        name: value if name == "params" or value is None or isinstance(value, Tensor) else copy.deepcopy(value)
        for name, value in values.items()
    }


class Setup(NamedTuple):
    """How one update is made from a batch: as a trainer does it, or plainly."""

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    clip_norm: float | None = None
    clip_value: float | None = None
    scaler: torch.amp.GradScaler | None = None

    @classmethod
    def of(cls, subject: Trainer | nn.Module, optimizer: Optimizer | None) -> Setup:
        if isinstance(subject, Trainer):
            training = subject.config.training
            # its scaler is of no use here: its scale would have to be restored
            scaler = torch.amp.GradScaler(subject.device.type) if training.amp == "fp16" else None
            return cls(
                subject.model, subject.optimizer, subject.device, training.clip_norm, training.clip_value, scaler
            )
        if optimizer is None:
            raise ConfigError("a model needs its optimizer here: give optimizer=..., or a trainer instead of the model")
        check_optimizer(optimizer, subject)
        return cls(subject, optimizer, next(subject.parameters()).device)

    def loss(self, train_fn: TrainFn, batch: Any) -> Tensor:
        loss, _ = split_result(train_fn(self.model, to_device(batch, self.device)))
        check_loss(loss, self.model)
        return loss

    def update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        (self.scaler.scale(loss) if self.scaler else loss).backward()  # type: ignore[no-untyped-call]
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, self.clip_value)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
