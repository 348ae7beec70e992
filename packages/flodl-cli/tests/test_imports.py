"""What a start loads: no torch, ever, and the heavier libraries only where they are used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]

WATCHED = """\
import sys
from flodl_cli.main import run
status = run(sys.argv[2:])
sys.stdout.flush()
loaded = [m for m in sys.argv[1].split(",") if m in sys.modules]
sys.exit(f"loaded: {loaded}" if loaded else status)
"""


@pytest.mark.parametrize(
    ("words", "not_loaded"),
    [
        (["--help"], "torch,numpy,flodl,click,rich,yaml,dataclasses,argparse,subprocess"),
        (["--version"], "torch,numpy,flodl,click,rich,yaml,dataclasses,argparse,subprocess"),
        (["--complete", "fish", ""], "torch,numpy,flodl,click,rich,yaml,dataclasses,argparse,subprocess"),
        (["--complete", "fish", "train", "--"], "torch,numpy,flodl,click,rich,yaml,dataclasses,argparse,subprocess"),
        (["train", "--help"], "torch,numpy,flodl,click,rich,yaml"),
        (["test"], "torch,numpy,flodl,click,rich,yaml"),
        (["train"], "torch,numpy,flodl,click,rich,yaml"),
        (["config", "show"], "torch,numpy,flodl,rich,yaml"),
        (["schema", "list"], "torch,numpy,flodl,rich,yaml"),
        (["libtorch", "list"], "torch,numpy,flodl,rich,yaml,elftools,ssl,zipfile,pip"),
    ],
)
def test_a_start_loads_only_what_it_needs(fdl: Any, write: Write, words: list[str], not_loaded: str) -> None:
    write("fdl.yml", "commands: { test: { run: 'true' }, train: { path: train } }")
    write("train/fdl.yml", "entry: python train.py")
    write("train/train.py", "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n')\np.parse_args()\n")
    assert fdl("train").code == 0  # from here on manifests and arguments are known
    command = [sys.executable, "-c", WATCHED, not_loaded, *words]
    result = subprocess.run(command, env=fdl.environment(), capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
