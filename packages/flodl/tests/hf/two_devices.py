"""Run by test_devices.py: the same lines on one device or two. Arguments: a model, where to write the weights, `devices`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))
import hf_models

import flodl as fl

if __name__ == "__main__":
    folder, out, devices = sys.argv[1:]
    size = 2 if devices == "cpu:2" else 4
    head = fl.hf.AutoModelForTokenClassification.from_pretrained(folder)
    hf_models.without_dropout(head.model)
    samples = [(words[: 2 + i], tags[: 2 + i]) for i, (words, tags) in enumerate(2 * hf_models.samples_of("token")[:4])]
    trainer = fl.Trainer.setup_head(
        head,
        lambda p: torch.optim.SGD(p, lr=0.5),
        samples,
        devices=devices,
        policy="sync",
        batch_size=size,
        group_by_length=False,
        step="eager",
        quiet=True,
        record=False,
        checkpoint=False,
    )
    for _ in trainer.epochs(2):
        for batch in trainer.batches():
            trainer.step(head.compute_loss(batch))
    if trainer.rank == 0:
        torch.save({"state": head.model.state_dict(), "ranks": trainer.ranks}, out)
    trainer.close()
