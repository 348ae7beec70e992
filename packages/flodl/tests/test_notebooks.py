"""The notebooks are the tutorials' own text, and run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "notebooks"
_spec = importlib.util.spec_from_file_location("make_notebooks", ROOT / "docs" / "make_notebooks.py")
assert _spec
assert _spec.loader
make_notebooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_notebooks)

# In a process of its own: clients of kernels leave sockets behind.
EXECUTE = """
import sys, nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
manager = AsyncKernelManager(kernel_name="python3", transport="ipc")
NotebookClient(notebook, timeout=120, km=manager).execute()
print(sum(cell.cell_type == "code" for cell in notebook.cells), "cells ran")
"""


@pytest.mark.parametrize("page", make_notebooks.PAGES)
def test_a_notebook_is_its_tutorial_and_runs(page: str, tmp_path: Path) -> None:
    file = FOLDER / f"{page}.ipynb"
    written = nbformat.read(file, as_version=4)
    assert written == make_notebooks.notebook(page), "run `./fdl notebooks`"
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", EXECUTE, str(file)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    code = [cell for cell in written.cells if cell.cell_type == "code"]
    assert done.stdout == f"{len(code)} cells ran\n"
