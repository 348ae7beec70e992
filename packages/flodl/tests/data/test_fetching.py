"""The same bits wherever batches are fetched, and nothing left behind however the loop ends."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from flodl import DataError
from flodl.data import Loader
from flodl.data.fetching import Fetching
from flodl.data.pace import Choice, Pace

WAYS = [
    {"workers": 0, "prefetch": 0},
    {"workers": 0, "prefetch": 2},
    {"workers": 0},
    {},
    {"workers": 1},
    {"workers": 2, "prefetch": 1},
    {"workers": 3, "prefetch": 4},
]
IDS = [", ".join(f"{k}={v}" for k, v in way.items()) or "chosen" for way in WAYS]


class Rows(Dataset[Any]):
    """Sample `i` is (i, i); `act(i)` first."""

    def __init__(self, n: int = 60, act: Callable[[int], object] = lambda i: None) -> None:
        self.n, self.act = n, act

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.act(int(index))
        return float(index), int(index)


class Augmented(Dataset[Any]):
    """Draws from every global generator; with `sometimes`, for some samples only, and single gaussians too."""

    def __init__(self, sometimes: bool = False) -> None:
        self.sometimes = sometimes

    def __len__(self) -> int:
        return 61

    def __getitem__(self, index: int) -> Any:
        if self.sometimes and index % 7:
            return torch.zeros(3, dtype=torch.float64), index
        noise = [random.random(), random.gauss(0, 1), np.random.randn(), torch.randn(()).item()]
        return torch.tensor(noise[index % 2 : index % 2 + 3], dtype=torch.float64), index


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def data_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("flodl")]


def rows(loader: Loader, epoch: int, start: int = 0) -> list[Any]:
    return [(x.tolist(), y.tolist()) for x, y in loader.epoch(epoch, start)]


@settings(max_examples=15)
@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 45),
    drop_last=st.booleans(),
    workers=st.sampled_from([0, 2]),
    data=st.data(),
)
def test_every_sample_is_seen_once_an_epoch_from_any_place(
    n: int, batch_size: int, drop_last: bool, workers: int, data: st.DataObject
) -> None:
    batch_size = min(batch_size, n) if drop_last else batch_size
    start = data.draw(st.integers(0, n))
    loader = Loader(Rows(n), batch_size, drop_last=drop_last, workers=workers)
    whole = [int(i) for _, y in Loader(Rows(n), batch_size).epoch(2) for i in y]
    assert sorted(whole) == list(range(n))
    counted = list(loader.counted(2, start))
    left = whole[start:]
    expected = left[: len(left) - len(left) % batch_size] if drop_last else left
    assert [int(i) for (_, y), _ in counted for i in y] == expected
    assert [count for _, count in counted] == [len(y) for (_, y), _ in counted]
    assert not children()


@pytest.mark.parametrize("sometimes", [False, True])
def test_augmentation_is_the_same_wherever_and_whenever_a_batch_is_fetched(sometimes: bool) -> None:
    expected = rows(Loader(Augmented(sometimes), 7, workers=0, prefetch=0), 1)
    assert rows(Loader(Augmented(sometimes), 7, workers=0, prefetch=0), 2) != expected
    assert rows(Loader(Augmented(sometimes), 7, workers=0, prefetch=0, seed=1), 1) != expected
    for way in WAYS:
        loader = Loader(Augmented(sometimes), 7, **way)
        if sometimes and way == {"workers": 0, "prefetch": 2}:
            continue  # may be found out too late: see docs/design/data.md
        for start in (0, 14, 56):
            random.seed(start), np.random.seed(start), torch.manual_seed(start)
            np.random.randn()  # leaves a second gaussian in numpy's cache
            states = (random.getstate(), np.random.get_state()[1:], torch.get_rng_state())
            assert rows(loader, 1, start) == expected[start // 7 :], (way, start)
            after = (random.getstate(), np.random.get_state()[1:], torch.get_rng_state())
            assert states[0] == after[0]
            assert all(np.array_equal(a, b) for a, b in zip(states[1], after[1], strict=True))
            assert torch.equal(states[2], after[2]), "the run's own random numbers were drawn"


def test_a_dataset_that_draws_is_never_prefetched_in_a_thread() -> None:
    seen = set()

    class Watched(Augmented):
        def __getitem__(self, index: int) -> Any:
            seen.add(threading.current_thread())
            return super().__getitem__(index)

    loader = Loader(Watched(), 4, workers=0, prefetch=3)
    assert len(rows(loader, 0)) == 16
    assert seen == {threading.main_thread()}
    assert "random generators" in str(loader.note)


def test_prefetch_fetches_ahead_in_one_thread() -> None:
    seen: list[tuple[int, threading.Thread]] = []
    loader = Loader(Rows(40, lambda i: seen.append((i, threading.current_thread()))), 2, shuffle=False, prefetch=3)
    seen.clear()
    with closing(loader.epoch(0)) as batches:
        for _ in range(10):
            last = next(batches)[1].tolist()
        end = time.monotonic() + 5
        while max(i for i, _ in seen) < last[-1] + 6 and time.monotonic() < end:
            time.sleep(0.01)
        assert max(i for i, _ in seen) == last[-1] + 6, "not three batches ahead"
        assert len({thread for _, thread in seen} - {threading.main_thread()}) == 1
        assert data_threads()
    assert not data_threads()


def test_nothing_is_started_for_fast_data() -> None:
    loader = Loader(Rows(160), 4)
    for epoch in range(2):
        for _ in loader.epoch(epoch):
            assert not data_threads()
            assert not children()
            time.sleep(0.01)
    assert loader.note is None


@pytest.mark.parametrize("way", WAYS, ids=IDS)
@pytest.mark.parametrize("end", ["break", "error", "close", "forgotten", "loader closed"])
def test_however_the_loop_ends_nothing_is_left(way: dict[str, int], end: str) -> None:
    loader = Loader(Rows(4000), 4, **way)
    batches = loader.epoch(0)
    for _ in range(6):
        next(batches)
    if way.get("workers"):
        assert len(children()) == way["workers"]
    if end == "break":
        for _ in batches:
            break
        del batches
    elif end == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in batches:
                raise ZeroDivisionError
        del batches
    elif end == "close":
        batches.close()  # type: ignore[attr-defined]
    elif end == "forgotten":
        del batches, loader
        gc.collect()
    else:
        loader.close()
        assert not children()
        with pytest.raises(DataError, match="closed in this epoch"):
            next(batches)
        assert next(loader.epoch(0))[1].shape == (4,), "a closed loader can be used again"
    assert not children()
    assert not data_threads()


@pytest.mark.parametrize("way", WAYS, ids=IDS)
def test_two_epochs_at_once(way: dict[str, int]) -> None:
    loader = Loader(Rows(20), 4, **way)
    for (a, _), (b, _) in zip(loader.epoch(0), loader.epoch(0), strict=True):
        assert torch.equal(a, b)


def fail(index: int) -> None:
    if index == 33:
        raise OSError("the disk is gone")


def test_an_error_in_a_worker_is_a_data_error_with_its_traceback_and_names_the_batch() -> None:
    loader = Loader(Rows(60, fail), 8, shuffle=False, workers=2)
    got = []
    with pytest.raises(DataError, match="samples 32 to 39 of epoch 0 .items 32, 33.*failed") as caught:
        for _, y in loader.epoch(0):
            got.append(y.tolist())
    assert "in fail" in str(caught.value)
    assert "OSError: the disk is gone" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert [i for y in got for i in y] == list(range(32)), "batches before it are given"
    assert not children()


@pytest.mark.parametrize("way", WAYS[:4], ids=IDS[:4])
def test_without_workers_an_error_of_the_dataset_is_shown_as_it_is(way: dict[str, int]) -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        rows(Loader(Rows(60, fail), 8, shuffle=False, **way), 0)
    assert not data_threads()


class Odd(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd")


def raise_odd(index: int) -> None:
    raise Odd(1, 2)


def end_of_file(index: int) -> None:
    raise EOFError("truncated")


def stop(index: int) -> None:
    raise StopIteration


def refuse_threads(index: int) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("not in this thread")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (raise_odd, "Odd: odd"),
        (end_of_file, "EOFError: truncated"),
        (stop, "StopIteration"),
        (lambda i: os._exit(3), "worker process \\d+ ended with exit code 3"),
        (lambda i: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda i: os.kill(os.getpid(), signal.SIGUSR2), "was killed by SIGUSR2"),
        (lambda i: sys.exit(4), "ended with exit code 4"),
    ],
)
def test_every_end_of_a_worker_is_told(act: Callable[[int], object], message: str) -> None:
    def from_40(index: int) -> None:
        if 40 <= index < 48:
            act(index)

    started = time.monotonic()
    with pytest.raises(DataError, match="samples 40 to 47 of epoch 0[^$]*" + message):
        rows(Loader(Rows(60, from_40), 8, shuffle=False, workers=2), 0)
    assert time.monotonic() - started < 60, "noticed late"
    assert not children()


class Unpicklable(Rows):
    def __getitem__(self, index: int) -> Any:
        return {"x": torch.zeros(2), "f": lambda: 0} if index == 12 else {"x": torch.zeros(2), "f": None}


def test_a_batch_that_does_not_pickle_is_told() -> None:
    loader = Loader(Unpicklable(), 4, shuffle=False, workers=1, collate=lambda samples: samples)
    with pytest.raises(DataError, match="samples 12 to 15[^$]*pickle"):
        list(loader.epoch(0))


def test_a_dataset_that_works_in_the_main_thread_only_is_fetched_there() -> None:
    loader = Loader(Rows(60, refuse_threads), 4, prefetch=2)
    assert sorted(i for _, y in rows(loader, 0) for i in y) == list(range(60))
    assert "RuntimeError: not in this thread" in str(loader.note)
    assert sorted(i for _, y in rows(loader, 1) for i in y) == list(range(60))


def test_waiting_is_counted() -> None:
    loader = Loader(Rows(8, lambda i: time.sleep(0.01)), 4, workers=0, prefetch=0)
    rows(loader, 0)
    assert loader.wait_seconds >= 0.08


@pytest.mark.parametrize("setting", [{"workers": -1}, {"prefetch": -2}, {"workers": 1.5}, {"prefetch": True}])
def test_settings_outside_their_range_are_refused(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(DataError, match=f"{name} is an integer of at least 0"):
        Loader(Rows(), 4, **setting)


def run(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


SLOW = """
    import time
    from flodl.data import Loader

    class Slow:
        def __len__(self): return 10_000
        def __getitem__(self, i):
            time.sleep(0.01)
            return i

    for number, batch in enumerate(Loader(Slow(), 2, workers=2).epoch(0)):
        if number == 3:
            print("ready", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "group"),
    [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGKILL, False)],
    ids=["ctrl-c", "kill", "kill -9"],
)
def test_a_killed_or_interrupted_program_leaves_no_process(how: signal.Signals, group: bool) -> None:
    program = run(SLOW)
    assert program.stdout
    assert program.stdout.readline() == "ready\n"
    workers = psutil.Process(program.pid).children()
    assert len(workers) == 2
    if group:
        os.killpg(program.pid, how)
    else:
        program.send_signal(how)
    _, errors = program.communicate(timeout=30)
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert len(gone) == 2
    assert program.returncode == -how
    assert how != signal.SIGINT or errors.count("KeyboardInterrupt") == 1, errors


