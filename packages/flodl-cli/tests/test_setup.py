"""`fdl setup`: what it would install, that it asks, that it keeps what fits, and a whole installation through pip."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.machine.gpus import Detected
from flodl_cli.machine.python_torch import PythonTorch
from flodl_cli.machine.readings import parse_override
from flodl_cli.machine.setup import misfit, steps
from flodl_cli.machine.variants import Variant

Write = Callable[..., Path]

NO_GPU = {"FLODL_GPUS": "none"}


def torch(version: str | None = "2.13.0", cuda: str | None = None, flags: str = "", **more: Any) -> PythonTorch:
    return PythonTorch(
        "/env/bin/python", "3.12.1", version=version, cuda=cuda, architectures=tuple(flags.split()), **more
    )


@pytest.mark.parametrize(
    ("found", "gpus", "driver", "wanted", "said"),
    [
        (torch(), "none", None, None, None),
        (torch(cuda="13.0", flags="sm_90"), "none", None, None, None),  # every torch can compute on the CPU
        (torch(cuda="13.0", flags="sm_90"), "9.0 H100", "580.1", None, None),
        (torch(cuda="13.0", flags="sm_90"), "? H100", "580.1", None, None),
        (torch(), "9.0 H100", "580.1", "cpu", None),  # it was asked for
        (torch(None), "none", None, None, "Python has no torch"),
        (torch("2.5.1"), "none", None, None, "torch 2.5.1 is older than 2.6"),
        (torch(error="ImportError: x"), "none", None, None, "torch 2.13.0 cannot be used: ImportError: x"),
        (torch(), "9.0 H100", "580.1", None, "torch 2.13.0 is a CPU build: H100 (9.0)"),
        (torch(cuda="13.0", flags="sm_75"), "6.1 GTX 1060", "580.1", None, "has no code for it (CUDA 13.0: 7.5)"),
        (torch(cuda="13.0", flags="sm_90"), "9.0 H100", "570.1", None, "needs driver 580 or newer; this is 570.1"),
        (torch(cuda="13.0", flags="sm_90"), "9.0 H100", "580.1", "cu126", "is a build for cu130, not for cu126"),
    ],
)
def test_what_has_to_be_replaced(
    found: PythonTorch, gpus: str, driver: str | None, wanted: str | None, said: str | None
) -> None:
    reason = misfit(found, Detected(parse_override(gpus).gpus, driver), wanted)
    assert reason is None if said is None else said in str(reason)


def test_the_commands(tmp_path: Path, write: Write) -> None:
    cu126 = Variant("2.13.0", "cu126", "12.6", (), "")
    (step,), python = steps(torch(None), cu126, tmp_path, {}, None)
    assert python == "/env/bin/python"
    if sys.platform == "darwin":
        assert str(step) == "/env/bin/python -m pip install torch==2.13.0"
        return
    index = "https://download.pytorch.org/whl"
    assert str(step) == f"/env/bin/python -m pip install torch==2.13.0+cu126 --extra-index-url {index}/cu126"
    (step,), _ = steps(
        torch(None), Variant("2.13.0", "cpu", None, (), ""), tmp_path, {"FLODL_TORCH_INDEX": "http://m/"}, None
    )
    assert str(step) == "/env/bin/python -m pip install torch==2.13.0 --extra-index-url http://m/cpu"
    write("bin/uv", "#!/bin/sh\n").chmod(0o755)
    (step,), _ = steps(torch(None, pip=False), cu126, tmp_path, {"PATH": str(tmp_path / "bin")}, "http://o")
    assert str(step).startswith(f"{tmp_path}/bin/uv pip install --python /env/bin/python torch==2.13.0+cu126")


def test_the_systems_python_gets_an_environment_beside_the_project(tmp_path: Path) -> None:
    plan, python = steps(torch(None, managed=True), Variant("2.13.0", "cpu", None, (), ""), tmp_path, {}, None)
    assert plan[0].argv == ("/env/bin/python", "-m", "venv", str(tmp_path / ".venv"))
    assert (
        plan[1].argv[:4]
        == (python, "-m", "pip", "install")
        == (str(tmp_path / ".venv/bin/python"), "-m", "pip", "install")
    )


def test_a_torch_that_fits_is_tried_and_kept(fdl: Any) -> None:
    result = fdl("setup", env=NO_GPU)
    assert result.code == 0, result.err
    assert "fits; nothing to install" in result.out
    assert "tried:  cpu: a matrix product and a training step" in result.out


def test_nothing_is_installed_without_an_answer(fdl: Any) -> None:
    env = {"FLODL_GPUS": "9.0 H100", "FLODL_GPU_DRIVER": "580.65.06"}
    result = fdl("setup", env=env)
    assert result.code == 2
    assert "install torch 2.13.0 (cu130)? No terminal to ask on: --yes" in result.err
    planned = fdl("--dry-run", "setup", env=env)
    assert planned.code == 0
    assert planned.out.splitlines()[-1].startswith(f"{sys.executable} -m pip install torch==2.13.0")


@pytest.mark.parametrize(
    ("words", "gpus", "code", "said"),
    [
        ([], "6.1 GTX 1060;12.0 RTX 5060 Ti", 1, "use only RTX 5060 Ti (12.0): fdl setup --cuda 13.0"),
        (["--cuda", "12.7"], "none", 2, "no release of torch in the table has a build for CUDA 12.7. Did you mean"),
        (
            ["--cuda", "12.6", "--version", "2.31"],
            "none",
            2,
            "torch 2.31 is not in the table of builds. Did you mean '2.13'",
        ),
        (["--cuda", "13.2", "--version", "2.9"], "none", 2, "torch 2.9 has no build for CUDA 13.2"),
        (["--cuda", "12.6", "--cpu"], "none", 2, "exclude each other"),
        (["--cudda"], "none", 2, "--cuda"),
    ],
)
def test_what_cannot_be_done(fdl: Any, words: list[str], gpus: str, code: int, said: str) -> None:
    result = fdl("setup", *words, env={"FLODL_GPUS": gpus})
    assert result.code == code
    assert said in result.err


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A wheel, made by hand: pip installs it as any other."""
    info = f"{name}-{version}.dist-info"
    every = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in every.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text.encode())}")
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))


