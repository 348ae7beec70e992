"""`fdl libtorch build`: its plans, and a whole build of small sources with real git, CMake and Ninja."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.errors import CliError
from flodl_cli.libtorch.build import plan, variant_name
from flodl_cli.libtorch.toolkit import nvcc_version
from flodl_cli.machine.architectures import parse_list

Programs = Callable[[str, str], None]
NVCC = """\
case "$1" in
  --version) echo 'Cuda compilation tools, release 13.0, V13.0.88';;
  *) echo compute_75; echo compute_86; echo compute_120;;
esac
"""


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory, fdl: Any) -> Programs:
    """Puts a shell script in front of everything else on PATH: `programs("nvcc", text)`."""
    folder = tmp_path_factory.mktemp("programs")
    fdl.env["PATH"] = f"{folder}:{os.environ['PATH']}"

    def put(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("archs", "name"),
    [("6.1;12.0", "sm61-sm120"), ("12.0 6.1", "sm61-sm120"), ("9.0+PTX", "sm90ptx"), ("9.0a,8.6", "sm86-sm90a")],
)
def test_names(archs: str, name: str) -> None:
    assert variant_name(parse_list(archs)) == name


def test_a_native_plan(libtorch: Any, programs: Programs, flodl_home: Path) -> None:
    programs("nvcc", NVCC)
    shown = libtorch("build", "--archs", "8.6;12.0+PTX", "--version", "2.13.0", "--jobs", "3", "--dry-run")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[0].endswith("/libtorch/.building/sm86-sm120ptx-2.13.0-native")
    assert (
        lines[1]
        == "git -c advice.detachedHead=false clone --depth 1 --branch v2.13.0 https://github.com/pytorch/pytorch.git src"
    )
    assert lines[5] == "nvcc --version > nvcc.txt"
    assert lines[6].startswith("TORCH_CUDA_ARCH_LIST='8.6;12.0+PTX' MAX_JOBS=3 venv/bin/cmake -S src -B build")
    assert "--parallel 3" in lines[7]
    assert lines[-1].endswith("/builds/sm86-sm120ptx, if it has the code")
    assert list(flodl_home.iterdir()) == []


def test_a_docker_plan(libtorch: Any, programs: Programs, fdl: Any) -> None:
    programs("docker", "exit 1")
    programs("nvcc", NVCC)  # which cannot do 6.1
    fdl.env["CMAKE_ARGS"] = "-DUSE_NCCL=ON"
    shown = libtorch("build", "--archs", "6.1;12.0", "--version", "2.13.0", "--dry-run")
    assert shown.code == 0, shown.err
    runs = [line for line in shown.out.splitlines() if line.startswith("docker run")]
    assert len(runs) == 8
    assert all(f"--user {os.getuid()}:{os.getgid()}" in r and "--env HOME=/work" in r for r in runs)
    assert "--build-arg IMAGE=nvidia/cuda:12.9.1-cudnn-devel-ubuntu24.04" in shown.out
    assert "--env 'TORCH_CUDA_ARCH_LIST=6.1;12.0'" in runs[5]
    assert runs[5].endswith("-DUSE_NCCL=ON")
    other = libtorch("build", "--archs", "6.1;12.0", "--docker", "--image", "me/cuda:1", "--dry-run")
    assert "--tag fdl-libtorch-build:cuda-1 --build-arg IMAGE=me/cuda:1" in other.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--archs", "6.1;12.0", "--native"],
            "(CUDA 13.0) makes no code for 6.1; CUDA 12.9, 12.8 can: install it, or --docker",
        ),
        (["--archs", "6.1;13.0", "--docker"], "no CUDA toolkit makes code for 6.1;13.0 together"),
        (["--archs", "sm_new"], "'sm_new' is no architecture"),
        (["--archs", " "], "--archs names the compute capabilities"),
        (["--archs", "8.6", "--native", "--image", "x"], "--image is for --docker"),
        (["--archs", "8.6", "--version", "2.13"], "a release is written like"),
        ([], "Missing option '--archs'"),
    ],
)
def test_wrong_calls(libtorch: Any, programs: Programs, words: list[str], said: str) -> None:
    programs("nvcc", NVCC)
    programs("docker", "exit 1")
    wrong = libtorch("build", *words)
    assert (wrong.code, wrong.out) == (2, "")
    assert said in wrong.err


def test_without_tools(tmp_path: Path) -> None:
    for native, said in (
        (True, "there is no nvcc on PATH"),
        (False, "there is no docker"),
        (None, "there is no docker"),
    ):
        with pytest.raises(CliError, match=said):
            plan(tmp_path, "8.6", "2.13.0", native=native, jobs=1, environ={"PATH": str(tmp_path)})


def test_what_nvcc_says() -> None:
    assert nvcc_version("nvcc: NVIDIA\nCuda compilation tools, release 12.8, V12.8.93\nBuild x") == "12.8"


CMAKE = """\
cmake_minimum_required(VERSION 3.16)
project(small CXX)
foreach(name c10 torch_cpu torch_cuda torch)
  add_library(${name} SHARED ${name}.cpp)
