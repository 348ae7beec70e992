"""Worker processes that fetch batches.

Own, and not torch's `DataLoader`: its signal handler raises a worker's death in whatever line the training is at, without
one (in a thread) it takes five seconds to be noticed, so may leaving the loop, and no batch is named. Here each worker
knows its share of the batches when it starts (every n-th), so nothing is sent to it but leave to go on: a token per
batch. It ends when the pipe does, even if this process is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from flodl.data.transfer import receive, send
from flodl.errors import DataError

__all__ = ["FORKS", "WorkerError", "Workers"]

FORKS = sys.platform == "linux"
"""Workers are forked: at once, sharing the dataset's memory, without asking that it pickles or the script has a main
guard. Elsewhere forking is not safe and the platform's own way is taken."""

_END = object()
_PATIENCE_S = 1.0  # for a worker to end by itself when it is told to


class WorkerError(Exception):
    """A worker's error, with its traceback, or how its process ended."""

    def __init__(self, text: str, original: BaseException | None = None) -> None:
        super().__init__(text)
        self.original = original


class Workers(Iterator[Any]):
    """What `items(number, count)` gives in each of `count` processes, in turns: the first of each, the second of each...

    `ahead`, at least 1: how many items each may have ready or at work. Iteration ends with the first process that has no
    more. `close()` ends all processes; also when an item raises `WorkerError`, it must be called.
    """

    def __init__(self, items: Callable[[int, int], Iterator[Any]], count: int, ahead: int) -> None:
        self._owner = os.getpid()
        self._turn = 0
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context: Any = multiprocessing.get_context("fork" if FORKS else None)
        try:
            for number in range(count):
                ours, theirs = context.Pipe()
                self._pipes.append(ours)
                process = context.Process(
                    target=_serve,
                    args=(theirs, list(self._pipes) if FORKS else [], items, number, count),
                    name=f"flodl-data-{number}",
                    daemon=True,
                )
                with warnings.catch_warnings():  # of other threads: none of theirs is used in a worker
                    warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)
                    process.start()
                self._processes.append(process)
                theirs.close()
                for _ in range(ahead):
                    ours.send_bytes(b"+")
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise DataError(f"The dataset cannot be sent to a worker process: {error}. Use workers=0.") from error
        except BaseException:
            self.close()
            raise

    def __next__(self) -> Any:
        number = self._turn % len(self._processes)
        pipe, process = self._pipes[number], self._processes[number]
        try:
            if pipe not in wait([pipe, process.sentinel]):
                raise EOFError
            kind, value = receive(pipe)
        except (EOFError, ConnectionError) as error:
            raise WorkerError(f"worker process {process.pid} {self._end_of(process)}") from error
        if kind == "item":
            self._turn += 1
            with contextlib.suppress(OSError):  # it has ended since: known when its next item is due
                pipe.send_bytes(b"+")
            return value
        if kind == "end":
            raise StopIteration
        text, pickled = value
        raise WorkerError(text, _unpickled(pickled))

    def stop(self) -> None:
        """Tell the processes to end; `close` waits for it."""
        if os.getpid() == self._owner:  # a forked copy of this object has nothing to end
            for process in self._processes:
                process.terminate()

    def close(self) -> None:
        """End all processes and wait for it. May be called again."""
        if os.getpid() != self._owner:
            return
        self.stop()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._pipes, self._processes = [], []

    @staticmethod
    def _end_of(process: Any) -> str:
        process.join(_PATIENCE_S)
        code = process.exitcode
        if code is None:
            return "closed its pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (the system is out of memory?)" if name == "SIGKILL" else "")


def _serve(
    pipe: Connection,
    inherited: list[Connection],
    items: Callable[[int, int], Iterator[Any]],
    number: int,
    count: int,
) -> None:
    """In the worker: the items of its share, each when there is leave for it."""
    for other in inherited:  # else the pipes would outlive their owner
        other.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the trainer's handlers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the owner decides
    torch.set_num_threads(1)
    share = items(number, count)
    while True:
        try:
            pipe.recv_bytes()
        except (EOFError, OSError):
            return  # the owner has gone, or wants no more
        message: tuple[str, Any]
        try:
            item = next(share, _END)
            message = ("end", None) if item is _END else ("item", item)
        except Exception as error:
            message = ("failed", (traceback.format_exc(), _pickled(error)))
        try:
            send(pipe, message)
        except ConnectionError:
            return
        except Exception as error:  # a batch that does not pickle
            send(pipe, ("failed", (traceback.format_exc(), _pickled(error))))


def _pickled(error: Exception) -> bytes | None:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # an exception with arguments of its own often pickles but does not come back
        return data
    except Exception:
        return None


def _unpickled(data: bytes | None) -> BaseException | None:
    return None if data is None else pickle.loads(data)
