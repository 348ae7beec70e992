"""What a wrong loss, batch or optimizer is told, before or at the first step."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import LBFGS, Optimizer

from flodl.data import Loader, Position
from flodl.data.batch import leaves
from flodl.errors import DataError, TrainingError
from flodl.train.hooks import OwnHook

__all__ = ["OutputWatch", "check_gradients", "check_loss", "check_optimizer"]


def check_loss(loss: Any, model: nn.Module) -> None:
    """Raise `TrainingError` for a loss that cannot be trained on: no tensor, not one number, without gradient."""
    if not isinstance(loss, Tensor):
        remedy = "does the train_fn return it?" if loss is None else "do not call item() on it"
        raise TrainingError(f"the loss is {type(loss).__name__}, not a tensor: {remedy}")
    if loss.dim() != 0:
        raise TrainingError(
            f"the loss has shape {tuple(loss.shape)}, not (): reduce it to one number, such as loss.mean()"
        )
    if not loss.requires_grad:
        if not torch.is_grad_enabled():
            why = "it was computed under no_grad or inference_mode"
        elif not any(p.requires_grad for p in model.parameters()):
            why = "every parameter of the model is frozen"
        else:
            why = "it does not depend on the model (detach, no_grad, item, argmax or numpy on the way?)"
        raise TrainingError(f"the loss has no gradient: {why}")


def check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Raise `TrainingError` for an optimizer of another model or with a learning rate that is no number."""
    if type(optimizer) is LBFGS:
        raise TrainingError("LBFGS evaluates the loss itself, several times a step: it cannot be trained with here")
    own = {id(p) for p in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if own and not any(id(p) in own for p in held):
        raise TrainingError(
            f"the optimizer holds none of the model's parameters: make it as {type(optimizer).__name__}(model.parameters())"
        )
    for number, group in enumerate(optimizer.param_groups):
        if not math.isfinite(group.get("lr", 0.0)):
            raise TrainingError(f"the learning rate of parameter group {number} is {float(group['lr'])}")


def check_gradients(model: nn.Module) -> None:
    """Raise `TrainingError` when a step is taken without a loss and nobody has called backward."""
    if not any(p.grad is not None for p in model.parameters()):
        raise TrainingError("no parameter has a gradient: call step(loss), or loss.backward() before step()")


class FirstForward:
    """Watches the model's first forward: a BatchNorm that would fail on this epoch's last batch, the number of outputs."""

    def __init__(self, model: nn.Module, samples: int, batch_size: int) -> None:
        self.outputs: int | None = None
        self._hooks = [model.register_forward_hook(OwnHook(self._see_outputs))]
        if (samples % batch_size or batch_size) == 1:
            self._why = (
                "batches of 1"
                if batch_size == 1
                else f"{samples} samples in batches of {batch_size} leave a last batch of 1"
            )
            self._remedy = (
                "choose a larger batch_size" if batch_size == 1 else "choose another batch_size, or drop_last=True"
            )
            for name, module in model.named_modules():
                if isinstance(module, _BatchNorm):
                    self._hooks.append(module.register_forward_pre_hook(OwnHook(partial(self._see_batch_norm, name))))

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _see_outputs(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() == 2:
            self.outputs = output.shape[1]

    def _see_batch_norm(self, name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        # One value per channel has no variance. Torch says so too, but not before the epoch's last batch.
        if module.training and args[0].dim() >= 2 and args[0].shape[2:].numel() == 1:
            raise DataError(f"{self._why}, which '{name}' ({type(module).__name__}) cannot normalise: {self._remedy}")


class OutputWatch:
    """Knows how many outputs the model has since its first forward, and so which labels cannot be."""

    def __init__(self, model: nn.Module, loader: Loader) -> None:
        self.watching = False
        self._model, self._loader = model, loader
        self._first: FirstForward | None = None
        self._outputs: int | None = None

    def start(self) -> None:
        """Watch the forward that comes, if it is the first one."""
        if self._outputs is None:
            self._first = FirstForward(self._model, self._loader.samples or 0, self._loader.batch_size)
            self.watching = True

    def stop(self) -> None:
        """A forward is done, or will not come."""
        if self._first:
            self._first.close()
            self._outputs, self._first = self._first.outputs or 0, None
            self.watching = False

    def explain(self, batch: Any, position: Position, samples: int) -> str | None:
        """Which label of the batch of `samples` at `position` is outside the model's outputs, and where; None if none is."""
        outputs = self._first.outputs if self._first else self._outputs
        if not outputs:
            return None
        order = self._loader.order(position.epoch, position.sample)
        return None if order is None else _misfit(batch, order[:samples], outputs)


def _misfit(batch: Any, items: Tensor, outputs: int) -> str | None:
    """`items: (batch,)`: the places of the batch's samples in the dataset."""
    for place, leaf in leaves(batch):
        # labels of another device cannot be read after its loss failed
        if (
            not isinstance(leaf, Tensor)
            or leaf.dtype not in _LABELS
            or leaf.shape != items.shape
            or leaf.device.type != "cpu"
        ):
            continue
        wrong = ((leaf >= outputs) | ((leaf < 0) & (leaf != -100))).nonzero()
        if len(wrong):
            row = int(wrong[0])
            return (
                f"label {int(leaf[row])} (batch{place}, row {row}, item {int(items[row])} of the dataset) is outside "
                f"0..{outputs - 1}: the model has {outputs} outputs"
            )
    return None


_LABELS = (torch.int64, torch.int32, torch.uint8)
