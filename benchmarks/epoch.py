"""Whole trainings on real data, from loading to evaluation and recording: epochs a second against the plain PyTorch loop.

Each round runs every form once from the same start, in alternating order: the plain loop with torch's DataLoader, flodl's
builder on a machine that does not know the model ("first time") and on one that does ("again", which reads what an earlier
run remembered), and in `compare` also Lightning Fabric and Accelerate. Trainings end with the same test accuracy, to noise.
`publish` writes `results/epoch.*` (`results/compare.*`).
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bench
import platformdirs
import torch
from step_models import Tokens
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import flodl as fl

ROOT = Path(__file__).parent.parent


class Job(NamedTuple):
    model: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch_size: int
    epochs: int
    learning_rate: float = 1e-3


def digits(epochs: int) -> Job:
    train, test = fl.data.Digits("train"), fl.data.Digits("test")
    parts = [ds[list(range(len(ds)))] for ds in (train, test)]
    model = lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))  # noqa: E731
    return Job(model, parts[0], parts[1], 32, 20 * epochs)


def fashion(epochs: int) -> Job | None:
    kept = platformdirs.user_cache_path("flodl", appauthor=False) / "tests" / "fashion-mnist"
    if "FLODL_DATA" not in os.environ and kept.is_dir():
        os.environ["FLODL_DATA"] = str(kept)
    try:
        train, test = fl.data.FashionMNIST("train"), fl.data.FashionMNIST("test")
    except fl.FlodlError as error:
        print(f"Fashion-MNIST is left out: {error}", file=sys.stderr)
        return None

    def model() -> nn.Module:
        body = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        return nn.Sequential(
            *body, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    return Job(model, train[list(range(12800))], test[list(range(2000))], 64, epochs)


def char_gpt(epochs: int) -> Job:
    """The next character of this repository's own pages."""
    text = "".join(p.read_text("utf-8") for p in sorted((ROOT / "docs").rglob("*.md")))
    letters = sorted(set(text))
    numbers = torch.tensor([letters.index(c) for c in text])
    windows = numbers[: len(numbers) // 65 * 65].reshape(-1, 65)
    x, y = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    cut = len(x) * 9 // 10
    model = lambda: Tokens(len(letters), 64, heads=4, layers=2, hidden=256, tokens=64)  # noqa: E731
    return Job(model, (x[:cut], y[:cut]), (x[cut:], y[cut:]), 16, epochs)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}


def by_hand(job: Job, model: nn.Module, wrap: Any = None) -> float:
    """The loop that everyone writes; wrap: Fabric or Accelerate put around its parts. Returns the test accuracy."""
    optimizer: Any = optim.Adam(model.parameters(), job.learning_rate)
    loader: Any = DataLoader(TensorDataset(*job.train), job.batch_size, shuffle=True)
    tests = DataLoader(TensorDataset(*job.test), 256)
    backward = Tensor.backward
    if wrap:
        model, optimizer, loader, backward = wrap(model, optimizer, loader)
    right = 0.0
    for _ in range(job.epochs):
        model.train()
        losses = []
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            backward(loss)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            hits = [(model(x).argmax(1) == y).float().reshape(len(y), -1).mean(1).sum() for x, y in tests]
            right = float(torch.stack(hits).sum())
    return right / len(job.test[0])


def fabric(model: nn.Module, optimizer: Any, loader: Any) -> Any:
    from lightning_fabric import Fabric

    fab = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fab.setup(model, optimizer)
    return model, optimizer, fab.setup_dataloaders(loader), fab.backward


def accelerated(model: nn.Module, optimizer: Any, loader: Any) -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    return model, optimizer, loader, accelerator.backward


