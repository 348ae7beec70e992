"""Four ranks that take themselves for two hosts of two. Started by `test_hosts.py`; each writes to `OUT/<rank>.pt`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from scenarios import RANK, Numbered, make_model, train
from torch import Tensor

import flodl as fl

os.environ["FLODL_HOST"] = f"host{RANK // 2}"


class Evaluations(fl.Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_eval_end(self, state: fl.FitState, control: fl.Control) -> None:
        self.steps.append(state.step)


def watched(policy: str, **settings: Any) -> dict[str, Any]:
    """The weights before each batch, which batch that was, and after which steps was evaluated."""
    model, weights, evaluations = make_model(), [], Evaluations()

    def loss(model: torch.nn.Module, batch: Any) -> Tensor:
        weights.append({name: t.detach().clone() for name, t in model.state_dict().items()})
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    def before(trainer: fl.Trainer) -> None:
        trainer._fit.callbacks.add(evaluations)
        trainer.plan_evaluation(Numbered(7), lambda m, b: {"x": m(b[0]).mean()})

    found = train(
        model, Numbered(128), 2, loss=loss, before=before, policy=policy, partition_ratios=[1] * 4, anchor=1,
        evaluate_steps=10, devices="cpu:4", **settings,
    )  # fmt: skip
    return {**found, "weights": weights, "evaluated": evaluations.steps}


if __name__ == "__main__":
    results = {"hosts": watched("cadence", hosts_every=3), "async": watched("async")}
    torch.save(results, Path(sys.argv[1]) / f"{RANK}.pt")
