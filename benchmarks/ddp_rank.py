"""One training of `ddp.py`: what a process (or each of several) does. Prints its result as JSON in its last line."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
from ddp_tasks import TASKS, Task
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import flodl as fl
from flodl.distributed.slowed import Slowed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=["alone", "ddp", "sync", "cadence", "async"])
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--speeds", nargs="+", type=float, default=[1.0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--change-at", type=float, help="after so many seconds the last rank is three times slower")
    options = parser.parse_args()
    task = TASKS[options.task]()
    rank = int(os.environ.get("RANK", "0"))
    if options.form == "alone":
        found = plain(task, options, Slowed(options.speeds[rank]), task.model(options.seed), 1, 0)
    elif options.form == "ddp":
        dist.init_process_group("gloo")
        model = DistributedDataParallel(task.model(options.seed))
        found = plain(task, options, Slowed(options.speeds[rank]), model, dist.get_world_size(), rank)
        dist.destroy_process_group()
    else:
        found = flodl(task, options)
    if rank == 0 or options.form == "alone":
        print(json.dumps(found), flush=True)


def plain(task: Task, options: Any, slowed: Slowed, model: Any, ranks: int, rank: int) -> dict[str, Any]:
    """The loop by hand: an equal part of each epoch for every rank."""
    optimizer, (x, y), size = task.optimizer(model), task.train, task.batch_size
    samples, start = 0, time.perf_counter()
    for epoch in range(options.epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * options.seed + epoch))
        mine = order[: len(x) // ranks * ranks].view(ranks, -1)[rank]
        for index in mine.split(size):
            optimizer.zero_grad()
            task.loss(model, (x[index], y[index])).backward()
            optimizer.step()
            slowed.after_batch()
            samples += len(index) * ranks
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "samples": samples, **task.evaluate(getattr(model, "module", model))}


def flodl(task: Task, options: Any) -> dict[str, Any]:
    """The same by the Trainer, on as many CPU processes as there are speeds."""
    model = task.model(options.seed)
    trainer = fl.Trainer.setup(
        model, task.optimizer(model), torch.utils.data.TensorDataset(*task.train), batch_size=task.batch_size,
        devices=f"cpu:{len(options.speeds)}", simulate_speed=options.speeds, policy=options.form, seed=options.seed,
        step="eager", record=False, quiet=True, **options.settings,
    )  # fmt: skip
    start, marks = None, []
    for _ in trainer.epochs(options.epochs):
        for batch in trainer.batches():
            start = start or time.perf_counter()
            trainer.step(task.loss(trainer.model, batch))
        marks.append(time.perf_counter() - (start or 0.0))
    seconds = time.perf_counter() - (start or 0.0)
    samples = options.epochs * len(task.train[0])
    return {"seconds": seconds, "samples": samples, "epochs_at": marks, **task.evaluate(model)}


if __name__ == "__main__":
    main()
