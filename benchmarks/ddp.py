"""Several devices of unequal speed: how much of their speed a training uses, and how good the model is after as many samples.

The devices are processes on this machine's CPU, one thread each; all but the first are slowed by sleeping. A round runs every
form once, in alternating order, in processes of its own: each device alone, all at once without exchanging anything, PyTorch's
DistributedDataParallel, and flodl's policies. Efficiency is samples a second, as a share of what the devices reach alone (solo)
and at once (both); the difference between the two is that the processes share the machine's cores and memory.
`publish` writes `results/ddp.*`. `converge` trains every policy with five seeds and compares losses and accuracies with DDP's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench

HERE = Path(__file__).parent
FORMS = ("ddp", "sync", "cadence", "async")
CASES = {  # name: (task, speeds)
    "bytes 1 : 0.4": ("bytes", [1.0, 0.4]),
    "digits 1 : 0.4": ("digits", [1.0, 0.4]),
    "bytes 1 : 0.2": ("bytes", [1.0, 0.2]),
    "bytes 1 : 0.1": ("bytes", [1.0, 0.1]),
    "bytes, 4 devices": ("bytes", [0.4, 0.3, 0.2, 0.1]),
}
QUICK = ("bytes 1 : 0.4", "digits 1 : 0.4")
Row = dict[str, Any]


def processes(
    form: str, task: str, speeds: list[float], epochs: int, seed: int, settings: Row | None = None
) -> list[Row]:
    """What each process of one form says in the end."""
    command = [
        sys.executable, "-W", "ignore", str(HERE / "ddp_rank.py"), form, task, "--speeds", *map(str, speeds),
        "--epochs", str(epochs), "--seed", str(seed), "--settings", json.dumps(settings or {}),
    ]  # fmt: skip
    base = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    base["OMP_NUM_THREADS"] = "1"
    if form in ("alone", "ddp"):
        port = str(20000 + os.getpid() % 20000)
        places = [{"RANK": str(r), "WORLD_SIZE": str(len(speeds)), "MASTER_PORT": port} for r in range(len(speeds))]
        environments = [{**base, "MASTER_ADDR": "127.0.0.1", **place} for place in places]
    else:
        environments = [base]
    started = [subprocess.Popen(command, env=e, stdout=subprocess.PIPE, text=True) for e in environments]
    found = []
    for process in started:
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        if output.strip():
            found.append(json.loads(output.splitlines()[-1]))
    return found


def rate(row: Row) -> float:
    """Samples a second."""
    return float(row["samples"] / row["seconds"])


def measure(name: str, rounds: int, epochs: int) -> Row:
    """All forms of one case in turns."""
    task, speeds = CASES[name]
    solo = sum(rate(processes("alone", task, [s], max(1, round(epochs * s / sum(speeds))), 0)[0]) for s in speeds)
    rows: dict[str, list[Row]] = {form: [] for form in FORMS}
    both: list[float] = []
    for number in range(rounds):
        shares = [max(1, round(epochs * s / sum(speeds))) for s in speeds]
        together = processes("alone", task, speeds, min(shares), number)
        both.append(sum(map(rate, together)))
        for form in FORMS if number % 2 else reversed(FORMS):
            rows[form].append(processes(form, task, speeds, epochs, number)[0])
    found: Row = {"solo": solo, "both": statistics.median(both), "forms": {}}
    for form, each in rows.items():
        rates = [rate(row) for row in each]
        of_both = [r / b for r, b in zip(rates, both, strict=True)]
        middle = statistics.median(of_both)
        found["forms"][form] = {
            "of_both": middle,
            "mad": statistics.median(abs(r - middle) for r in of_both),
            "of_solo": statistics.median(rates) / solo,
            "loss": statistics.median(row["loss"] for row in each),
            "accuracy": statistics.median(row["accuracy"] for row in each),
        }
    return found


def converge(epochs: dict[str, int], seeds: int) -> Row:
    """Loss and accuracy of every policy after as many samples, over several seeds."""
    settings: dict[str, tuple[str, Row]] = {
        "DDP": ("ddp", {}),
        "sync": ("sync", {}),
        "cadence": ("cadence", {}),
        "async": ("async", {}),
        "cadence, outer step": ("cadence", {"outer": True}),
        "async, outer step": ("async", {"outer": True}),
    }
    found: Row = {}
    for task, count in epochs.items():
        found[task] = {}
        for name, (form, chosen) in settings.items():
            print(f"{task}: {name}", file=sys.stderr, flush=True)
            rows = [processes(form, task, [1.0, 0.4], count, seed, chosen)[0] for seed in range(seeds)]
            found[task][name] = {
                measure: {
                    "mean": statistics.mean(values),
                    "spread": statistics.stdev(values) if seeds > 1 else math.nan,
                }
                for measure in ("loss", "accuracy")
                for values in [[row[measure] for row in rows]]
            }
    return found


def markdown(results: Row) -> str:
    out = bench.heading("Several devices", results["command"], results["environment"], results["rounds"])
    out += [
        "Efficiency: of all devices at once without exchange / of the summed speeds of each alone; median over the rounds.",
        "",
        "| devices | " + " | ".join("PyTorch DDP" if f == "ddp" else f for f in FORMS) + " |",
        "|---" * (len(FORMS) + 1) + "|",
    ]
    for name, row in results["cases"].items():
        cells = [f"{f['of_both']:.2f} ± {f['mad']:.2f} / {f['of_solo']:.2f}" for f in row["forms"].values()]
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    out += [
        "",
        "Loss (accuracy) on the test data after these trainings.",
        "",
        "| devices | " + " | ".join(FORMS) + " |",
    ]
    out.append("|---" * (len(FORMS) + 1) + "|")
    for name, row in results["cases"].items():
        cells = [f"{f['loss']:.3f} ({f['accuracy']:.3f})" for f in row["forms"].values()]
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def convergence_table(results: Row) -> str:
    out = bench.heading("Convergence", results["command"], results["environment"], results["rounds"])
    out += [
        "Test loss and accuracy after as many samples, two devices of speeds 1 : 0.4; mean ± standard deviation.",
        "",
    ]
    for task, rows in results["tasks"].items():
        out += [f"**{task}**", "", "| | loss | accuracy |", "|---|---|---|"]
        for name, row in rows.items():
            cells = [f"{row[m]['mean']:.4f} ± {row[m]['spread']:.4f}" for m in ("loss", "accuracy")]
            out.append(f"| {name} | " + " | ".join(cells) + " |")
        out.append("")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    bench.add_options(parser)
    parser.add_argument("--converge", action="store_true", help="compare losses over seeds instead of speeds")
    parser.add_argument("--cases", nargs="*", choices=list(CASES))
    parser.add_argument("--epochs", type=int, help="epochs of each training (default 3, publish 8)")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.quick:
        options.form = "quick"
    bench.refuse_if_busy(options)
    publish = options.form == "publish"
    rounds = options.rounds or (3 if publish else 1)
    epochs = options.epochs or (8 if publish else 3)
    results: Row = {"command": f"./fdl bench ddp {options.form}", "environment": bench.environment(), "rounds": rounds}
    if options.converge:
        results |= {"command": f"./fdl bench ddp {options.form} --converge", "rounds": options.seeds}
        results["tasks"] = converge({"digits": 30, "bytes": 8} if publish else {"digits": 10}, options.seeds)
        print(text := convergence_table(results))
        if publish:
            (bench.RESULTS / "convergence.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            (bench.RESULTS / "convergence.md").write_text(text, encoding="utf-8")
        return
    results["cases"] = {}
    for name in options.cases or (list(CASES) if publish else QUICK):
        print(name, file=sys.stderr, flush=True)
        results["cases"][name] = measure(name, rounds, epochs * (4 if CASES[name][0] == "digits" else 1))
    print(text := markdown(results))
    if publish:
        rows = {name: {f: row["forms"][f]["of_both"] for f in FORMS} for name, row in results["cases"].items()}
        unit = "of the speed of all devices at once without exchange"
        bench.write("ddp", results, text, bench.chart("Several devices", rows, unit))


if __name__ == "__main__":
    main()
