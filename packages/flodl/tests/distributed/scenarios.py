"""Trainings on two ranks, one after the other in the same processes. Started by `test_policies.py`, which judges them.

Each rank writes what every scenario returned to `OUT/<rank>.pt`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import flodl as fl

RANK = int(os.environ.get("RANK", "0"))
SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[function.__name__] = function
    return function


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """A linear problem in float64; each sample knows its number."""

    def __init__(self, n: int, features: int = 5) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, features, generator=generator, dtype=torch.float64)
        self.y = self.x.sum(1, keepdim=True).sin()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.y[index], index


def make_model(seed: int = 0, width: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 1)).double()


def mse(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def train(
    model: nn.Module,
    data: Any,
    epochs: int,
    *,
    loss: Callable[[nn.Module, Any], Tensor] = mse,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.05),
    before: Callable[[fl.Trainer], object] = lambda trainer: None,
    each: Callable[[fl.Trainer, int], object] = lambda trainer, number: None,
    **settings: Any,
) -> dict[str, Any]:
    settings = {"batch_size": 4, "record": False, "quiet": True, "step": "eager", "timeout": 30.0, **settings}
    trainer = fl.Trainer.setup(model, optimizer(model.parameters()), data, **settings)
    before(trainer)
    seen: list[list[int]] = []
    number = 0
    for _ in trainer.epochs(epochs):
        seen.append([])
        for batch in trainer.batches():
            seen[-1].extend(int(i) for i in batch[2]) if len(batch) > 2 else None
            trainer.step(loss(trainer.model, batch))
            number += 1
            each(trainer, number)
    trainer.close()
    state = {name: t.detach().clone() for name, t in model.state_dict().items()}
    return {"state": state, "seen": seen, "history": trainer.history, "steps": trainer.global_step, "batches": number}


@scenario
def sync_equal() -> Any:
    return train(
        make_model(),
        Numbered(64),
        2,
        policy="sync",
        partition_ratios=[1, 1],
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
    )


@scenario
def sync_uneven_last_batch() -> Any:
    return train(make_model(), Numbered(61), 2, policy="sync", partition_ratios=[3, 1], clip_norm=0.1)


@scenario
def sync_accumulate() -> Any:
    return train(make_model(), Numbered(64), 1, policy="sync", partition_ratios=[1, 1], batch_size=2, accumulate=2)


@scenario
def cadence_of_one_batch() -> Any:
    return train(make_model(), Numbered(64), 2, policy="cadence", partition_ratios=[1, 1], anchor=1)


@scenario
def cadence_covers() -> Any:
    return train(make_model(), Numbered(103), 5, policy="cadence", simulate_speed=[1.0, 0.4])


@scenario
def async_covers() -> Any:
    return train(make_model(), Numbered(103), 5, policy="async", simulate_speed=[1.0, 0.4])


@scenario
def async_outer_ema_schedule() -> Any:
    return train(
        make_model(), Numbered(103), 4, policy="async", outer=True, ema=0.9, scheduler="cosine", warmup_steps=3,
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), accumulate=2,
    )  # fmt: skip


@scenario
def tiny_dataset() -> Any:
    return [train(make_model(), Numbered(1), 3, policy=policy, batch_size=1) for policy in ("sync", "cadence", "async")]


class Branches(nn.Module):
    """The first samples of the data use branch a, the others branch b; with tied weights, BatchNorm and frozen ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm = nn.BatchNorm1d(5)
        self.a, self.b, self.unused = nn.Linear(5, 1), nn.Linear(5, 1), nn.Linear(5, 1)
        self.tied = self.a
        self.frozen = nn.Linear(5, 1)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        branch = self.a if RANK == 0 else self.b
        out: Tensor = branch(h) + 0.1 * self.frozen(h)
        return out


@scenario
def branches_sync() -> Any:
    return train(
        Branches().double(),
        Numbered(64),
        2,
        policy="sync",
        partition_ratios=[1, 1],
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5),
    )


@scenario
def branches_cadence_thawed() -> Any:
    def thaw(trainer: fl.Trainer, number: int) -> None:
        if number == 6 + 3 * RANK:
            trainer.model.get_submodule("frozen").requires_grad_(True)

    model = Branches().double()
    return train(model, Numbered(64), 3, policy="cadence", each=thaw)


@scenario
def sparse_embedding() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1)).double()
    x = torch.arange(64).view(32, 2) % 20
    data = torch.utils.data.TensorDataset(x, torch.ones(32, 1, dtype=torch.float64))
    return train(model, data, 2, policy="sync", partition_ratios=[1, 1])


