"""What this folder needs beside the fixtures of all tests."""

from __future__ import annotations

import gc
import importlib.util

import pytest

# `torch.fx` shows progress with tqdm where that is installed, and tqdm then keeps a thread for the whole process.
if importlib.util.find_spec("tqdm") is not None:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # its own switch against the thread


@pytest.fixture(autouse=True, scope="session")
def imported_modules_are_not_searched_for_garbage() -> None:
    """A collection after each test walks through torch and transformers otherwise: half a second each time."""
    gc.collect()
    gc.freeze()
