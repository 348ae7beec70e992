"""`fdl diagnose`: what it finds, what it recommends, and that its JSON is what its schema says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from flodl_cli.libtorch.arch import Arch
from flodl_cli.libtorch.store import Store
from flodl_cli.machine.gpus import detect
from flodl_cli.machine.python_torch import ask_torch

ONLY = "then CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES"
Write = Callable[..., Path]

# A torch as others see it: found, imported, and asked.
FAKE_TORCH = """\
__version__ = "{version}"
class version:
    cuda = {cuda!r}
    hip = {hip!r}
class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return {flags!r}
class cuda:
    is_available = staticmethod(lambda: {available})
    device_count = staticmethod(lambda: 1)
class backends:
    pass
"""


@pytest.fixture
def torch_of_python(write: Write, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Puts a torch before the real one: the environment that finds it."""

    def make(
        version: str = "2.13.0",
        cuda: str | None = None,
        hip: str | None = None,
        flags: str = "",
        available: bool = True,
        text: str | None = None,
    ) -> dict[str, str]:
        fake = FAKE_TORCH.format(version=version, cuda=cuda, hip=hip, flags=flags, available=available)
        write("fake/torch/__init__.py", fake if text is None else text)
        return {"PYTHONPATH": ":".join([str(tmp_path / "fake"), *sys.path])}

    return make


@pytest.fixture
def diagnosed(fdl: Any) -> Callable[..., dict[str, Any]]:
    def look(env: dict[str, str], gpus: str, driver: str | None = "580.65.06") -> dict[str, Any]:
        result = fdl("diagnose", "--json", env={**env, "FLODL_GPUS": gpus, "FLODL_GPU_DRIVER": driver})
        found: dict[str, Any] = json.loads(result.out)
        jsonschema.validate(found, json.loads(fdl("diagnose", "--schema").out))
        assert result.code == (1 if found["problems"] else 0)
        return found

    return look


def installed_libtorch(fdl: Any, cuda: str | None, architectures: tuple[str, ...], name: str) -> Store:
    store = Store(Path(fdl.env["HOME"], ".flodl", "libtorch"))
    with store.changing():
        staged = store.staging()
        (staged / "torch" / "lib").mkdir(parents=True)
        store.activate(store.install(staged, name, Arch("2.13.0", cuda, architectures, 1, "wheel")))
    return store


def test_this_machine_as_it_is(fdl: Any) -> None:
    result = fdl("diagnose", "--json", env={"FLODL_GPUS": "none"})
    found = json.loads(result.out)
    jsonschema.validate(found, json.loads(fdl("diagnose", "--schema").out))
    assert result.code == 0
    assert found["gpus"] == []
    assert (found["driver"], found["cuda"], found["libtorch"]) == (None, None, None)
    assert found["torch"]["version"].startswith("2.")
    assert Path(found["torch"]["folder"], "version.py").exists()
    text = fdl("diagnose", env={"FLODL_GPUS": "none"}).out
    assert "GPUs           none" in text
    assert "no problems found" in text


def test_a_gpu_that_torch_covers(torch_of_python: Any, diagnosed: Any, fdl: Any) -> None:
    env = torch_of_python(cuda="13.0", flags="sm_75 sm_80 sm_90 compute_120")
    found = diagnosed(env, "9.0 NVIDIA H100;12.1 GB10")
    assert [g["torch"] for g in found["gpus"]] == [
        {"covered": True, "reason": "has code for it (CUDA 13.0: 9.0)"},
        {"covered": True, "reason": "has code for it (CUDA 13.0: 12.0+PTX)"},
    ]
    assert found["problems"] == []
    shown = fdl("diagnose", env={**env, "FLODL_GPUS": "9.0 NVIDIA H100"}).out
    assert "yes: torch has code for it (CUDA 13.0: 9.0)" in shown


@pytest.mark.parametrize(
    ("torch", "gpus", "driver", "problem", "remedies"),
    [
        ({}, "9.0 H100", "580.65.06", "torch 2.13.0 is a CPU build: H100 (9.0)", ["fdl setup"]),
        (
            {"cuda": "13.0", "flags": "sm_75 sm_80 sm_90 sm_100 sm_120"},
            "6.1 GTX 1080 Ti",
            "580.65.06",
            "torch 2.13.0 has no code for it (CUDA 13.0: 7.5 8.0 9.0 10.0 12.0): GTX 1080 Ti (6.1)",
            ["fdl setup"],
        ),
        (
            {"cuda": "12.6", "flags": "sm_60 sm_90"},
            "6.1 GTX 1060;12.0 RTX 5060 Ti",
            "580.65.06",
            "has no code for it (CUDA 12.6: 6.0 9.0): RTX 5060 Ti (12.0)",
            [
                "build torch from source with CUDA 12.9 and TORCH_CUDA_ARCH_LIST='6.1;12.0'",
                f"use only RTX 5060 Ti (12.0): fdl setup --cuda 13.0 --version 2.13.0, {ONLY}=1",
                f"use only GTX 1060 (6.1): fdl setup --cuda 12.6 --version 2.13.0, {ONLY}=0",
                "train on the CPU: fdl setup --cpu",
            ],
        ),
        (
            {"cuda": "13.0", "flags": "sm_90", "available": False},
            "9.0 H100",
            "570.1",
            "torch 2.13.0 is made with CUDA 13.0, which needs driver 580 or newer; this is 570.1",
            ["update the NVIDIA driver to 580 or newer"],
        ),
        ({"version": "2.4.1"}, "none", None, "torch 2.4.1 is older than 2.6", ["fdl setup"]),
        ({"text": "raise OSError('libcudnn.so.9: cannot open')"}, "none", None, "OSError: libcudnn.so.9", ["fdl setup"]),
        ({"text": "import os; os.kill(os.getpid(), 11)"}, "none", None, "killed by signal 11", ["fdl setup"]),
        ({"hip": "6.4", "flags": "gfx90a gfx942"}, "gfx1100 RX 7900", None, "has no code for gfx1100: RX 7900", None),
        ({"cuda": "13.0", "flags": "sm_90"}, "gfx942 MI300X", None, "is made for CUDA 13.0, not for ROCm", None),
    ],
)  # fmt: skip
def test_what_is_wrong_with_torch_and_what_helps(
    torch_of_python: Any,
    diagnosed: Any,
    torch: dict[str, Any],
    gpus: str,
    driver: str | None,
    problem: str,
    remedies: list[str] | None,
) -> None:
    found = diagnosed(torch_of_python(**torch), gpus, driver)
    assert len(found["problems"]) == 1, found["problems"]
    assert problem in found["problems"][0]["text"]
    assert remedies is None or found["problems"][0]["remedies"] == remedies