def test_a_program_that_ends_in_the_middle_ends_quietly() -> None:
    ending = """
    from flodl.data import Loader
    import torch

    torch.set_num_threads(2)
    (torch.ones(600, 600) @ torch.ones(600, 600)).sum()  # its threads do not exist in a forked process
    class Rows:
        def __len__(self): return 10_000
        def __getitem__(self, i): return (torch.ones(600, 60) @ torch.ones(60, 600)).sum()

    kept = [iter(Loader(Rows(), 2, **way).epoch(0)) for way in ({"workers": 2}, {"prefetch": 2})]
    for batches in kept:
        for _ in range(9): next(batches)
    """
    program = run(ending)
    out, errors = program.communicate(timeout=60)
    assert (program.returncode, out, errors) == (0, "", "")


def test_in_a_thread_that_is_not_the_main_one() -> None:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(rows(Loader(Augmented(), 7, workers=2), 1)))
    thread.start()
    thread.join()
    assert got == rows(Loader(Augmented(), 7, workers=0, prefetch=0), 1)


@pytest.mark.parametrize("way", [{"workers": 2}, {"prefetch": 2}, {"workers": 0, "prefetch": 0}], ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_batches_are_pinned_before_the_loop_asks_for_them(way: dict[str, int], whole: bool) -> None:
    """With the pinning of a CUDA device replaced by another change of the batch, which can be seen here."""
    threads = set()

    def pin(batch: Any) -> Any:
        threads.add(threading.current_thread())
        return batch[0] + 1000, batch[1]

    source = Loader(Augmented(), 7)._source
    fetching = Fetching(source, way.get("workers"), way.get("prefetch"), pin)
    expected = [x + 1000 for x, _ in Loader(Augmented(), 7, workers=0, prefetch=0).epoch(0)]
    items = fetching.items(0, 0, 9)
    got = [item.batch[0] for item in (items if whole else islice(items, 3))]
    items.close()
    assert len(got) == (9 if whole else 3)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=False))
    if way.get("workers"):
        assert threading.main_thread() not in threads, "pinned while the loop waits"
    assert not children()
    assert not data_threads()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="with one processor nothing is started")