@scenario
def nan_on_one_rank() -> Any:
    def poison(model: nn.Module, batch: Any) -> Tensor:
        poison.calls += 1  # type: ignore[attr-defined]
        return mse(model, batch) * (float("nan") if RANK == 1 and poison.calls == 3 else 1.0)  # type: ignore[attr-defined]

    found = {}
    for policy, nan_policy in (("cadence", "warn"), ("sync", "skip"), ("cadence", "skip")):
        poison.calls = 0  # type: ignore[attr-defined]
        found[f"{policy} {nan_policy}"] = train(
            make_model(), Numbered(64), 2, policy=policy, loss=poison, nan_policy=nan_policy, partition_ratios=[1, 1]
        )
    return found


@scenario
def own_loader() -> Any:
    """Loaders of different lengths, a loop that calls the optimizer itself."""
    found = {}
    for policy in ("sync", "cadence", "async"):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer = fl.Trainer.setup(model, optimizer, policy=policy, record=False, quiet=True, step="eager", epochs=2)
        data = Numbered(40 if RANK == 0 else 12)
        count = 0
        for _ in trainer.epochs():
            for at in range(0, len(data), 4):
                optimizer.zero_grad()
                F.mse_loss(trainer.model(data.x[at : at + 4]), data.y[at : at + 4]).backward()
                optimizer.step()
                count += 1
        trainer.close()
        found[policy] = {"state": {k: v.clone() for k, v in model.state_dict().items()}, "count": count}
    return found


@scenario
def plain_loop() -> Any:
    """No epochs(), no batches(): a loop of torch's own, which ends at different times."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = fl.Trainer.setup(model, optimizer, policy="cadence", record=False, quiet=True, step="eager")
    data = Numbered(40 if RANK == 0 else 12)
    for at in range(0, len(data), 4):
        optimizer.zero_grad()
        F.mse_loss(model(data.x[at : at + 4]), data.y[at : at + 4]).backward()
        optimizer.step()
    trainer.close()
    return {"state": {k: v.clone() for k, v in model.state_dict().items()}}


@scenario
def evaluation() -> Any:
    model = make_model()
    trainer = fl.Trainer.setup(
        model, torch.optim.SGD(model.parameters(), lr=0.05), Numbered(64), batch_size=4, record=False, quiet=True,
        step="eager", policy="cadence", evaluate_steps=5,
    )  # fmt: skip
    seen: list[float] = []
    trainer.plan_evaluation(Numbered(37), lambda m, b: {"mse": mse(m, b)})
    for _ in trainer.epochs(2):
        for batch in trainer.batches():
            trainer.step(mse(trainer.model, batch))
    seen.append(trainer.evaluate(Numbered(37), lambda m, b: {"mse": mse(m, b)})["mse"])
    trainer.close()
    return {"state": {k: v.clone() for k, v in model.state_dict().items()}, "mse": seen}


@scenario
def two_at_once() -> Any:
    first, second = (
        fl.Trainer.setup(
            model, torch.optim.SGD(model.parameters(), lr=0.05), Numbered(64), batch_size=4, record=False, quiet=True,
            policy="cadence",
        )
        for model in (make_model(), make_model(1))
    )  # fmt: skip
    said = ""
    for _ in first.epochs(1):
        for batch in first.batches():
            first.step(mse(first.model, batch))
            if not said:
                try:
                    next(second.epochs(1))
                except fl.TrainingError as error:
                    said = str(error)
    for _ in second.epochs(1):  # one after the other
        for batch in second.batches():
            second.step(mse(second.model, batch))
    steps = [first.global_step, second.global_step]
    first.close()
    second.close()
    return said, steps


@scenario
def left_early() -> Any:
    """One rank breaks out of its batches: the epoch is over for all."""
    model = make_model()
    trainer = fl.Trainer.setup(
        model, torch.optim.SGD(model.parameters(), lr=0.05), Numbered(200), batch_size=4, record=False, quiet=True,
        step="eager", policy="cadence",
    )  # fmt: skip
    epochs = 0
    for _ in trainer.epochs(3):
        epochs += 1
        for number, batch in enumerate(trainer.batches()):
            trainer.step(mse(trainer.model, batch))
            if RANK == 1 and number == 2:
                break
    trainer.close()
    return {"state": {k: v.clone() for k, v in model.state_dict().items()}, "epochs": epochs}


@scenario
def limits() -> Any:
    found = {}
    for policy in ("sync", "cadence", "async"):
        found[policy] = train(make_model(), Numbered(103), 50, policy=policy, max_steps=40)
        stop = lambda trainer, number: RANK == 1 and number == 3 and trainer.stop()  # noqa: E731
        found[f"{policy} stop"] = train(make_model(), Numbered(103), 50, policy=policy, each=stop)
    return found


@scenario
def compiled() -> Any:
    model = make_model().float()
    data = Numbered(64)
    data.x, data.y = data.x.float(), data.y.float()
    trainer = fl.Trainer.setup(
        model, torch.optim.SGD(model.parameters(), lr=0.05), data, batch_size=4, record=False, quiet=True,
        step="compiled", policy="cadence", partition_ratios=[1, 1], anchor=2,
    )  # fmt: skip
    for _ in trainer.epochs(2):
        for batch in trainer.batches():
            trainer.train_step(mse, batch)
    report = trainer.step_report()
    trainer.close()
    return {"state": {k: v.clone() for k, v in model.state_dict().items()}, "report": report}


@scenario
def by_hand() -> Any:
    """`fl.Ddp` on the group that the trainers of this process have formed, as a GAN's loop would use it."""
    one, two = make_model(RANK), nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 1)).double()
    ddp = fl.Ddp.wrap(one, two)
    start = {k: v.clone() for k, v in one.state_dict().items()}
    data = Numbered(12)
    mine = slice(0, 8) if RANK == 0 else slice(8, 12)
    mse(one, (data.x[mine], data.y[mine])).backward()
    ddp.weighted_all_reduce_gradients(8 if RANK == 0 else 4, one)
    weighted = [p.grad.clone() for p in one.parameters() if p.grad is not None]
    two(data.x[mine])
    one.zero_grad()
    if RANK == 1:
        mse(one, (data.x[mine], data.y[mine])).backward()
    ddp.all_reduce_gradients(one, two)
    halves = [p.grad.clone() for p in one.parameters() if p.grad is not None]
    assert all(p.grad is None for p in two.parameters())
    ddp.sync_buffers()
    return {"state": start, "weighted": weighted, "halves": halves, "buffers": [b.clone() for b in two.buffers()]}


