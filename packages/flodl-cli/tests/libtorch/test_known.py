"""URLs, releases and what libraries say of themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flodl_cli.errors import CliError
from flodl_cli.libtorch.binaries import architectures, cxx11_abi, missing_libraries
from flodl_cli.libtorch.errors import ArchiveError
from flodl_cli.libtorch.metadata import inspect
from flodl_cli.libtorch.official import zip_url
from flodl_cli.libtorch.releases import check_version, cuda_tag, tch_for
from flodl_cli.libtorch.wheel import place_of

LINUX, MAC, INTEL = ("linux", "x86_64"), ("darwin", "arm64"), ("darwin", "x86_64")


@pytest.mark.parametrize(
    ("version", "tag", "system", "path"),
    [
        ("2.13.0", "cpu", LINUX, "cpu/libtorch-shared-with-deps-2.13.0%2Bcpu.zip"),
        ("2.8.0", "cu128", LINUX, "cu128/libtorch-shared-with-deps-2.8.0%2Bcu128.zip"),
        ("2.7.1", "cu128", LINUX, "cu128/libtorch-cxx11-abi-shared-with-deps-2.7.1%2Bcu128.zip"),
        ("2.10.0", "cu126", LINUX, "cu126/libtorch-shared-with-deps-2.10.0%2Bcu126.zip"),
        ("2.13.0", "cpu", MAC, "cpu/libtorch-macos-arm64-2.13.0.zip"),
        ("2.2.2", "cpu", INTEL, "cpu/libtorch-macos-x86_64-2.2.2.zip"),
        ("2.1.0", "cpu", INTEL, "cpu/libtorch-macos-2.1.0.zip"),
    ],
)
def test_urls(version: str, tag: str, system: tuple[str, str], path: str) -> None:
    assert zip_url(version, tag, "https://mirror/x/", *system) == f"https://mirror/x/{path}"


@pytest.mark.parametrize(
    ("version", "tag", "system", "said"),
    [
        ("2.13.0", "cpu", ("linux", "aarch64"), "--source wheel has one"),
        ("2.13.0", "cpu", INTEL, "the last is --version 2.2.2"),
        ("2.13.0", "cu126", MAC, "there is no CUDA on macOS"),
    ],
)
def test_what_the_server_does_not_have(version: str, tag: str, system: tuple[str, str], said: str) -> None:
    with pytest.raises(CliError, match=said):
        zip_url(version, tag, None, *system)


def test_cuda() -> None:
    assert cuda_tag("2.13.0", "12.6") == cuda_tag("2.13.0", "cu126") == "cu126"
    assert cuda_tag("2.99.0", "14.1") == "cu141"  # newer than the table
    with pytest.raises(
        CliError, match=r"torch 2.13.0 is built for CUDA 12.6, 13.0, 13.2; 12.8 is built for torch .*: --version 2.11.0"
    ):
        cuda_tag("2.13.0", "12.8")
    with pytest.raises(CliError, match="a release is written like"):
        check_version("2.13")
    assert (tch_for("2.13.0+cpu"), tch_for("2.1.2"), tch_for("1.0.0")) == (("0.26", "2.13.0"), ("0.14", "2.1.0"), None)


@pytest.mark.parametrize(
    ("member", "kept"),
    [
        ("torch/lib/libtorch.so", True),
        ("torch/include/ATen/ATen.h", True),
        ("torch/share/cmake/Torch/TorchConfig.cmake", True),
        ("torch/version.py", True),
        ("torch/nn/__init__.py", False),
        ("torch/bin/protoc", False),
        ("torch.libs/libgfortran.so", True),
        ("nvidia/cublas/lib/libcublas.so.12", True),
        ("nvidia/cublas/__init__.py", False),
        ("nvidia/cu13/bin/ptxas", False),
        ("torch-2.13.0.dist-info/RECORD", False),
        ("torchgen/model.py", False),
    ],
)
def test_which_parts_of_a_wheel_are_kept(member: str, kept: bool) -> None:
    assert place_of(member) == (member if kept else None)


@pytest.fixture
def lib(tmp_path: Path, libraries: dict[str, bytes]) -> Path:
    for name, content in libraries.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path / "lib"


@pytest.mark.skipif(sys.platform != "linux", reason="ELF")
def test_abi_and_missing_libraries(lib: Path, compiled: Callable[..., bytes]) -> None:
    assert (cxx11_abi(lib), missing_libraries(lib), architectures(lib)) == (1, [], ())
    old = compiled(
        "c10", "#include <string>\nnamespace c10 { void tell(std::string) {} }", "-D_GLIBCXX_USE_CXX11_ABI=0"
    )
    (lib / "libc10.so").write_bytes(old)
    assert cxx11_abi(lib) == 0
    (lib / "libc10.so").unlink()
    (missing,) = missing_libraries(lib)
    assert missing == ("libc10.so", "libtorch_cpu.so")


def test_versions_are_read_and_never_run(lib: Path) -> None:
    prefix = lib.parent
    with pytest.raises(ArchiveError, match="its version is not known"):
        inspect(prefix, "zip")
    (prefix / "build-version").write_text("2.7.0+cu128\n")
    assert inspect(prefix, "zip")[:2] == ("2.7.0+cu128", "12.8")
    (prefix / "version.py").write_text("import os\n__version__ = '2.9.1'\ncuda: str = '13.0'\nraise SystemExit\n")
    assert inspect(prefix, "link")[:2] == ("2.9.1", "13.0")
    (prefix / "version.py").write_text("__version__ = (\n")
    with pytest.raises(ArchiveError, match="is damaged"):
        inspect(prefix, "link")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_device_code_that_nvcc_wrote(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text("__global__ void k(float* x) { x[0] = 1; }\n")
    codes = ["arch=compute_80,code=sm_80", "arch=compute_86,code=[sm_86,compute_86]", "arch=compute_90,code=compute_90"]
    words = [word for code in codes for word in ("-gencode", code)]
    target = tmp_path / "libtorch_cuda.so"
    built = subprocess.run(
        ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", *words, str(source), "-o", str(target)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode:
        pytest.skip(f"nvcc does not work here: {built.stderr[-200:]}")
    assert architectures(tmp_path) == ("8.0", "8.6+PTX", "compute_90")
