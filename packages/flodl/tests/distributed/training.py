"""A training on several ranks for `test_ranks.py`: `training.py OUT '{"policy": ..., "epochs": ...}'`.

Each rank appends a line for every batch to `OUT/seen.<uid>`: epoch, window, numbers of its samples.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import flodl as fl

out, given = Path(sys.argv[1]), json.loads(sys.argv[2])
RANK = int(os.environ.get("RANK", "0")) if "FLODL_JOIN" not in os.environ else 9
EPOCHS = given.pop("epochs", 3)
FAULT, AT = given.pop("fault", [None, 0])  # [rank, what], at which batch of that rank
HOSTS = given.pop("hosts", 1)
if HOSTS > 1:  # the first ranks are on one, the last on another
    os.environ["FLODL_HOST"] = f"host{RANK * HOSTS // given.pop('ranks')}"
SLOW = given.pop("batch_seconds", 0.002)


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, 5, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.x[index].sum().sin(), index


torch.manual_seed(0)
width = given.pop("width", 7)
model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 1))
samples = given.pop("samples", 600) + (1 if FAULT == [1, "data"] and RANK == 1 else 0)
trainer = fl.Trainer.setup(
    model, torch.optim.SGD(model.parameters(), lr=0.05), Numbered(samples), folder=str(out / "runs"), batch_size=8,
    step="eager", **given,
)  # fmt: skip
with trainer, open(out / f"seen.{RANK}.{os.getpid()}", "w") as seen:
    count = 0
    for epoch in trainer.epochs(EPOCHS):
        for x, y, numbers in trainer.batches():
            leg = getattr(trainer._fit.column, "_leg", None)
            window = leg.window.number if leg else trainer.global_step
            print(epoch, window, *numbers.tolist(), file=seen, flush=True)
            trainer.step(F.mse_loss(trainer.model(x).squeeze(1), y))
            time.sleep(SLOW)
            count += 1
            if FAULT and FAULT[0] == RANK and count == AT:
                if FAULT[1] == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif FAULT[1] == "raise":
                    raise ValueError("a bug on one rank")
                elif FAULT[1] == "freeze":
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif FAULT[1] == "full":  # no file can grow beyond 16 KiB any more: less than a checkpoint has
                    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
    total = sum(float(p.detach().double().sum()) for p in model.parameters())
    if trainer.rank == 0:
        folder = trainer.run.folder
        print(
            "END",
            json.dumps({"ranks": trainer.ranks, "steps": trainer.global_step, "sum": total, "folder": str(folder)}),
        )
    (out / f"end.{RANK}").write_text(repr(total))