@pytest.mark.slow
def test_an_environment_without_torch_gets_one_through_pip_and_it_is_tried(fdl: Any, tmp_path: Path) -> None:
    """The wheel leads to the torch of this environment, so what is tried after the installation is a real torch."""
    where = [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"]
    here = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()).parents[1]
    version = next(p.name for p in here.glob("torch-*.dist-info")).split("-")[1].removesuffix(".dist")
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", "torch", "2.13.0+cpu", {"lead.pth": f"{here}\n"})
    subprocess.run([sys.executable, "-m", "venv", tmp_path / ".venv"], check=True)
    python = tmp_path / ".venv" / "bin" / "python"
    kept = {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
    env = {**dict.fromkeys(kept), **NO_GPU, "VIRTUAL_ENV": str(tmp_path / ".venv"), "PYTHONWARNINGS": None}
    env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    before = fdl("setup", "--dry-run", env=env)
    assert "Python has no torch" in before.out
    assert not list(python.parents[1].rglob("lead.pth"))
    result = fdl("setup", "-y", env=env)
    assert result.code == 0, result.out + result.err
    assert "Successfully installed torch-2.13.0" in result.out
    assert "tried:  cpu: a matrix product and a training step" in result.out
    again = fdl("setup", env=env)
    assert (again.code, "fits; nothing to install" in again.out) == (0, True)
    assert version in again.out
    missing = fdl("setup", "-y", "--version", "2.8", env=env)
    assert missing.code == 1
    assert "could not install torch 2.8.0 (cpu); --index names another place" in missing.err
