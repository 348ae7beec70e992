"""`torch.fx` shows progress with tqdm where that is installed, and tqdm then keeps a thread for the whole process."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("tqdm") is not None:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # its own switch against the thread