def flodl(job: Job, model: nn.Module, folder: str, cache: str) -> float:
    os.environ["FLODL_CACHE"] = cache
    handle = (
        fl.Trainer.builder(lambda: model, lambda p: optim.Adam(p, job.learning_rate), loss_of)
        .dataset(job.train)
        .batch_size(job.batch_size)
        .num_epochs(job.epochs)
        .evaluate(job.test, metrics)
        .settings(folder=folder, quiet=True)
        .run()
    )
    accuracy = handle.join().metrics["test_accuracy"]
    handle.trainer.close()
    reports.append(handle.trainer.step_report())
    return float(accuracy)


reports: list[str] = []


def measure(job: Job, rounds: int, compare: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    start = job.model()
    accuracies: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        known = f"{folder}/known"
        numbers = iter(range(10**6))
        forms: dict[str, Callable[[nn.Module], float]] = {
            "plain": lambda m: by_hand(job, m),
            "flodl, first time": lambda m: flodl(job, m, folder, f"{folder}/new-{next(numbers)}"),
            "flodl, again": lambda m: flodl(job, m, folder, known),
        }
        if compare:
            forms["Lightning Fabric"] = lambda m: by_hand(job, m, fabric)
            forms["Accelerate"] = lambda m: by_hand(job, m, accelerated)

        def timed(name: str) -> Callable[[int], float]:
            def run(_: int) -> float:
                model = copy.deepcopy(start)
                begun = time.perf_counter()
                accuracies.setdefault(name, []).append(forms[name](model))
                return time.perf_counter() - begun

            return run

        flodl(job, copy.deepcopy(start), folder, known)  # the run that learns
        seconds = bench.in_turns({n: timed(n) for n in forms}, dict.fromkeys(forms, 1), rounds)
    return {
        "epochs": job.epochs,
        "forms": {
            name: {
                **bench.ratios(seconds["plain"], spent),
                "epochs_per_s": job.epochs / statistics.median(spent),
                "accuracy": statistics.median(accuracies[name]),
            }
            for name, spent in seconds.items()
        },
        "report": reports[-1],
    }


def markdown(results: dict[str, Any]) -> Iterator[str]:
    yield from bench.heading("Whole trainings", results["command"], results["environment"], results["rounds"])
    yield "Times the plain loop's speed (median ± median distance), epochs a second, test accuracy at the end."
    yield ""
    names = list(next(iter(results["jobs"].values()))["forms"])
    yield "| data | epochs | " + " | ".join(names) + " |"
    yield "|---" * (2 + len(names)) + "|"
    for title, row in results["jobs"].items():
        cells = [
            f"{f['ratio']:.2f} ± {f['mad']:.2f}; {f['epochs_per_s']:.3g}/s; {f['accuracy']:.3f}"
            for f in row["forms"].values()
        ]
        yield f"| {title} | {row['epochs']} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    bench.add_options(parser)
    parser.add_argument("--compare", action="store_true", help="also Lightning Fabric and Accelerate")
    options = parser.parse_args()
    if options.quick:
        options.form = "quick"
    bench.refuse_if_busy(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    rounds = options.rounds or (5 if options.form == "publish" else 2)
    length = 4 if options.form == "publish" else 1
    name = "compare" if options.compare else "epoch"
    packages = ("lightning-fabric", "accelerate") if options.compare else ()
    results: dict[str, Any] = {
        "command": f"./fdl bench {name} {options.form}",
        "environment": bench.environment(packages),
        "rounds": rounds,
        "jobs": {},
    }
    jobs = {"digits": digits, "Fashion-MNIST": fashion, "characters": char_gpt}
    for title, make in jobs.items():
        job = make(length)
        if job is not None:
            print(title, file=sys.stderr, flush=True)
            results["jobs"][title] = measure(job, rounds, options.compare)
    text = "\n".join(markdown(results)) + "\n"
    print(text)
    if options.form == "publish":
        rows = {t: {n: f["ratio"] for n, f in r["forms"].items()} for t, r in results["jobs"].items()}
        bench.write(name, results, text, bench.chart("Whole trainings", rows))


if __name__ == "__main__":
    main()