def test_where_no_process_can_be_started_it_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    loader = Loader(Rows(90, lambda i: hold_gil()), 1, shuffle=False)
    got = []
    for _, y in loader.epoch(0):
        got += y.tolist()
        time.sleep(0.005)
    assert got == list(range(90))
    assert "no worker process could be started: Resource temporarily" in str(loader.note)
    with pytest.raises(BlockingIOError):
        rows(Loader(Rows(), 4, workers=1), 0)


def measured(fetch: Callable[[], object], step: Callable[[], object], **about: Any) -> Choice | None:
    pace = Pace()
    try:
        for _ in range(40):
            pace.fetch(fetch)
            step()
            if choice := pace.choice(**{"draws": False, "batches_left": None, "most_workers": 8, **about}):
                return choice
        return None
    finally:
        pace.close()


def hold_gil() -> None:
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end:
        pass


def release_gil() -> None:
    time.sleep(0.01)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="with one processor nothing is started")
def test_what_frees_the_gil_goes_to_a_thread_and_what_holds_it_to_processes() -> None:
    assert measured(lambda: None, release_gil) is None
    thread = measured(release_gil, release_gil)
    assert thread
    assert thread.kind == "thread"
    process = measured(hold_gil, release_gil)
    assert process
    assert "holds the GIL" in process.why
    assert process.kind == "worker"
    assert process.workers >= 1
    drawing = measured(release_gil, release_gil, draws=True)
    assert drawing
    assert drawing.kind == "worker"
    assert measured(hold_gil, release_gil, batches_left=5) is None, "too few batches left to start a process"
    assert measured(hold_gil, release_gil, most_workers=0) is None
    assert not data_threads()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="with one processor nothing is started")
def test_slow_python_is_fetched_in_processes_and_sleep_in_a_thread() -> None:
    for act, expected in ((lambda i: hold_gil(), "worker process"), (lambda i: time.sleep(0.01), "a thread")):
        loader = Loader(Rows(90, act), 1, shuffle=False)
        got = []
        for _, y in loader.epoch(0):
            got += y.tolist()
            time.sleep(0.012)
        assert got == list(range(90))
        assert expected in str(loader.note)
        assert not children()
        assert not data_threads()
