"""How fast a training step is, against the plain loop and against what a user would compile, in turns.

Each round times every form once, in alternating order, on copies of the same model and data. Ratios are of the plain loop's
time to the form's (above 1: faster), medians over the rounds with the median distance from them. `auto` is what
`Trainer(step="auto")` chose, after its trials. Peak memory, the first step and a whole run of 1,000 steps (fewer where they
are long) are measured in processes of their own. `publish` writes `results/step.{json,md,svg}` after each model; with
`--models` it replaces these models in what the same machine, versions and threads have written.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import torch
from step_models import SMALL, TEN, Task

from flodl.train.engine import StepEngine

EVERYTHING = {**TEN, **SMALL}
USERS = "torch.compile + fused"
RECIPES = ("eager+fused", "eager+fused+onednn", "whole", "whole+onednn")
SEARCH_SECONDS = {"quick": 30.0, "publish": 80.0}
QUICK = ["small_mlp", "small_loop", "feedback_fixed", "gated_routing"]
LOSS_STEPS, LOSS_SECONDS = 200, 8.0
Row = dict[str, Any]


class Form:
    """A way to train a copy of a task's model. `form(n)` takes n steps and returns the seconds."""

    def __init__(self, task: Task, mode: str, cache: Path, total: Callable[[], int | None] = lambda: 10**9) -> None:
        self.model = copy.deepcopy(task.model)
        self.optimizer = task.optimizer(self.model)
        self.task, self.batch = task, (task.x, task.y)
        self.loss = math.nan
        self.engine: StepEngine | None = None
        called: Any = self.model
        if mode == USERS:
            called = torch.compile(self.model)
            for group in self.optimizer.param_groups:
                group.update(fused=True, foreach=False)
        elif mode != "plain":
            self.engine = StepEngine(self.model, self.optimizer, mode=mode, total_steps=total, cache=cache)
        self._fn = lambda model, batch: task.loss(model(batch[0]), batch[1])
        self._called = called

    def step(self) -> torch.Tensor:
        engine = self.engine
        if engine is None:
            self.optimizer.zero_grad()
            return self._eagerly()
        taken = engine.step(self._fn, self.batch)
        if taken is not None:
            return taken[0]
        with engine.eager():
            loss = self._eagerly()
            self.optimizer.zero_grad()
        return loss

    def _eagerly(self) -> torch.Tensor:
        loss = self._fn(self._called, self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def __call__(self, steps: int) -> float:
        if self.engine:
            self.step()  # sets up what the last segment's end took off
        start = time.perf_counter()
        for _ in range(steps):
            self.loss = self.step().item()
        seconds = time.perf_counter() - start
        if self.engine:
            self.engine.close()
        return seconds


def shuffled(task: Task, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Another batch of the same numbers."""
    generator = torch.Generator().manual_seed(number)
    x, y = (t.flatten()[torch.randperm(t.numel(), generator=generator)].view_as(t) for t in (task.x, task.y))
    return x, y


def measure(name: str, options: argparse.Namespace, rounds: int) -> Row:
    """All forms of one model, in this process."""
    torch.manual_seed(0)
    task = EVERYTHING[name]()
    cache = Path(tempfile.mkdtemp(prefix="flodl-bench-"))
    forms = {mode: Form(task, mode, cache) for mode in ("plain", USERS, *RECIPES, "auto")}
    for mode in (USERS, *RECIPES):
        forms[mode](2)
    auto = forms["auto"]
    assert auto.engine is not None
    start, limit = time.perf_counter(), SEARCH_SECONDS[options.form]
    searched = 0
    while time.perf_counter() - start < limit and not auto.engine.searched:
        auto.step()
        searched += 1
    chosen = str(auto.engine.recipe)
    plain_s = min(forms["plain"](1) for _ in range(2))
    segment_s = 0.1 if options.form == "quick" else 0.25
    steps = {mode: max(1, round(segment_s / plain_s)) for mode in forms}
    seconds = bench.in_turns(forms, steps, rounds)
    row: Row = {"plain_ms": 1e3 * statistics.median(seconds["plain"]), "chosen": chosen, "searched_steps": searched}
    row["forms"] = {mode: bench.ratios(seconds["plain"], spent) for mode, spent in seconds.items()}
    row["auto_over_users"] = bench.ratios(seconds[USERS], seconds["auto"])
    row["report"] = auto.engine.report()
    row["loss_steps"] = count = max(10, min(LOSS_STEPS, int(LOSS_SECONDS / plain_s)))
    losses = []
    for mode in ("plain", chosen):
        form = Form(task, mode, cache)
        for number in range(count):
            form.batch = shuffled(task, number)  # one batch alone is learnt by heart: a loss of 1e-9 is rounding
            form.loss = form.step().item()
        if form.engine:
            form.engine.close()
        losses.append(form.loss)
    row["loss_difference"] = abs(losses[1] - losses[0]) / abs(losses[0])
    return row


def alone(name: str, mode: str, seconds: float) -> Row:
    """One form in this process: the first step, a run, peak memory."""
    torch.manual_seed(0)
    task = EVERYTHING[name]()
    cache = Path(tempfile.mkdtemp(prefix="flodl-bench-"))
    # a probe of the step's time on another copy would be in the memory's peak: the parent gives the number of steps
    steps = int(seconds)
    form = Form(task, mode, cache, lambda: steps)
    start = time.perf_counter()
    form.step().item()
    first = time.perf_counter() - start
    for _ in range(steps - 1):
        form.step().item()
    total = time.perf_counter() - start
    if form.engine:
        form.engine.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first_s": first, "run_s": total, "steps": steps, "peak_mb": peak}


def in_a_process(*arguments: str) -> Row:
    command = [sys.executable, "-W", "ignore", __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: Row = json.loads(done.stdout.splitlines()[-1])
    return answer


def of_model(name: str, options: argparse.Namespace, rounds: int) -> Row:
    common = ["--threads", str(options.threads)] if options.threads else []
    row = in_a_process(options.form, "--one", name, "--rounds", str(rounds), *common)
    length = 5.0 if options.form == "publish" else 3.0
    steps = max(12, min(1000, int(length * 1e3 / row["plain_ms"])))
    # the compiler's worker processes outlive the program that compiled: what compiles comes last
    runs = [("plain", steps), ("auto", steps), ("auto", steps), ("plain", steps)]
    few = [(mode, min(steps, 12)) for mode in ("eager+fused+onednn", USERS, "whole")]
    row["alone"] = {}
    for mode, count in (*runs, *few):
        found = in_a_process(options.form, "--alone", name, "--mode", mode, "--steps", str(count), *common)
        other = row["alone"].get(mode, found)
        row["alone"][mode] = {key: (found[key] + other[key]) / 2 for key in found}
    return row


def markdown(results: Row) -> str:
    """The results as tables, with the geometric means."""
    modes = [USERS, *RECIPES, "auto"]
    out = bench.heading("The training step", results["command"], results["environment"], results["rounds"])
    out += [
        "Times the plain loop's speed: median over the rounds ± the median distance from it.",
        "",
        "| model | plain ms | " + " | ".join(modes) + " | auto over the user's compile | auto chose |",
        "|---" * (len(modes) + 4) + "|",
    ]
    cell = lambda f: f"{f['ratio']:.2f} ± {f['mad']:.2f}"  # noqa: E731
    for model, row in results["models"].items():
        cells = [cell(row["forms"][m]) for m in modes] + [cell(row["auto_over_users"]), row["chosen"]]
        out.append(f"| {model} | {row['plain_ms']:.2f} | " + " | ".join(cells) + " |")
    for title, models in (("ten models", TEN), ("five small models", SMALL)):
        rows = [row for model, row in results["models"].items() if model in models]
        if rows:
            means = [statistics.geometric_mean(r["forms"][m]["ratio"] for r in rows) for m in modes]
            means.append(statistics.geometric_mean(r["auto_over_users"]["ratio"] for r in rows))
            out.append(f"| geometric mean, {title} | | " + " | ".join(f"{m:.2f}" for m in means) + " | |")
    out += [
        "",
        (
            "Each in a process of its own, against the plain loop: peak memory, the first step, a whole run (auto begins it "
            "without knowing the model). Loss: the relative difference to the plain loop's after so many steps."
        ),
        "",
        (
            "| model | peak: eager recipe | peak: user's compile | peak: whole | peak: auto | first step: auto | run: steps | "
            "run: auto's speed | loss: steps | difference |"
        ),
        "|---" * 10 + "|",
    ]
    for model, row in results["models"].items():
        a = row["alone"]
        peaks = [a[m]["peak_mb"] / a["plain"]["peak_mb"] for m in ("eager+fused+onednn", USERS, "whole", "auto")]
        first, run = a["auto"]["first_s"] / a["plain"]["first_s"], a["plain"]["run_s"] / a["auto"]["run_s"]
        out.append(
            f"| {model} | "
            + " | ".join(f"{p:.2f}" for p in peaks)
            + f" | {first:.2f} | {a['plain']['steps']:.0f} | {run:.2f} | {row['loss_steps']} | {row['loss_difference']:.0e} |"
        )
    return "\n".join(out) + "\n"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    bench.add_options(made)
    made.add_argument("--models", nargs="*", choices=list(EVERYTHING), help="which (default: publish all, quick four)")
    made.add_argument("--one", help=argparse.SUPPRESS)
    made.add_argument("--alone", help=argparse.SUPPRESS)
    made.add_argument("--mode", default="plain", help=argparse.SUPPRESS)
    made.add_argument("--steps", type=int, default=1, help=argparse.SUPPRESS)
    return made


def main() -> None:
    options = parser().parse_args()
    if options.quick:
        options.form = "quick"
    if options.threads:
        torch.set_num_threads(options.threads)
    rounds = options.rounds or (10 if options.form == "publish" else 3)
    warnings.simplefilter("ignore")
    if options.one or options.alone:
        row = (
            measure(options.one, options, rounds) if options.one else alone(options.alone, options.mode, options.steps)
        )
        print(json.dumps(row))
        return
    bench.refuse_if_busy(options)
    names = options.models or (list(EVERYTHING) if options.form == "publish" else QUICK)
    results: Row = {
        "command": f"./fdl bench step {options.form}",
        "environment": bench.environment(),
        "rounds": rounds,
        "models": {},
    }
    if options.form == "publish" and options.models:
        results["models"] = published(results["environment"])
    for number, name in enumerate(names, start=1):
        print(f"[{number}/{len(names)}] {name}", file=sys.stderr, flush=True)
        results["models"][name] = of_model(name, options, rounds)
        if options.form == "publish":
            publish(results)
    print(markdown(results))


def published(environment: Row) -> Row:
    """The models that were written on the same machine, with the same versions and threads."""
    path = bench.RESULTS / "step.json"
    earlier: Row = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"environment": {}}
    same = all(earlier["environment"].get(k) == environment[k] for k in ("machine", "versions", "threads", "python"))
    models: Row = earlier["models"] if same else {}
    return models


def publish(results: Row) -> None:
    results["models"] = {name: results["models"][name] for name in EVERYTHING if name in results["models"]}
    rows = {
        m: {mode: r["forms"][mode]["ratio"] for mode in (USERS, "eager+fused+onednn", "whole+onednn", "auto")}
        for m, r in results["models"].items()
    }
    bench.write("step", results, markdown(results), bench.chart("The training step", rows))


if __name__ == "__main__":
    main()