def test_rocm_and_unknown_capabilities(torch_of_python: Any, diagnosed: Any) -> None:
    found = diagnosed(torch_of_python(hip="6.4", flags="gfx90a:sramecc+ gfx942"), "gfx942 MI300X", None)
    assert found["gpus"][0]["torch"]["covered"] is True
    found = diagnosed(torch_of_python(cuda="12.6", flags="sm_90"), "? GTX 1080", None)
    assert found["gpus"][0]["torch"]["covered"] is None
    assert found["gpus"][0]["capability"] is None


def test_the_active_libtorch(torch_of_python: Any, diagnosed: Any, fdl: Any) -> None:
    env = torch_of_python(cuda="12.6", flags="sm_60")
    installed_libtorch(fdl, "12.6", ("6.0", "9.0"), "precompiled/cu126")
    found = diagnosed(env, "6.1 GTX 1060")
    assert found["libtorch"]["name"] == "precompiled/cu126"
    assert found["gpus"][0]["libtorch"] == {"covered": True, "reason": "has code for it (CUDA 12.6: 6.0)"}
    assert found["problems"] == []
    installed_libtorch(fdl, None, (), "precompiled/cpu")
    problem = diagnosed(env, "6.1 GTX 1060")["problems"][0]
    assert problem == {
        "text": "libtorch precompiled/cpu is a CPU build: GTX 1060 (6.1)",
        "remedies": ["fdl libtorch activate precompiled/cu126", "fdl libtorch download --cuda 12.6 --version 2.13.0"],
    }


def test_a_libtorch_whose_files_are_gone(fdl: Any, diagnosed: Any) -> None:
    store = installed_libtorch(fdl, None, (), "linked/cpu")
    (store.root / "linked" / "cpu" / "torch" / "lib").rmdir()
    assert "are gone" in diagnosed({}, "none", None)["problems"][0]["text"]


def test_nothing_installed_and_no_python(fdl: Any, tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "VIRTUAL_ENV": str(tmp_path), "FLODL_GPUS": "none"}
    result = fdl("diagnose", env=env)
    assert result.code == 1
    assert "neither libtorch nor torch is installed\n    fdl setup\n    fdl libtorch download" in result.out


def test_notes_on_variables(torch_of_python: Any, diagnosed: Any) -> None:
    env = {**torch_of_python(cuda="13.0", flags="sm_90", available=False), "CUDA_VISIBLE_DEVICES": ""}
    found = diagnosed(env, "9.0 H100")
    assert found["problems"] == []
    assert found["notes"] == [
        "CUDA_VISIBLE_DEVICES='' hides all GPUs to programs",
        "FLODL_GPUS says which GPUs there are: the machine was not asked",
    ]


def test_torch_that_hangs_is_given_up(tmp_path: Path, write: Write) -> None:
    write("fake/torch/__init__.py", "import time\ntime.sleep(61)")
    found = ask_torch(sys.executable, {"PYTHONPATH": str(tmp_path / "fake")}, timeout_s=0.5)
    assert (found.version, found.error) == (None, "no answer within 0.5 s")


def test_files_in_the_current_folder_are_not_taken_for_modules(write: Write) -> None:
    write("torch.py", "raise SystemExit('the wrong torch')")
    write("pynvml.py", "raise SystemExit('the wrong pynvml')")
    assert ask_torch(sys.executable, os.environ).error is None
    assert detect(os.environ).notes == ()


def test_a_wrong_override_and_a_wrong_option(fdl: Any) -> None:
    result = fdl("diagnose", env={"FLODL_GPUS": "RTX 3090"})
    assert (result.code, result.out) == (2, "")
    assert "FLODL_GPUS: 'RTX 3090' must be" in result.err
    assert fdl("diagnose", "--jsn").code == 2
    assert fdl("--complete", "fish", "diagnose", "--j").out.strip().startswith("--json")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_what_is_being_asked(fdl: Any, torch_of_python: Any, number: signal.Signals) -> None:
    """The torch that is asked hangs with a child of its own; both are gone afterwards."""
    text = "import os, pathlib, subprocess, time\nchild = subprocess.Popen(['sleep', '61'])\n"
    text += "pathlib.Path('pids.new').write_text(f'{os.getpid()} {child.pid}')\nos.rename('pids.new', 'pids')\ntime.sleep(61)\n"
    fdl.env |= {**torch_of_python(text=text), "FLODL_GPUS": "none"}
    with fdl.start("diagnose") as process:
        while not Path("pids").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (128 + number, "", "")
    for pid in map(int, Path("pids").read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