class Pictures(nn.Module):
    """A convolution in channels_last, a parameter that is not contiguous, half precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(RANK)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.wide = nn.Parameter(torch.randn(6, 10)[:, ::2])
        self.half = nn.Linear(3, 2).to(torch.bfloat16)
        self.odd = nn.Parameter(torch.randn(3))


@scenario
def channels_last() -> Any:
    torch.manual_seed(RANK)
    body = nn.Sequential(
        nn.Unflatten(1, (5, 1, 1)), nn.Conv2d(5, 6, 3, padding=1), nn.Flatten(), nn.Linear(6, 1)
    ).double()
    return train(body.to(memory_format=torch.channels_last), Numbered(32), 1, policy="sync")  # type: ignore[call-overload]


@scenario
def flat_state() -> Any:
    from flodl.distributed import Averager, FlatState, Row
    from flodl.train import ranks

    model = Pictures()
    before = {k: v.detach().clone() for k, v in model.state_dict().items()}
    strides = {k: v.stride() for k, v in model.state_dict().items()}
    flat = FlatState(model)
    same = all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    aligned = all(p.data_ptr() % 64 == 0 for p in model.parameters())
    assert ranks._group is not None
    rows = Averager(flat, ranks._group).average(3.0 if RANK else 1.0, Row(samples=RANK + 1.0))
    after = {k: v.detach().clone() for k, v in model.state_dict().items()}
    kept = [k for k, v in model.state_dict().items() if v.stride() == strides[k]]
    return {"same": same, "aligned": aligned, "before": before, "after": after, "kept": kept, "rows": rows}


def main() -> None:
    out = Path(sys.argv[1])
    wanted = sys.argv[2:] or list(SCENARIOS)
    # the launcher starts this file anew for each rank at the first setup
    results = {}
    for name in wanted:
        print(name, flush=True)
        results[name] = SCENARIOS[name]()
    torch.save(results, out / f"{RANK}.pt")


if __name__ == "__main__":
    fl_devices = os.environ.get("SCENARIO_DEVICES", "cpu:2")
    original = fl.Trainer.setup.__func__  # type: ignore[attr-defined]

    def setup(cls: Any, *args: Any, **settings: Any) -> fl.Trainer:
        return original(cls, *args, **{"devices": fl_devices, **settings})  # type: ignore[no-any-return]

    fl.Trainer.setup = classmethod(setup)  # type: ignore[method-assign, assignment]
    main()
