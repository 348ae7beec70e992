"""What the Trainer costs for each step: against the same loop by hand, Lightning Fabric and Accelerate.

One small model, one thread, the same batches; the forms take turns in short segments, in alternating order. The overhead is the
difference of a form's segment to the hand-written one next to it, by step: median and the middle half. Nothing is recorded or
saved, but in the row that says so. `batches()` is compared with the loop that gathers its batches by hand. Results go to
`results/train.json` and `.md`.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import flodl as fl

RESULTS = Path(__file__).parent / "results"
Run = Callable[[], None]
Batches = list[tuple[Tensor, Tensor]]
BATCH = 32
GATHERED = "by hand, batches gathered"


def by_hand(model: nn.Module, batches: Batches) -> Run:
    optimizer = optim.Adam(model.parameters())

    def run() -> None:
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def flodl_step(close: ExitStack, model: nn.Module, batches: Batches, **settings: Any) -> Run:
    trainer = fl.Trainer.setup(model, optim.Adam(model.parameters()), step="eager", quiet=True, **settings)

    def run() -> None:
        for x, y in batches:
            trainer.step(F.cross_entropy(trainer.model(x), y))

    return run


def by_hand_gathered(model: nn.Module, data: tuple[Tensor, Tensor]) -> Run:
    optimizer, (inputs, labels) = optim.Adam(model.parameters()), data

    def run() -> None:
        for index in torch.randperm(len(inputs)).split(BATCH):
            loss = F.cross_entropy(model(inputs.index_select(0, index)), labels.index_select(0, index))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def flodl_batches(close: ExitStack, model: nn.Module, data: tuple[Tensor, Tensor]) -> Run:
    optimizer = optim.Adam(model.parameters())
    trainer = fl.Trainer.setup(model, optimizer, data, step="eager", batch_size=BATCH, quiet=True, record=False)
    close.callback(trainer.close)
    epochs = trainer.epochs(10**9)

    def run() -> None:
        next(epochs)
        for x, y in trainer.batches():
            trainer.step(F.cross_entropy(trainer.model(x), y))

    close.callback(epochs.close)
    return run


def fabric(model: nn.Module, batches: Batches) -> Run:
    from lightning_fabric import Fabric

    fab = Fabric(accelerator="cpu", devices=1)
    wrapped, optimizer = fab.setup(model, optim.Adam(model.parameters()))

    def run() -> None:
        for x, y in batches:
            loss = F.cross_entropy(wrapped(x), y)
            fab.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return run


def accelerated(model: nn.Module, batches: Batches) -> Run:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(model, optim.Adam(model.parameters()))

    def run() -> None:
        for x, y in batches:
            loss = F.cross_entropy(wrapped(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return run


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--rounds", type=int, default=60, help="segments of each form (default 60)")
    made.add_argument("--steps", type=int, default=200, help="steps in a segment (default 200)")
    given = made.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    batches = [(torch.randn(BATCH, 64), torch.randint(10, (BATCH,))) for _ in range(given.steps)]
    data = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as close:
        forms: dict[str, Run] = {
            "by hand": by_hand(copy.deepcopy(model), batches),
            "by hand, again": by_hand(copy.deepcopy(model), batches),
            GATHERED: by_hand_gathered(copy.deepcopy(model), data),
            "Trainer with batches()": flodl_batches(close, copy.deepcopy(model), data),
            "Trainer, batches of a loader of one's own": flodl_step(close, copy.deepcopy(model), batches, record=False),
            "the same, recorded": flodl_step(close, copy.deepcopy(model), batches, folder=folder, checkpoint=False),
        }
        for name, package, make in (
            ("Lightning Fabric", "lightning_fabric", fabric),
            ("Accelerate", "accelerate", accelerated),
        ):
            if importlib.util.find_spec(package):
                forms[name] = make(copy.deepcopy(model), batches)
            else:
                print(f"{name} is not installed and left out: pip install {package.replace('_', '-')}")
        seconds = measure(forms, given.rounds)
        results = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "load": os.getloadavg()[0],
            "rounds": given.rounds,
            "steps": given.steps,
            "plain_us": 1e6 * statistics.median(seconds["by hand"]) / given.steps,
            "forms": {
                name: overhead(spent, seconds[GATHERED if "batches()" in name else "by hand"], given.steps)
                for name, spent in seconds.items()
            },
        }
    text = markdown(results)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "train.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "train.md").write_text(text, encoding="utf-8")


def measure(forms: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Seconds of each form's segments."""
    for run in forms.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds):
        for name in list(forms) if number % 2 else reversed(forms):
            started = time.perf_counter()
            forms[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def overhead(spent: list[float], plain: list[float], steps: int) -> dict[str, float]:
    """Microseconds a step more than the plain loop of the same round, and the ratio of times."""
    more = sorted(1e6 * (a - b) / steps for a, b in zip(spent, plain, strict=True))
    ratios = [a / b for a, b in zip(spent, plain, strict=True)]
    quarter = len(more) // 4
    return {
        "us": statistics.median(more),
        "low": more[quarter],
        "high": more[-1 - quarter],
        "ratio": statistics.median(ratios),
    }


def markdown(results: dict[str, Any]) -> str:
    """The results as a table."""
    rows = [
        f"| {name} | {f['us']:+.1f} ({f['low']:+.1f} to {f['high']:+.1f}) | {f['ratio']:.3f} |"
        for name, f in results["forms"].items()
        if name != "by hand"
    ]
    machine = (
        f"torch {results['torch']}, Python {results['python']}, {results['processor']}, one thread, load {results['load']:.1f}; "
        f"{results['rounds']} rounds of {results['steps']} steps in turns; written by `./fdl bench train`."
    )
    step = f"The hand-written step takes {results['plain_us']:.0f} µs (MLP 64-64-64-10, batch 32, Adam)."
    head = ["# What the Trainer costs", "", machine, step, ""]
    return "\n".join([*head, "| form | µs a step more (middle half) | time / by hand |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    main()
