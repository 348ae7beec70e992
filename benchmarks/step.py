"""How fast a training step is: the plain loop, what a user would compile, and flodl's compiled whole step, in turns.

Each round times every form once, in alternating order, on the same model and data, so that a machine whose speed drifts
disturbs all alike. Ratios are of the plain loop's time to the form's (above 1: faster than plain), medians over the rounds with
the middle 60%. The losses after the same number of steps are compared with the plain loop's. Results go to
`results/step.json` and `results/step.md`.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from step_models import SMALL, TEN, Task

from flodl.train.compiled import WholeStep

RESULTS = Path(__file__).parent / "results"
LOSS_STEPS = 20  # after which the losses are compared
Row = dict[str, Any]
Step = Callable[[], torch.Tensor]


def forms(task: Task) -> dict[str, tuple[Step, torch.optim.Optimizer]]:
    """Each form of the step, on a copy of the model of its own."""

    def plain(compiled: bool, **fused: bool) -> tuple[Step, torch.optim.Optimizer]:
        model = copy.deepcopy(task.model)
        optimizer = task.optimizer(model)
        for group in optimizer.param_groups:
            group.update(fused)
        called = torch.compile(model) if compiled else model

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = task.loss(called(task.x), task.y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, optimizer

    def whole() -> tuple[Step, torch.optim.Optimizer]:
        model = copy.deepcopy(task.model)
        optimizer = task.optimizer(model)
        told: set[torch.nn.Module] = set()
        compiled = WholeStep(lambda m, b: task.loss(m(b[0]), b[1]), model, optimizer)

        def step() -> torch.Tensor:
            result = compiled.step((task.x, task.y))
            if result is not None:
                return result[0]
            if compiled.reason and model not in told:
                told.add(model)
                print(f"  eager: {compiled.reason}", file=sys.stderr, flush=True)
            optimizer.zero_grad()
            loss = task.loss(model(task.x), task.y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, optimizer

    return {
        "plain": plain(False),
        "fused optimizer": plain(False, fused=True, foreach=False),
        "torch.compile + fused": plain(True, fused=True, foreach=False),
        "whole step": whole(),
    }


def measure(make: Callable[[], Task], rounds: int, segment_s: float) -> Row:
    """Time all forms of one model."""
    torch.manual_seed(0)
    steps = {name: step for name, (step, _) in forms(make()).items()}
    losses, first_s = {}, {}
    for name, step in steps.items():
        start = time.perf_counter()
        step(), step()
        first_s[name] = time.perf_counter() - start
        for _ in range(LOSS_STEPS - 3):
            step()
        losses[name] = step().item()
    start = time.perf_counter()
    steps["plain"]().item()
    times = max(1, math.ceil(segment_s / (time.perf_counter() - start)))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name in list(steps) if number % 2 else reversed(steps):
            start = time.perf_counter()
            for _ in range(times):
                steps[name]().item()
            seconds[name].append((time.perf_counter() - start) / times)
    row: Row = {"plain_ms": 1e3 * statistics.median(seconds["plain"]), "forms": {}}
    for name, spent in seconds.items():
        ratios = sorted(p / s for p, s in zip(seconds["plain"], spent, strict=True))
        fifth = len(ratios) // 5
        row["forms"][name] = {
            "ratio": statistics.median(ratios),
            "low": ratios[fifth],
            "high": ratios[-1 - fifth],
            "loss_difference": abs(losses[name] - losses["plain"]) / abs(losses["plain"]),
            "first_two_steps_s": first_s[name],
        }
    return row


def markdown(results: Row) -> str:
    """The results as a table, with the geometric means."""
    names = [n for n in next(iter(results["models"].values()))["forms"] if n != "plain"]
    machine = f"torch {results['torch']}, {results['cpu']}, {results['threads']} thread(s), {results['rounds']} rounds in turns"
    explained = (
        "Ratio: how many times faster than the plain loop, median and the middle 60%. "
        f"Difference: of the loss after {LOSS_STEPS} steps, relative."
    )
    out = [
        "# The training step",
        "",
        f"{machine}, load {results['load']:.1f} at the start; written by `./fdl bench step`.",
        explained,
        "",
        "| model | plain ms | " + " | ".join(f"{n} | difference" for n in names) + " |",
        "|---" * (2 + 2 * len(names)) + "|",
    ]
    for model, row in results["models"].items():
        cells = []
        for n in names:
            f = row["forms"][n]
            cells.append(f"{f['ratio']:.2f} ({f['low']:.2f} to {f['high']:.2f}) | {f['loss_difference']:.0e}")
        out.append(f"| {model} | {row['plain_ms']:.2f} | " + " | ".join(cells) + " |")
    for title, models in (("ten models", TEN), ("five small models", SMALL)):
        rows = [row for model, row in results["models"].items() if model in models]
        if rows:
            means = [statistics.geometric_mean(r["forms"][n]["ratio"] for r in rows) for n in names]
            out.append(f"| geometric mean, {title} | | " + " | ".join(f"{m:.2f} | " for m in means) + " |")
    return "\n".join(out) + "\n"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--models", nargs="*", choices=[*SMALL, *TEN], help="which models (default: the small five)")
    made.add_argument("--all", action="store_true", help="all fifteen models")
    made.add_argument("--rounds", type=int, default=10, help="rounds of measurements (default 10)")
    made.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    made.add_argument("--segment", type=float, default=0.3, help="seconds per form and round, at least (default 0.3)")
    return made


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(options.threads)
    everything = {**TEN, **SMALL}
    chosen = options.models or (everything if options.all else SMALL)
    results: Row = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "threads": options.threads,
        "rounds": options.rounds,
        "load": os.getloadavg()[0],
        "models": {},
    }
    for number, name in enumerate(chosen, start=1):
        print(f"[{number}/{len(chosen)}] {name}", file=sys.stderr, flush=True)
        results["models"][name] = measure(everything[name], options.rounds, options.segment)
    text = markdown(results)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "step.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "step.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
