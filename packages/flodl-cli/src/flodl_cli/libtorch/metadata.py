"""What the files of a libtorch say that it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from flodl_cli.libtorch.arch import Arch
from flodl_cli.libtorch.binaries import architectures, cxx11_abi
from flodl_cli.libtorch.errors import ArchiveError

__all__ = ["inspect"]


def inspect(prefix: Path, source: str, sha256: str = "", *, linked: bool = False) -> Arch:
    """Reads version and CUDA from version.py or build-version, the rest from the libraries. Nothing is imported or run."""
    lib = prefix / "lib"
    if not any(lib.glob("libtorch.*")):
        raise ArchiveError(f"{prefix} holds no lib/libtorch.so: that is no libtorch")
    version, cuda = _version(prefix)
    return Arch(
        version, cuda, architectures(lib), cxx11_abi(lib), source, sha256, str(prefix) if linked else prefix.name
    )


def _version(prefix: Path) -> tuple[str, str | None]:
    """The version, and the CUDA it was built with."""
    module, plain = prefix / "version.py", prefix / "build-version"
    if module.is_file():
        values = _constants(module)
        if isinstance(version := values.get("__version__"), str):
            cuda = values.get("cuda")
            return version, cuda if isinstance(cuda, str) else None
    if plain.is_file():
        version = plain.read_text(encoding="utf-8").strip()
        tag = re.search(r"\+cu(\d+)(\d)$", version)
        return version, f"{tag[1]}.{tag[2]}" if tag else None
    raise ArchiveError(f"{prefix} has neither version.py nor build-version: its version is not known")


def _constants(path: Path) -> dict[str, object]:
    """The names that a Python file gives plain values."""
    values: dict[str, object] = {}
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise ArchiveError(f"{path} is damaged: {error}") from None
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            values.update({t.id: value.value for t in targets if isinstance(t, ast.Name)})
    return values
