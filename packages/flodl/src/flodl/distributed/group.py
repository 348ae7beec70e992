"""The ranks that train together: one object for all generations of torch's process groups that they form."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from flodl.distributed.environment import Place, host_name
from flodl.distributed.membership import JOINS, Rendezvous, failure
from flodl.errors import ConfigError, DistributedError

__all__ = ["Group", "Pending", "RankLost"]

_LOOK_SECONDS = 0.2  # between looks at the store for ranks that want to join


class RankLost(DistributedError):
    """A collective failed, because a rank is gone or silent. The others can go on: see `Group.reform`."""


class Pending:
    """A collective under way."""

    def __init__(self, work: Any, group: Group) -> None:
        self._work, self._group = work, group
        self._ended: float | None = None
        work.get_future().add_done_callback(self._note)

    def _note(self, _future: Any) -> None:
        self._ended = time.perf_counter()

    def is_done(self) -> bool:
        """Whether it is over, well or not."""
        return bool(self._work.is_completed())

    def wait(self) -> float:
        """Until it is done; returns when that was (`time.perf_counter`). Raises RankLost."""
        with self._group.losses():
            self._work.wait()
        return self._ended if self._ended is not None else time.perf_counter()


class Group:
    """Made by `connect`. Ranks are numbered anew when some are lost or come; `uid` of a process stays.

    Collectives are torch.distributed's, on gloo or NCCL (NCCL has not been run here yet). Each raises `RankLost` when a
    rank does not answer, and DistributedError with another rank's own words when that one said that it failed.
    """

    def __init__(self, place: Place, *, device: torch.device, backend: str, timeout: float, min_ranks: int) -> None:
        self.device, self.timeout, self.min_ranks = device, timeout, min_ranks
        self.uid, self.joined, self.generation = place.uid, place.joining, 0
        self.members: list[int] = list(range(place.ranks))
        """The uids by rank."""
        self.used_by: object = None
        """Who trains with it now."""
        self.lost: list[int] = []
        """Uids that the newest `reform` went on without."""
        self._backend = "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo"
        self._staged = device.type == "cuda" and backend != "nccl"
        self._place = place
        self._store = place.store(timeout)
        self._rendezvous = Rendezvous(self._store, self.uid, timeout)
        self._joins, self._looked = 0, 0.0
        self._hosts = 0  # not known yet
        self._in_host: Any = None  # torch's group of the ranks of this host
        if place.joining:
            self.generation, self.members = self._rendezvous.knock()
            self.uid = self._rendezvous.uid
        self._form()

    @classmethod
    def connect(cls, *, backend: str, device: torch.device, timeout: float, min_ranks: int = 1) -> Group:
        """Meet the others that the launcher, torchrun or Slurm has started. Raises DistributedError if they do not come."""
        kind = (
            "nccl" if backend == "auto" and device.type == "cuda" else "cpu" if backend in ("auto", "gloo") else backend
        )
        if kind == "nccl" and device.type != "cuda":
            raise ConfigError(f'ddp.backend is "nccl", which needs GPUs; this rank trains on {device}')
        return cls(Place.found(), device=device, backend=kind, timeout=timeout, min_ranks=min_ranks)

    @property
    def rank(self) -> int:
        """Of this process among those that train now."""
        return self.members.index(self.uid)

    @property
    def size(self) -> int:
        """How many train now."""
        return len(self.members)

    @property
    def joins(self) -> int:
        """How many processes have asked to come in, so far."""
        now = time.monotonic()
        if self._place.elastic and now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._joins = int(self._store.add(JOINS, 0))
        return self._joins

    # -- collectives

    def hosts(self) -> int:
        """How many machines the ranks are on. All ranks must call it alike: the first time of a generation it is a collective."""
        if not self._hosts:
            names = self.gather(host_name())
            different = list(dict.fromkeys(names))
            with self.losses():
                for host in different:  # each rank takes part in making each group
                    ranks = [rank for rank, name in enumerate(names) if name == host]
                    made = dist.new_group(ranks, timeout=timedelta(seconds=self.timeout), backend=self._backend)
                    if self.rank in ranks:
                        self._in_host = made
            self._hosts = len(different)
        return self._hosts

    def all_reduce(self, tensor: Tensor, *, in_host: bool = False) -> None:
        """Sum over ranks, in place; in_host: over those of this machine, after `hosts()`."""
        among = self._in_host if in_host else None
        with self.losses():
            if self._staged and tensor.is_cuda:
                host = tensor.cpu()
                dist.all_reduce(host, group=among)
                tensor.copy_(host)
            else:
                dist.all_reduce(tensor, group=among)
                if tensor.is_cuda:
                    torch.cuda.synchronize(
                        tensor.device
                    )  # a rank that is lost is noticed here, not at some later kernel

    def all_reduce_async(self, tensor: Tensor) -> Pending:
        """Begin to sum. The tensor must not be touched until it is done."""
        with self.losses():
            if self._staged and tensor.is_cuda:
                host = tensor.cpu()
                return _Staged(dist.all_reduce(host, async_op=True), self, host, tensor)
            return Pending(dist.all_reduce(tensor, async_op=True), self)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Everybody gets the tensor of rank `source`."""
        with self.losses():
            sent = tensor.cpu() if self._staged and tensor.is_cuda else tensor.contiguous()
            dist.broadcast(sent, source)
            if sent is not tensor:
                tensor.copy_(sent)

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value by rank; anything that can be pickled."""
        with self.losses():
            found: list[Any] = [None] * self.size
            dist.all_gather_object(found, value)
            return found

    def broadcast_object(self, value: Any, source: int) -> Any:
        """The value of rank `source`."""
        with self.losses():
            held = [value]
            dist.broadcast_object_list(held, source)
            return held[0]

    @contextmanager
    def losses(self) -> Iterator[None]:
        """Errors of a collective say that a rank is lost, or why it ended."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, DistributedError):
                raise
            self._raise_failure()
            raise RankLost(f"a rank does not answer: {str(error).splitlines()[0]}") from error

    # -- losing and gaining ranks

    def reform(self) -> list[int | None]:
        """After RankLost: go on with those that are left. Returns for each rank now which one it was.

        Raises DistributedError below `min_ranks`, if this process was given up by the others, or if one said why it failed.
        """
        self._raise_failure()
        _let_go(sys.exc_info()[1])
        self._destroy()
        before = list(self.members)
        self.generation += 1
        self.members = self._rendezvous.meet(self.generation, expected=before)
        self._raise_failure()
        self.lost = [uid for uid in before if uid not in self.members]
        if self.uid not in self.members:
            raise DistributedError(
                f"rank {before.index(self.uid)} was silent for too long (ddp.timeout is {self.timeout:g} s): the others "
                "went on without it"
            )
        if self.size < self.min_ranks:
            raise DistributedError(
                f"{self.size} of {len(before)} ranks are left, ddp.min_ranks is {self.min_ranks}: training ends. It can be "
                "resumed from its newest checkpoint, on any number of devices"
            )
        self._form()
        return [before.index(uid) if uid in before else None for uid in self.members]

    def admit(self, joins: int) -> list[int | None]:
        """Let in those that have asked, `joins` in all by now. Every member calls it after the same meeting."""
        before = list(self.members)
        self._destroy()
        self.generation += 1
        if before[0] == self.uid:
            self._rendezvous.open(self.generation, before, joins)
        self.members = self._rendezvous.meet(self.generation, expected=before, joins=joins)
        self._form()
        return [before.index(uid) if uid in before else None for uid in self.members]

    def fail(self, text: str) -> None:
        """Say that training cannot go on, and why: every other rank raises that instead of going on without this one."""
        with suppress(RuntimeError):
            failure(self._store, f"rank {self.members.index(self.uid)}: {text}")

    def leave(self) -> None:
        """An orderly end."""
        self._destroy()

    def _raise_failure(self) -> None:
        try:
            text = failure(self._store)
        except RuntimeError as error:
            raise DistributedError("the launcher has ended, and with it the training") from error
        if text:
            raise DistributedError(text)

    def _form(self) -> None:
        store = PrefixStore(f"g{self.generation}", self._store)
        try:
            dist.init_process_group(
                self._backend,
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self.timeout),
            )
        except RuntimeError as error:
            self._raise_failure()
            if self.generation:
                raise RankLost(f"the ranks could not form anew: {error}") from error
            raise DistributedError(
                f"rank {self.rank} of {self.size} did not meet the others within {self.timeout:g} s: {error}"
            ) from error

    def _destroy(self) -> None:
        self._hosts, self._in_host = 0, None
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()


def _let_go(error: BaseException | None) -> None:
    """Of the collective that failed: what holds it would keep its sockets open, and a rank that waits for this one's part
    of it would wait until the timeout."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class _Staged(Pending):
    """A sum on the host, for a tensor of a device."""

    def __init__(self, work: Any, group: Group, host: Tensor, tensor: Tensor) -> None:
        super().__init__(work, group)
        self._host, self._tensor = host, tensor

    def wait(self) -> float:
        """Until it is done and copied back."""
        ended = super().wait()
        self._tensor.copy_(self._host)
        return ended
