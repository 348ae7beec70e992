"""What a shell or CMake has to be told, so that tch-rs and find_package(Torch) find a libtorch."""

from __future__ import annotations

import shlex
import sys

from flodl_cli.libtorch.store import Installed

__all__ = ["SHELLS", "exports", "variables"]

SHELLS = ("bash", "zsh", "fish", "cmake")


def variables(variant: Installed) -> dict[str, str]:
    """The variables and their values; the last two are lists that keep what stood there."""
    loader = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    return {
        "LIBTORCH": str(variant.prefix),
        "LIBTORCH_CXX11_ABI": str(variant.arch.abi),
        "CMAKE_PREFIX_PATH": str(variant.prefix),
        loader: str(variant.lib),
    }


def exports(variant: Installed, shell: str) -> list[str]:
    """The lines to evaluate: `eval "$(fdl libtorch env)"`, `fdl libtorch env --shell fish | source`."""
    if shell == "cmake":
        return [f"list(PREPEND CMAKE_PREFIX_PATH {_cmake_quoted(str(variant.prefix))})"]
    lines = []
    for name, value in variables(variant).items():
        is_list = name.endswith("_PATH")
        if shell == "fish":
            keep = f" ${name}" if is_list else ""
            lines.append(f"set -gx {'--path ' if is_list else ''}{name} {_fish_quoted(value)}{keep};")
        else:
            keep = f"${{{name}:+:${name}}}" if is_list else ""
            lines.append(f"export {name}={shlex.quote(value)}{keep}")
    return lines


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _cmake_quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace(";", "\\;") + '"'