endforeach()
install(TARGETS c10 torch_cpu torch_cuda torch LIBRARY DESTINATION lib)
install(FILES torch.cpp DESTINATION include)
add_custom_target(slow ALL COMMAND sh -c "test ! -e ../slow || { touch ../started; sleep 60; }" VERBATIM)
add_dependencies(c10 slow)
"""

# `python3 -m venv venv` with the tools that are installed here
VENV = """\
mkdir -p venv/bin && ln -s "$(command -v cmake)" "$(command -v ninja)" venv/bin/ && ln -s /bin/true venv/bin/pip
"""


@pytest.fixture
def sources(tmp_path_factory: pytest.TempPathFactory, fdl: Any, programs: Programs, fat_source: str) -> Path:
    """A repository with the tag v2.13.0 that builds libraries with torch's names."""
    if not all(map(shutil.which, ("git", "cmake", "ninja", "g++"))):
        pytest.skip("needs git, cmake, ninja and g++ (.ci/run installs them)")
    folder = tmp_path_factory.mktemp("sources")
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "c10.cpp").write_text("#include <string>\nnamespace c10 { void tell(std::string) {} }")
    (folder / "torch_cuda.cpp").write_text(fat_source)
    for name in ("torch", "torch_cpu"):
        (folder / f"{name}.cpp").write_text(f"int {name};")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "v2.13.0"]):
        subprocess.run([*git, *words], check=True)
    fdl.env["FLODL_PYTORCH_GIT"] = f"file://{folder}"
    programs("nvcc", NVCC)
    programs("python3", VENV)
    return folder


BUILD = ("build", "--native", "--version", "2.13.0", "--archs")


def test_a_build_is_recorded_as_what_it_is(libtorch: Any, sources: Path, flodl_home: Path) -> None:
    built = libtorch(*BUILD, "8.6;12.0+PTX")
    assert built.code == 0, built.err
    found = json.loads(libtorch("info", "--json").out)
    told = {k: found[k] for k in ("name", "version", "cuda", "architectures", "source", "active", "missing")}
    assert told == {
        "name": "builds/sm86-sm120ptx",
        "version": "2.13.0+cu130",
        "cuda": "13.0",  # what nvcc said
        "architectures": ["8.6", "12.0+PTX"],
        "source": "build",
        "active": True,
        "missing": [],
    }
    assert not (flodl_home / "libtorch" / ".building").exists()


def test_what_was_not_built_is_not_claimed(libtorch: Any, sources: Path) -> None:
    failed = libtorch(*BUILD, "7.5;8.6")
    assert failed.code == 1
    assert "have code for 8.6 12.0+PTX, not for 7.5: not installed" in failed.err
    assert libtorch("list", "--json").out == "[]\n"


def test_a_failed_build_goes_on_where_it_failed(libtorch: Any, fdl: Any, sources: Path) -> None:
    fdl.env["CXXFLAGS"] = "--wrong"
    failed = libtorch(*BUILD, "8.6")
    assert failed.code == 1
    assert "configure ended with exit code 1, its output is above; the same call goes on from this step" in failed.err
    assert libtorch("list", "--json").out == "[]\n"
    del fdl.env["CXXFLAGS"]
    shutil.rmtree(sources)  # they are not needed again
    built = libtorch(*BUILD, "8.6")
    assert built.code == 0, built.err
    assert "1/8 source: done before" in built.err


def test_ctrl_c(libtorch: Any, fdl: Any, sources: Path, flodl_home: Path) -> None:
    work = flodl_home / "libtorch" / ".building" / "sm86-2.13.0-native"
    work.mkdir(parents=True)
    (work / "slow").touch()
    process = fdl.start("libtorch", *BUILD, "8.6")
    end = time.monotonic() + 60
    while not (work / "started").exists():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "ended with" not in said
    (work / "slow").unlink()
    again = libtorch(*BUILD, "8.6")
    assert again.code == 0, again.err
    assert "6/8 configure: done before" in again.err


def test_a_changed_setting_is_not_taken_for_done(libtorch: Any, fdl: Any, sources: Path) -> None:
    assert libtorch(*BUILD, "7.5").code == 1  # built, but not what was asked for
    fdl.env["CMAKE_ARGS"] = "-DNEW=1"
    again = libtorch(*BUILD, "7.5", "--jobs", "1")
    assert "5/8 toolkit: done before\nfdl: 6/8 configure\n" in again.err
    assert "fdl: 8/8 install\n" in again.err
