"""The torch of a Python environment as a libtorch, without a copy: the store only notes where it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from flodl_cli.errors import CliError
from flodl_cli.libtorch.metadata import inspect
from flodl_cli.libtorch.store import Installed, Store
from flodl_cli.machine.asking import answer

__all__ = ["link", "torch_folder"]

# Finds the package without importing it, which would take seconds; a folder of that name beside it is none.
_FIND = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import importlib.util, json; "
    "s = importlib.util.find_spec('torch'); print('\\n' + json.dumps(s and s.origin))"
)


def torch_folder(python: str, environ: Mapping[str, str]) -> Path:
    """Where the torch of a Python is."""
    said = answer([python, "-c", _FIND], {**environ, "PYTHONWARNINGS": "ignore"}, timeout_s=60.0)
    if said is None or said[0] != 0:
        raise CliError(f"{python} does not run: {said[1].strip()[-300:] if said else 'no answer for 60 s'}")
    try:
        origin = json.loads(said[1].splitlines()[-1])
    except (IndexError, ValueError):
        raise CliError(
            f"{python} does not answer as a Python does: {said[1].strip()[-300:] or 'with nothing'}"
        ) from None
    if not origin:
        raise CliError(f"{python} has no torch: activate the environment that has it, or --python names its Python")
    return Path(origin).parent


def link(store: Store, python: str, environ: Mapping[str, str], *, activate: bool = True) -> tuple[Installed, bool]:
    """Notes the torch of `python`; returns the variant and whether it was known already."""
    prefix = torch_folder(python, environ)
    arch = inspect(prefix, "link", linked=True)
    with store.changing():
        for old in store.installed():
            if old.arch.source == "link" and old.prefix == prefix and old.arch != arch:  # another torch since
                store.remove(old)
        name, there = store.name_for("linked", arch.tag, arch)
        variant = Installed(name, store.root / name, arch) if there else store.install(store.staging(), name, arch)
        if activate:
            store.activate(variant)
    return variant, there
