"""With the real torch: download, build C++ against it with CMake and with a plain compiler, remove."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAIN = """\
#include <torch/torch.h>
#include <concepts>
#include <iostream>

template <typename T>
concept Number = std::integral<T> || std::floating_point<T>;
Number auto halved(Number auto x) { return x / 2; }  // C++20

int main() {
  torch::manual_seed(0);
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto x = torch::randn({32, 4}), y = x.sum(1, true);
  auto loss_of = [&] { return torch::mse_loss(model(x), y); };
  auto before = loss_of();
  optimizer.zero_grad();
  before.backward();
  optimizer.step();
  auto after = loss_of();
  bool learns = after.item<float>() < before.item<float>();
  std::cout << TORCH_VERSION << (learns ? " learns " : " does not learn ") << halved(4) << "\\n";
}
"""

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(train CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
find_package(Torch REQUIRED)
add_executable(train train.cpp)
target_link_libraries(train PRIVATE ${TORCH_LIBRARIES})
"""


HALF = """\
#include <c10/util/Half.h>
#include <cstdio>
int main() { std::printf("%g\\n", float(c10::Half(1.5f))); }
"""


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="needs cmake and g++")
def test_a_cpp_program_trains_with_the_downloaded_libtorch(
    libtorch: Any, write: Callable[..., Path], tmp_path: Path, flodl_home: Path
) -> None:
    installed = libtorch("download", "--cpu")
    assert installed.code == 0, installed.err
    assert "installed, active" in installed.out
    exports = libtorch("env", "--shell", "bash").out
    assert exports in installed.out

    # CMake: by the variable, and without it by the line for CMakeLists.txt
    write("train.cpp", TRAIN)
    write("CMakeLists.txt", CMAKE)
    _shell(f"{exports}cmake -S . -B build -DCMAKE_BUILD_TYPE=Debug && cmake --build build", tmp_path)
    line = libtorch("env", "--shell", "cmake").out
    write("CMakeLists.txt", CMAKE.replace("find_package", line + "find_package"))
    _shell("cmake -S . -B other", tmp_path)
    assert _shell("./build/train", tmp_path) == "2.13.0 learns 2\n"

    # a plain compiler, which needs no more than the variables
    write("one.cpp", HALF)
    compiler = (
        "g++ -std=c++20 one.cpp -I$LIBTORCH/include -L$LIBTORCH/lib -lc10 -D_GLIBCXX_USE_CXX11_ABI=$LIBTORCH_CXX11_ABI"
    )
    assert _shell(f"{exports}{compiler} -o one && ./one", tmp_path) == "1.5\n"

    assert libtorch("remove", "cpu", "--yes").code == 0
    assert sorted(p.name for p in (flodl_home / "libtorch").iterdir()) == [".lock", "precompiled"]
    assert libtorch("list", "--json").out == "[]\n"


def _shell(line: str, folder: Path) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH", "LIBTORCH")}
    result = subprocess.run(["bash", "-ec", line], cwd=folder, env=env, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
