"""What runs on each device when `Trainer.builder` trains on several. It is started by `COMMAND`, payload, parent's `sys.path`."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path

import torch

from flodl.distributed.environment import Place
from flodl.train.handle import TrainHandle

__all__ = ["COMMAND", "ERROR", "PROGRESS", "RESULT", "STOP"]

# Not `-m`: that would import what lies in the current folder instead of what the parent has.
COMMAND = (
    "-c", "import sys; sys.path[:] = sys.argv[2:]; del sys.argv[2:]; from flodl.train.worker import main; main()"
)  # fmt: skip

PROGRESS, STOP = "progress", "stop"  # in the launcher's store
RESULT, ERROR = "result.pt", "error."  # beside the payload
_LOOK_SECONDS = 0.1


def main() -> None:
    """Train as the payload's builder says; the first rank leaves the result beside the payload."""
    payload = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    try:
        handle = pickle.loads(payload.read_bytes()).run_here()
        _accompany(handle)
        state = handle.join()
        if handle.trainer.rank == 0:
            plain = {**vars(state), "folder": state.folder and str(state.folder)}
            part = payload.with_name(f"{RESULT}.part")
            torch.save(plain, part)
            part.replace(payload.with_name(RESULT))
    except Exception as error:
        text = traceback.format_exc()
        try:
            told = pickle.dumps((error, text))
            pickle.loads(told)
        except Exception:  # an error that does not travel is told by its words
            told = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))
        payload.with_name(f"{ERROR}{rank}").write_bytes(told)
        raise SystemExit(1) from None  # the parent's join() raises the error


def _accompany(handle: TrainHandle) -> None:
    """Tell the parent how far training is, and training that the parent wants it to stop."""
    store = Place.found().store(30.0)
    stopping = False
    while True:
        progress = handle.poll()
        if handle.trainer.rank == 0:
            told = {
                "epoch": progress.epoch,
                "step": progress.step,
                "history": handle.metrics(),
                "state": progress.state,
            }
            store.set(PROGRESS, json.dumps(told))
        if progress.state != "running":
            return
        if not stopping and store.check([STOP]):
            stopping = True
            handle.stop()
        time.sleep(_LOOK_SECONDS)
