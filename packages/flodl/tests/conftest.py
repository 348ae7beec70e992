"""Every test runs torch on one thread and leaves nothing behind."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # with two, the same epoch took 1 to 64 s on a busy 2-core machine

import gc
import importlib.util
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import hypothesis
import platformdirs
import psutil
import pytest
import torch

torch.set_num_threads(1)

# What a run learns about the machine is no business of the next test run, nor of the user's own runs.
_cache = tempfile.TemporaryDirectory(prefix="flodl-tests-", ignore_cleanup_errors=True)
os.environ["FLODL_CACHE"] = _cache.name

for name in ("FDL_COMMAND", "FDL_CWD"):  # the tests themselves are a task of fdl; what they start is not
    os.environ.pop(name, None)

# Torch shows progress with tqdm where that is installed, and tqdm then keeps a thread for the whole process.
if importlib.util.find_spec("tqdm") is not None:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # its own switch against the thread

# No test depends on how busy the machine is.
hypothesis.settings.register_profile("flodl", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("flodl")

# Set by pytest, by torch when it compiles, by OpenMP libraries when they are loaded.
_QUIET_ENV = {
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
}


def _sockets() -> set[tuple[object, ...]]:
    return {(c.fd, str(c.laddr)) for c in psutil.Process().net_connections(kind="all") if c.laddr}


def _children() -> set[int]:
    # Python's own keeper of semaphores, started by the first spawned process, stays for the whole process and is shared.
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    running = {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}
    return running - {tracker}


def _settled(before: set[object], now: object, seconds: float = 2.0) -> set[object]:
    """What `now()` has beyond `before`, after at most `seconds` for it to go away."""
    end = time.monotonic() + seconds
    while left := set(now()) - before:  # type: ignore[operator]
        if time.monotonic() > end:
            return left
        time.sleep(0.02)
    return set()


@pytest.fixture(autouse=True, scope="session")
def imported_modules_are_not_searched_for_garbage() -> None:
    """A collection after each test walks through torch and transformers otherwise: half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    threads, children, sockets = set(threading.enumerate()), _children(), _sockets()
    environ = dict(os.environ)
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    yield
    gc.collect()
    left = _settled(threads, threading.enumerate)
    assert not left, f"threads left behind: {left}"
    left = _settled(children, _children)
    assert not left, f"processes left behind: {left}"
    left = _settled(sockets, _sockets)
    assert not left, f"sockets left behind: {left}"
    changed = {k for k in {*environ, *os.environ} - _QUIET_ENV if environ.get(k) != os.environ.get(k)}
    assert not changed, f"environment variables changed: {sorted(changed)}"
    now = torch.distributed.is_available() and torch.distributed.is_initialized()
    assert now == distributed, "a torch.distributed process group was left behind"


@pytest.fixture(autouse=True)
def global_state_is_restored() -> Iterator[None]:
    """Threads, precision of products, grad mode and default dtype are the same after a test as before."""

    def now() -> tuple[object, ...]:
        precision = torch.get_float32_matmul_precision()
        return torch.get_num_threads(), precision, torch.is_grad_enabled(), torch.get_default_dtype()

    before = now()
    yield
    assert now() == before


@pytest.fixture(autouse=True)
def in_an_empty_folder(leaves_nothing_behind: None, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are written under the current folder by default: give each test its own.

    After `leaves_nothing_behind`, which looks when monkeypatch has undone its changes.
    """
    monkeypatch.chdir(str(tmp_path))


_FASHION_MNIST = [
    f"{part}-ubyte.gz" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
]
_SYSTEM = Path("/usr/share/datasets/fashion-mnist")


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FASHION_MNIST)


def _from_debian(target: Path) -> None:
    """Download the package and move its four files to `target`; needs no root."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        subprocess.run(
            ["apt-get", "download", "dataset-fashion-mnist"], cwd=work, check=True, capture_output=True, text=True
        )
        (package,) = Path(work).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, work], check=True, capture_output=True, text=True)
        try:
            os.rename(work + str(_SYSTEM), target)
        except OSError:  # another test run was faster, or an earlier one left it incomplete
            if not _complete(target):
                shutil.copytree(work + str(_SYSTEM), target, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def fashion_mnist_files() -> Path:
    """A folder with the four real .gz files. Skips with the reason where they cannot be had; fails instead under CI."""
    cache = platformdirs.user_cache_path("flodl", appauthor=False)
    given = Path(os.environ.get("FLODL_DATA", "/nonexistent"))
    kept = cache / "tests" / "fashion-mnist"
    for folder in (given, given / "fashion-mnist", cache / "fashion-mnist", _SYSTEM, kept):
        if _complete(folder):
            return folder
    try:
        _from_debian(kept)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f"no Fashion-MNIST here: {getattr(error, 'stderr', None) or error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return kept
