"""Find a batch size by trying it; what was trained leaves no trace in the model."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from torch.optim import Optimizer

from flodl.data import as_dataset, epoch_order, to_device
from flodl.errors import ConfigError, TrainingError
from flodl.train.compiled import TrainFn
from flodl.train.trainer import Trainer
from flodl.train.trials import Setup, untouched

__all__ = ["BatchSizes", "Trial", "find_batch_size"]

_SHARE_OF_MEMORY = 0.8  # of what is available, without a limit from the caller
_NEARLY_BEST = 0.95  # of the best throughput is as good


class Trial(NamedTuple):
    """A batch size that was tried, or ruled out by its estimated memory (`peak_bytes`). None: not measured."""

    size: int
    fits: bool
    samples_per_second: float | None
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """`largest`: the largest size that fits. `suggestion`: the smallest that trains nearly as many samples a second (95%) as
    the fastest. `trials`: all sizes that were tried, in order."""

    largest: int
    suggestion: int
    trials: list[Trial]

    def __str__(self) -> str:
        rows = ["batch size   samples/s   memory (MiB)"]
        for size, fits, speed, peak in sorted(self.trials):
            memory = "-" if peak is None else f"{peak / 2**20:.0f}"
            rows.append(f"{size:10}   {'does not fit' if not fits else f'{speed:9.0f}'}   {memory:>12}")
        return "\n".join([*rows, f"largest: {self.largest}, suggestion: {self.suggestion}"])


def find_batch_size(
    subject: Trainer | nn.Module,
    train_fn: TrainFn,
    *,
    optimizer: Optimizer | None = None,
    dataset: Any = None,
    smallest: int = 1,
    largest: int | None = None,
    memory: int | None = None,
    steps: int = 3,
) -> BatchSizes:
    """Train with doubled batch sizes until one does not fit, then halve the interval down to the largest that fits.

    subject: a trainer, or a model with its `optimizer` and `dataset` (what `fl.data.as_dataset` takes). train_fn: as for
    `find_learning_rate`. largest: at most the size of the dataset, which it is without it. steps: how many updates of each
    size are timed, after one that is not. Where a trainer groups samples by length, the longest are taken.

    A size does not fit when memory runs out (CUDA's error or Python's), or when a step takes more than `memory` bytes beyond
    what was in use: on a CPU, without it, four fifths of what is available, since a system out of memory kills the process.
    There, a size whose memory, by those before it, would be too large is not tried. What was trained is undone, as by
    `find_learning_rate`.

    Raises `TrainingError` when not even `smallest` fits.
    """
    setup = Setup.of(subject, optimizer)
    lengths = None
    if dataset is None:
        if not isinstance(subject, Trainer) or subject._loader is None:
            raise ConfigError("find_batch_size needs a dataset: give it one, or a trainer that has one")
        dataset, lengths = subject._loader.dataset, subject._loader._lengths
    data = as_dataset(dataset)
    most = min(largest or len(data), len(data))
    if not 1 <= smallest <= most or steps < 1:
        raise ConfigError(
            f"needed are 1 <= smallest <= {most} (the most samples) and steps >= 1, not {smallest}, {steps}"
        )
    if memory is None and setup.device.type == "cpu":
        memory = int(_SHARE_OF_MEMORY * psutil.virtual_memory().available)
    order = epoch_order(len(data), 0, 0) if lengths is None else lengths.argsort(descending=True)
    trials: list[Trial] = []
    with untouched(setup.model, setup.optimizer) as before:
        base = _in_use(setup.device)

        def fits(size: int) -> bool:
            if memory is not None and (estimate := _estimate(trials, size)) > memory:
                trials.append(Trial(size, False, None, estimate))
                return False

            def batch() -> Any:
                return to_device(data.fetch(order[:size]), setup.device)

            found = _trial(setup, train_fn, batch, size, steps, base)
            before.restore()
            if memory is not None and found.peak_bytes is not None and found.peak_bytes > memory:
                found = found._replace(fits=False)
            trials.append(found)
            return found.fits

        size = _largest(fits, smallest, most)
    if size is None:
        raise TrainingError(f"not even a batch of {smallest} fits into memory ({trials[-1].peak_bytes} bytes)")
    speeds = {t.size: t.samples_per_second for t in trials if t.fits and t.samples_per_second is not None}
    enough = _NEARLY_BEST * max(speeds.values())
    return BatchSizes(largest=size, suggestion=min(s for s, v in speeds.items() if v >= enough), trials=trials)


def _largest(fits: Callable[[int], bool], smallest: int, most: int) -> int | None:
    good, size = None, smallest
    while fits(size):
        good = size
        if size == most:
            return good
        size = min(2 * size, most)
    if good is None:
        return None
    bad = size
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def _estimate(trials: Sequence[Trial], size: int) -> int:
    """The memory of a step by the line through the two largest sizes that fitted; proportional after only one."""
    known = sorted((t.size, t.peak_bytes) for t in trials if t.fits and t.peak_bytes is not None)
    if not known:
        return 0
    (low, least), (high, most) = ((0, 0), known[-1]) if len(known) == 1 else known[-2:]
    return int(most + max(0, most - least) / (high - low) * (size - high))


def _trial(setup: Setup, train_fn: TrainFn, make_batch: Callable[[], Any], size: int, steps: int, base: int) -> Trial:
    watch = _peak_memory(setup.device)
    try:
        with watch:
            seconds = _timed(setup, train_fn, make_batch(), steps)
        return Trial(size, True, size * steps / seconds, watch.peak - base if watch.peak else None)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
    gc.collect()  # only here is the error forgotten, and with it the frames that held what was allocated
    if setup.device.type == "cuda":
        torch.cuda.empty_cache()
    return Trial(size, False, None, None)


def _timed(setup: Setup, train_fn: TrainFn, batch: Any, steps: int) -> float:
    setup.update(setup.loss(train_fn, batch))  # allocates the optimizer's state
    started = _now(setup.device)
    for _ in range(steps):
        setup.update(setup.loss(train_fn, batch))
    return _now(setup.device) - started


def _out_of_memory(error: BaseException) -> bool:
    said = str(error)
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and ("DefaultCPUAllocator" in said or "CUBLAS_STATUS_ALLOC_FAILED" in said)
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _in_use(device: torch.device) -> int:
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def _peak_memory(device: torch.device) -> _OnGpu | _HighWater | _Sampled:
    if device.type == "cuda":
        return _OnGpu(device)
    return _HighWater() if os.access(_HighWater.RESET, os.W_OK) else _Sampled()


class _OnGpu:
    """The most memory in use inside, as torch counts it."""

    def __init__(self, device: torch.device) -> None:
        self.peak, self._device = 0, device

    def __enter__(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def __exit__(self, *_: object) -> None:
        self.peak = torch.cuda.max_memory_allocated(self._device)


class _HighWater:
    """The same for this process, as Linux counts it."""

    RESET = Path("/proc/self/clear_refs")

    def __init__(self) -> None:
        self.peak = 0

    def __enter__(self) -> None:
        self.RESET.write_text("5")  # the high-water mark is what is in use now

    def __exit__(self, *_: object) -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                self.peak = int(line.split()[1]) * 1024


class _Sampled:
    """The same where nobody counts: looked at every millisecond."""

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flodl-memory", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while True:
            self.peak = max(self.peak, int(process.memory_info().rss))
            if self._done.wait(0.001):
                return
