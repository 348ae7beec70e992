"""The recorder: what a training process calls. Measuring is an append to a queue; everything else is the writer's."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from flodl.errors import StoreError
from flodl.monitor.control import Request
from flodl.monitor.environment import describe_environment
from flodl.monitor.resources import ResourceSampler
from flodl.monitor.schema import FILE_NAME
from flodl.monitor.session import open_run
from flodl.monitor.tables import Artifact, Config, Cut, End, Epoch, Event, Record, Taken, Totals
from flodl.monitor.values import dumps, to_float
from flodl.monitor.writer import DirectQueue, Flush, Writer

__all__ = ["Recorder"]

_INT_LIMIT = 2**63  # SQLite's integers


class Recorder:
    """Records one run into `folder/<run id>/run.db`.

    Every method may be called from any thread. In a forked child (a data loader's worker) they all do nothing.
    After `finish`, what is still recorded is committed at once, by the caller; what another thread records while `finish`
    runs can be lost.

    Args:
        folder: where the runs are; made when missing.
        run_id: names the run's folder; by default its start in UTC and four random digits (`20261201-002339-3f9a`).
        name: a title for people.
        config: the resolved configuration, nested or with dotted names; any value.
        origins: dotted name -> where that field was set (`fdl.yml:12`, `default`).
        hardware: added to what is found out here (CPU, cores, RAM, GPUs).
        seeds: name -> seed.
        total_epochs, total_steps: when known already, else see `totals`.
        resume: goes on with the existing run `run_id`.

    Raises:
        StoreError: the folder cannot be written; the run exists already, or (to resume) does not exist or still runs.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        run_id: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        origins: Mapping[str, str] | None = None,
        hardware: Mapping[str, Any] | None = None,
        seeds: Mapping[str, int] | None = None,
        total_epochs: int | None = None,
        total_steps: int | None = None,
        resume: bool = False,
    ) -> None:
        sampler = ResourceSampler()
        try:
            environment = describe_environment(sampler)
            self.folder = open_run(
                Path(folder).absolute(),  # the program may change its folder
                run_id,
                resume=resume,
                name=name,
                environment=replace(environment, hardware={**environment.hardware, **(hardware or {})}),
                seeds=seeds or {},
                config=Config.of(config or {}, origins or {}),
            )
            self.path = self.folder / FILE_NAME
            self._requests: deque[Request] = deque()
            self._writer: Writer | None = Writer(self.path, sampler, self._requests.append)
        except BaseException:
            sampler.close()
            raise
        self.run_id = self.folder.name
        self._queue: deque[Record | Flush] | DirectQueue = self._writer.queue
        self._ended = False
        self._error_before = getattr(sys, "last_value", None)
        _live.add(self)
        atexit.register(self._at_exit)
        if total_epochs is not None or total_steps is not None:
            self.totals(epochs=total_epochs, steps=total_steps)

    def metric(self, name: str, value: float, *, step: int, epoch: int | None = None, rank: int = 0) -> None:
        """One value, at the cost of an append. Anything that `float` takes will do; a tensor on a GPU waits for the GPU.

        Raises:
            StoreError: `value` is no number, or `step` no integer.
        """
        if not (
            value.__class__ is float
            and name.__class__ is str
            and step.__class__ is rank.__class__ is int
            and -(2**63) <= step < 2**63  # constants to the compiler, unlike _INT_LIMIT
            and -(2**63) <= rank < 2**63
            and (epoch is None or (epoch.__class__ is int and -(2**63) <= epoch < 2**63))
        ):
            name, value, step, epoch, rank = _checked(name, value, step, epoch, rank)
        self._queue.append((name, value, step, epoch, rank, time.time()))

    def metrics(self, step: int, values: Mapping[str, float], *, epoch: int | None = None, rank: int = 0) -> None:
        """Several values of one step, with one time.

        Raises:
            StoreError: one of them is no number, or `step` no integer; nothing is recorded then.
        """
        now = time.time()
        if not (
            step.__class__ is rank.__class__ is int
            and -(2**63) <= step < 2**63  # constants to the compiler, unlike _INT_LIMIT
            and -(2**63) <= rank < 2**63
            and (epoch is None or (epoch.__class__ is int and -(2**63) <= epoch < 2**63))
        ):
            _, _, step, epoch, rank = _checked("", 0.0, step, epoch, rank)
        points: list[Record] = [
            (name, value, step, epoch, rank, now)
            if value.__class__ is float and name.__class__ is str
            else (str(name), to_float(name, value), step, epoch, rank, now)
            for name, value in values.items()
        ]
        self._queue.extend(points)

    def epoch(
        self, number: int, metrics: Mapping[str, float], *, seconds: float | None = None, step: int | None = None
    ) -> None:
        """The results of an epoch that took `seconds`; `step` is the last one that was recorded unless given."""
        self._queue.append(
            Epoch(
                number=_integer("epoch", number),
                step=None if step is None else _integer("step", step),
                time=time.time(),
                seconds=None if seconds is None else to_float("seconds", seconds),
                metrics={str(name): to_float(name, value) for name, value in metrics.items()},
            )
        )

    def event(
        self,
        kind: str,
        *,
        start: float | None = None,
        seconds: float | None = None,
        step: int | None = None,
        rank: int = 0,
        **data: Any,
    ) -> None:
        """Something that happened: "sync", "checkpoint", "warning", ... `start` (seconds since 1970) and `seconds` place it
        on the timeline: without `start` it ends now, without `seconds` it is an instant."""
        now = time.time()
        self._queue.append(
            Event(
                kind=kind,
                step=None if step is None else _integer("step", step),
                rank=_integer("rank", rank),
                time=now,
                start=now - (seconds or 0.0) if start is None else to_float("start", start),
                seconds=None if seconds is None else to_float("seconds", seconds),
                data=dumps(data),
            )
        )

    def artifact(self, name: str, text: str) -> None:
        """A text that belongs to the run (the model's summary, its drawing). A later one of the same name replaces it."""
        self._queue.append(Artifact(name=name, text=text, time=time.time()))

    def totals(self, *, epochs: int | None = None, steps: int | None = None) -> None:
        """How long the training will be, as soon as that is known. None leaves what was said before."""
        self._queue.append(
            Totals(
                epochs=None if epochs is None else _integer("epochs", epochs),
                steps=None if steps is None else _integer("steps", steps),
            )
        )

    def cut_after(self, step: int, mark: int | None = None) -> None:
        """Deletes points, epochs and events after `step`, so that the curves of a resumed run do not overlap.

        mark: what `flush` returned when the checkpoint was made: what was recorded since goes, too, even if it belongs to
        the same step (an evaluation, the end of the epoch).

        Raises:
            StoreError: it could not be committed.
        """
        mark = None if mark is None else _integer("mark", mark)
        self._queue.append(Cut(step=_integer("step", step), mark=mark, time=time.time()))
        self.flush()

    def requests(self) -> tuple[Request, ...]:
        """What other processes asked for since the last call, each once, oldest first. Nearly free when there is nothing."""
        if not self._requests:
            return ()
        taken = []
        while self._requests:
            request = self._requests.popleft()
            self._queue.append(Taken(request_id=request.id, time=time.time()))
            taken.append(request)
        return tuple(taken)

    def flush(self) -> int | None:
        """Waits until all that was recorded is committed. Returns the highest id of a row until then; None after `finish`.

        Raises:
            StoreError: it could not be; it is kept and tried again.
        """
        return None if self._writer is None else self._writer.flush()

    def finish(self, state: Literal["finished", "stopped", "failed"] = "finished", error: str | None = None) -> None:
        """Ends the run: everything committed, no thread left. The first call decides the state; another does nothing.

        Raises:
            StoreError: some of what was recorded could not be committed.
        """
        writer = self._writer
        if writer is None:
            return
        if not self._ended:
            self._ended = True
            self._queue.append(End(state=state, error=error, time=time.time()))
        try:
            writer.stop()
        finally:
            if not writer.is_alive():  # it is after a Ctrl-C: then the next call completes what this one began
                self._close(writer)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            self.finish("stopped")
        else:
            self.finish("failed", _describe(error))

    def _close(self, writer: Writer) -> None:
        direct = DirectQueue(self.path)
        self._queue = direct
        self._writer = None
        atexit.unregister(self._at_exit)
        self._requests.clear()
        late: list[Record] = []
        while writer.queue:  # another thread recorded while this one ended the run
            record = writer.queue.popleft()
            if not isinstance(record, Flush):
                late.append(record)
        if late:
            direct.extend(late)

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)  # the exception that ended the program
        interactive = hasattr(sys, "ps1") or sys.flags.interactive  # there it is any earlier one
        if error is None or error is self._error_before or isinstance(error, KeyboardInterrupt) or interactive:
            self.finish("stopped")
        else:
            self.finish("failed", _describe(error))

    def _forget(self) -> None:
        """In a forked child: the run is the parent's."""
        self._writer = None
        self._queue = deque(maxlen=0)
        self._requests = deque(maxlen=0)
        atexit.unregister(self._at_exit)


def _checked(
    name: str, value: float, step: int, epoch: int | None, rank: int
) -> tuple[str, float, int, int | None, int]:
    return (
        str(name),
        to_float(name, value),
        _integer("step", step),
        None if epoch is None else _integer("epoch", epoch),
        _integer("rank", rank),
    )


def _integer(what: str, value: object) -> int:
    try:
        number = int(value.__index__())  # type: ignore[attr-defined]
    except (AttributeError, TypeError) as error:
        raise StoreError(f"{what} must be an integer, not {value!r}") from error
    if not -_INT_LIMIT <= number < _INT_LIMIT:
        raise StoreError(f"{what} is out of range: it must fit into 64 bits")
    return number


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


_live: weakref.WeakSet[Recorder] = weakref.WeakSet()
_held: list[threading.Lock] = []
_FORK_SECONDS = 10.0  # a disk that does not answer for longer must not hold up the fork


def _before_fork() -> None:
    for recorder in list(_live):
        writer = recorder._writer
        if writer is not None and writer.busy.acquire(timeout=_FORK_SECONDS):
            _held.append(writer.busy)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    _after_fork()
    for recorder in list(_live):
        recorder._forget()
    _live.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
