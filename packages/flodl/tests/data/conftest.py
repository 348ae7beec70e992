"""The real Fashion-MNIST files, wherever this machine has them; else Debian's package, unpacked without installing it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import hypothesis
import platformdirs
import pytest

# No test depends on how busy the machine is.
hypothesis.settings.register_profile("flodl", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("flodl")

NAMES = [
    f"{part}-ubyte.gz" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
]
SYSTEM = Path("/usr/share/datasets/fashion-mnist")


def complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NAMES)


def from_debian(target: Path) -> None:
    """Download the package and move its four files to `target`; needs no root."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        subprocess.run(
            ["apt-get", "download", "dataset-fashion-mnist"], cwd=work, check=True, capture_output=True, text=True
        )
        (package,) = Path(work).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, work], check=True, capture_output=True, text=True)
        try:
            os.rename(work + str(SYSTEM), target)
        except OSError:  # another test run was faster, or an earlier one left it incomplete
            if not complete(target):
                shutil.copytree(work + str(SYSTEM), target, dirs_exist_ok=True)


@pytest.fixture(autouse=True)
def in_an_empty_folder(leaves_nothing_behind: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere; asked for in this order, `monkeypatch` undoes a test's variables before they are compared."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def fashion_mnist_files() -> Path:
    """A folder with the four real .gz files. Skips with the reason where they cannot be had; fails instead under CI."""
    cache = platformdirs.user_cache_path("flodl", appauthor=False)
    given = Path(os.environ.get("FLODL_DATA", "/nonexistent"))
    kept = cache / "tests" / "fashion-mnist"
    for folder in (given, given / "fashion-mnist", cache / "fashion-mnist", SYSTEM, kept):
        if complete(folder):
            return folder
    try:
        from_debian(kept)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f"no Fashion-MNIST here: {getattr(error, 'stderr', None) or error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return kept
