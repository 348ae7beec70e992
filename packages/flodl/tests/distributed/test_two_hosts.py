"""Two hosts as network namespaces with a slow link between them, and torchrun on each: `examples/cluster/hosts.sh`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parents[4] / "examples" / "cluster"


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def possible() -> bool:
    """Whether this machine lets network namespaces be made."""
    if os.getuid() or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"flodl-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not possible(), reason="needs root, iproute2 and network namespaces"),
]


@pytest.mark.parametrize(
    ("words", "elastic"), [("--policy cadence --hosts-every 2", ""), ("--policy async", "1")], ids=["static", "elastic"]
)
def test_four_processes_of_two_hosts_train_together(words: str, elastic: str) -> None:
    command = [str(CLUSTER / "hosts.sh"), str(CLUSTER / "train.py"), "--epochs", "2", *words.split()]
    env = {**os.environ, "PYTHON": sys.executable, "ELASTIC": elastic}
    before = namespaces()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    if done.returncode == 77:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"on 4 processes: [\d,]+ samples a second, test accuracy (0\.\d+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) > 0.6
    assert namespaces() == before
