"""`Ddp`: several devices by hand, for loops that no trainer owns (GANs, reinforcement learning, progressive growing)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from flodl.distributed.devices import device_of_rank
from flodl.distributed.environment import inside_a_rank
from flodl.distributed.gradients import GradientMean
from flodl.distributed.group import Group
from flodl.distributed.rows import Row
from flodl.errors import ConfigError, DistributedError

__all__ = ["Ddp"]


class Ddp:
    """Exchanges parameters, buffers and gradients of `modules` with the other ranks, when you say so.

    ```python
    ddp = fl.Ddp.wrap(generator, discriminator)       # all ranks begin with rank 0's weights
    loss.backward()
    ddp.all_reduce_gradients(discriminator)           # the mean over ranks, in one collective
    optimizer.step()
    ```
    Each call is a collective: every rank must make it, in the same order. In one process all of them do nothing.
    """

    def __init__(self, modules: tuple[nn.Module, ...], group: Any) -> None:
        self._modules, self._group = modules, group
        self._means: dict[tuple[int, ...], GradientMean] = {}

    @classmethod
    def wrap(cls, *modules: nn.Module, group: dist.ProcessGroup | None = None, timeout: float = 60.0) -> Ddp:
        """Take part with these modules, and give every rank the parameters and buffers of rank 0.

        group: of torch.distributed; without it, the default group where one is initialised, else one is formed as
        torchrun, Slurm or flodl's launcher say. timeout: seconds, of a group that is formed here. Raises ConfigError for
        what is no module, DistributedError when the others do not come or have other parameters.
        """
        flat = tuple(m for given in modules for m in (given if isinstance(given, (list, tuple)) else (given,)))
        for module in flat:
            if not isinstance(module, nn.Module):
                raise ConfigError(f"Ddp.wrap takes modules, not {type(module).__name__}")
        if not flat:
            raise ConfigError("Ddp.wrap takes at least one module")
        if group is not None or dist.is_initialized():
            ddp = cls(flat, _Torch(group))
        elif inside_a_rank():
            ddp = cls(flat, Group.connect(backend="auto", device=device_of_rank("auto"), timeout=timeout))
        else:
            ddp = cls(flat, None)
        ddp._compare()
        ddp.sync_params()
        return ddp

    @property
    def rank(self) -> int:
        """Of this process, from 0."""
        return 0 if self._group is None else int(self._group.rank)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return 1 if self._group is None else int(self._group.size)

    def sync_params(self, *modules: nn.Module, source: int = 0) -> None:
        """Every rank gets the parameters and buffers of rank `source`, of `modules` or of all."""
        if self._group is not None:
            for tensor in self._tensors(modules, parameters=True, buffers=True):
                self._group.broadcast(tensor, source)

    def sync_buffers(self, *modules: nn.Module, source: int = 0) -> None:
        """Every rank gets the buffers of rank `source` (running statistics, counters)."""
        if self._group is not None:
            for tensor in self._tensors(modules, parameters=False, buffers=True):
                self._group.broadcast(tensor, source)

    def all_reduce_gradients(self, *modules: nn.Module) -> None:
        """Each `p.grad` becomes its mean over the ranks. One that no rank has stays None; where some have none, zero counts."""
        self.weighted_all_reduce_gradients(1.0, *modules)

    def weighted_all_reduce_gradients(self, weight: float | Tensor, *modules: nn.Module) -> None:
        """Each `p.grad` becomes sum(weight * grad) / sum(weight) over the ranks. weight: such as this rank's samples; with 0
        its gradients count for nothing, whatever they are."""
        if not float(weight) >= 0:
            raise ConfigError(f"a weight is at least 0, not {float(weight)}")
        if self._group is not None:
            chosen = modules or self._modules
            key = tuple(map(id, chosen))
            if key not in self._means:
                parameters = [p for module in chosen for p in module.parameters()]
                self._means[key] = GradientMean(parameters, self._group)
            self._means[key].reduce(weight, Row())

    def close(self) -> None:
        """Leave the group, if it was formed here."""
        if isinstance(self._group, Group):
            self._group.leave()

    def _tensors(self, modules: Iterable[nn.Module], *, parameters: bool, buffers: bool) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for module in tuple(modules) or self._modules:
            found |= {id(p): p.detach() for p in module.parameters()} if parameters else {}
            found |= {id(b): b.detach() for b in module.buffers()} if buffers else {}
        return list(found.values())

    def _compare(self) -> None:
        if self._group is None:
            return
        shapes = [(tuple(t.shape), str(t.dtype)) for t in self._tensors((), parameters=True, buffers=True)]
        for rank, others in enumerate(self._group.gather(shapes)):
            if others != shapes:
                raise DistributedError(f"rank {rank} has other parameters or buffers than rank {self.rank}")


class _Torch:
    """A group that the caller has made, with the methods that are used here."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    @property
    def rank(self) -> int:
        return dist.get_rank(self._group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self._group)

    def all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self._group)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        place = tensor if tensor.is_contiguous() else tensor.contiguous()
        dist.broadcast(place, group_src=source, group=self._group)
        if place is not tensor:
            with torch.no_grad():
                tensor.copy_(place)

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._group)
        return found
