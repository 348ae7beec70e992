"""Averages of a model's weights over training: exponential (`Ema`) and plain (`Swa`); statistics that belong to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flodl.checkpoint.keys import unwrapped
from flodl.data.batch import to_device
from flodl.errors import CheckpointError, ConfigError, DataError, TrainingError, nearest

__all__ = ["Average", "Ema", "Swa", "update_batch_norm"]

_LOW = (torch.float16, torch.bfloat16)


class Average(ABC):
    """A running average of a model's trainable parameters and of its normalisation layers' running statistics.

    `shadow`: name -> average, (shape of the parameter); tied parameters are in it once. Averages of float16 and
    bfloat16 are kept in float32: small changes would be rounded away. Frozen parameters do not change and are not in
    it; one that is unfrozen joins with its value at the next `update`. Other buffers (masks, counters, codebooks) mean
    nothing as an average: the averaged model has them as they are now.
    """

    def __init__(self, model: nn.Module) -> None:
        self.updates = 0
        self.shadow: dict[str, Tensor] = {}
        self._applied = False
        # Where each tensor is looked up, not the tensor: `model.to(...)` replaces buffers.
        self._places, self._frozen = _places(model)
        for name in self._places:
            if name not in self._frozen:
                self._join(name)

    @abstractmethod
    def weight(self) -> float:
        """What the live model counts for in the next `update`."""

    @torch.no_grad()
    def update(self) -> None:
        """Take the model as it is now into the average. Call it after each update of the optimizer."""
        if self._applied:
            raise TrainingError("the average is in the model (applied()): updating it now would average the average")
        averages, live = self.pairs()
        torch._foreach_lerp_(averages, [t.to(a.dtype) for a, t in zip(averages, live, strict=True)], self.weight())
        self.updates += 1

    @torch.no_grad()
    def restart(self) -> None:
        """Begin anew with the model as it is now."""
        averages, live = self.pairs()
        _copy(averages, live)
        self.updates = 0

    def pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """The averages and the model's own tensors, in the same order."""
        for name in [name for name in self._frozen if self._live(name).requires_grad]:
            self._join(name)
        return list(self.shadow.values()), [self._live(name) for name in self.shadow]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averages inside, and its own values again afterwards, bit for bit, also after an error."""
        if self._applied:
            raise TrainingError("the average is in the model already: applied() is not to be nested")
        averages, live = self.pairs()
        with torch.no_grad():
            own = [t.detach().clone() for t in live]
        self._applied = True
        try:
            _copy(live, averages)
            yield
        finally:
            _copy(live, own)
            self._applied = False

    def state_dict(self) -> dict[str, Any]:
        """`updates` and `shadow`, in plain types; the tensors are the average's own."""
        return {"updates": self.updates, "shadow": dict(self.shadow)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()`. Raises `CheckpointError`, with nothing changed, for one of another model."""
        shadow = state["shadow"]
        for name, value in shadow.items():
            if name not in self._places:
                raise CheckpointError(f"the model has no {name!r} to be averaged.{nearest(name, self._places)}")
            if (shape := self._live(name).shape) != value.shape:
                raise CheckpointError(
                    f"the average of {name!r} has shape {tuple(value.shape)}, the model's is {tuple(shape)}"
                )
        if missing := [name for name in self.shadow if name not in shadow]:
            raise CheckpointError(f"the saved averages lack {', '.join(map(repr, missing))}, which the model trains")
        for name in shadow:
            if name in self._frozen:
                self._join(name)
        _copy(list(self.shadow.values()), [shadow[name] for name in self.shadow])
        self.updates = int(state["updates"])

    def _live(self, name: str) -> Tensor:
        store, key = self._places[name]
        tensor: Tensor = store[key]
        return tensor

    def _join(self, name: str) -> None:
        live = self._live(name).detach()
        if live.device.type == "meta":
            raise TrainingError(f"{name!r} is on the meta device: it has no values to be averaged")
        self.shadow[name] = live.to(torch.float32, copy=True) if live.dtype in _LOW else live.clone()
        self._frozen.discard(name)


class Ema(Average):
    """The exponential moving average: `average = decay · average + (1 - decay) · weights` at each `update`.

    Averaging the iterates of stochastic approximation is Polyak's (Polyak and Juditsky 1992, doi:10.1137/0330046).
    decay: from 0 to 1, such as 0.999; about 1 / (1 - decay) updates count. warmup: begin with a decay of
    (1 + n) / (10 + n) at update n = 0, 1, ... until that reaches `decay`, so that the first weights are soon forgotten.

    ```python
    ema = Ema(model, 0.999)
    ...                       # after each optimizer.step(): ema.update()
    with ema.applied():
        evaluate(model)
    ```
    """

    def __init__(self, model: nn.Module, decay: float, *, warmup: bool = False) -> None:
        if not 0 <= decay <= 1:
            raise ConfigError(f"the decay of an average is {decay}; it must be from 0 to 1, such as 0.999")
        super().__init__(model)
        self.decay = decay
        self.warmup = warmup

    def weight(self) -> float:
        """1 - the decay of the next `update`."""
        n = self.updates
        return 1 - (min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay)


class Swa(Average):
    """Stochastic weight averaging: the plain mean of the model at each `update` (Izmailov et al., 2018).

    Call `update()` at the end of each epoch of the last part of training, then, in a model with BatchNorm, re-estimate
    the statistics of the averaged weights with `update_batch_norm` inside `applied()`.
    """

    def weight(self) -> float:
        """1 / (updates + 1)."""
        return 1 / (self.updates + 1)


@torch.no_grad()
def update_batch_norm(
    model: nn.Module,
    batches: Iterable[Any],
    device: torch.device | str | None = None,
    *,
    forward: Callable[[nn.Module, Any], object] | None = None,
) -> None:
    """Estimate the running statistics of the model's BatchNorm layers anew, as means over `batches`.

    batches: each is moved to `device`, if given. forward: how the model takes a batch; `model(batch)` without it, or
    `model(batch[0])` where the batch is a tuple or list.

    Each batch counts as much as it has values, so a short one counts less. All other layers are in evaluation mode (no
    dropout: the statistics are for evaluation). A layer that sees no value keeps its statistics, and so does one that
    is in evaluation mode on purpose, which is so if the model itself is in training mode. Momentum and mode of every
    module are as before afterwards; `num_batches_tracked` is the number of batches seen here, so that a layer with
    `momentum=None` goes on with the right mean.

    Raises `DataError` when there is no batch. After this or any other error the statistics are the former ones.
    """
    layers = [m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None]
    layers = [m for m in layers if m.training or not model.training]
    if not layers:
        return
    call = forward or _call
    modes = [(module, module.training) for module in model.modules()]
    momenta = [(layer, layer.momentum) for layer in layers]
    statistics = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers(recurse=False)]
    hooks = []
    try:
        model.eval()
        for layer in layers:
            layer.training = True
            hooks.append(layer.register_forward_pre_hook(partial(_weigh, _Seen())))
        empty = True
        for batch in batches:
            call(model, batch if device is None else to_device(batch, torch.device(device)))
            empty = False
        if empty:
            raise DataError("there is no batch to estimate the statistics of BatchNorm from")
    except BaseException:
        for buffer, before in statistics:
            buffer.copy_(before)
        raise
    finally:
        for hook in hooks:
            hook.remove()
        for layer, momentum in momenta:
            layer.momentum = momentum
        for module, training in modes:
            module.training = training


class _Seen:
    values = 0


def _weigh(seen: _Seen, layer: nn.Module, args: tuple[Any, ...]) -> None:
    """Before a layer's forward: the momentum that makes its running statistics the mean over all values so far."""
    assert isinstance(layer, _NormBase)
    if not seen.values:
        layer.reset_running_stats()
    values = args[0].numel()
    seen.values += values
    layer.momentum = values / seen.values


def _call(model: nn.Module, batch: Any) -> object:
    return model(batch[0] if isinstance(batch, (tuple, list)) else batch)


def _places(model: nn.Module) -> tuple[dict[str, tuple[dict[str, Any], str]], set[str]]:
    """Where each parameter and running statistic is, by name, tied ones once; and which of them are frozen."""
    found: dict[str, tuple[dict[str, Any], str]] = {}
    frozen: set[str] = set()
    seen: set[int] = set()
    for path, module in unwrapped(model).named_modules():
        stores: list[tuple[dict[str, Any], Iterable[str]]] = [(module._parameters, list(module._parameters))]
        if isinstance(module, _NormBase):
            stores.append((module._buffers, ("running_mean", "running_var")))
        for store, keys in stores:
            for key in keys:
                tensor = store.get(key)
                if tensor is None or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                # torch.compile's prefix is no part of a name
                name = ".".join(part for part in (*path.split("."), key) if part not in ("", "_orig_mod"))
                found[name] = (store, key)
                if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
                    frozen.add(name)
    return found, frozen


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(to, values, strict=True):
            tensor.copy_(value)
