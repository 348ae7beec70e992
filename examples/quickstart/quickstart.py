"""A first run: describe a model as a flow, train it on real images, test it on images it never saw."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import flodl as fl


def digits_model() -> nn.Module:
    """A residual network on 64 pixels: (batch, 64) -> (batch, 10)."""
    return (
        fl.flow(nn.Linear(64, 128))
        .through(nn.BatchNorm1d(128))
        .through(nn.ReLU())
        .also(fl.flow(nn.Linear(128, 128)).through(nn.ReLU()).through(nn.Linear(128, 128)))  # x + block(x)
        .tag("features")
        .through(nn.Dropout(0.2))
        .through(nn.Linear(128, 10))
        .label("digits")
        .build()
    )


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Module:
    """A normalised convolution: (batch, inputs, h, w) -> (batch, outputs, h / stride, w / stride)."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs)
    )


def block(channels: int) -> fl.FlowBuilder:
    """What a residual step adds to its input, in the same shape."""
    return fl.flow(conv(channels, channels)).through(nn.ReLU()).through(conv(channels, channels))


def fashion_model() -> nn.Module:
    """A small residual convolution net: (batch, 1, 28, 28) -> (batch, 10)."""
    return (
        fl.flow(conv(1, 16, size=4, stride=2))
        .through(nn.ReLU())
        .also(block(16))  # x + block(x)
        .through(nn.ReLU())
        .through(conv(16, 32, stride=2))
        .through(nn.ReLU())
        .also(block(32))
        .through(nn.ReLU())
        .through(nn.AdaptiveAvgPool2d(2))
        .through(nn.Flatten())
        .tag("features")
        .through(nn.Linear(128, 10))
        .label("fashion")
        .build()
        .to(memory_format=torch.channels_last)
    )


def metrics(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """Loss and share of right answers of one batch."""
    x, y = batch
    out = model(x)
    return {"loss": F.cross_entropy(out, y), "accuracy": (out.argmax(1) == y).float().mean()}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to train, and the settings that do it well."""

    data: Callable[[str], fl.data.Tensors]
    model: Callable[[], nn.Module]
    epochs: int
    batch_size: int
    lr: float
    threads: int | None = None


TASKS = {
    # steps this small are fastest on one thread
    "digits": Task(data=fl.data.Digits, model=digits_model, epochs=20, batch_size=64, lr=3e-3, threads=1),
    "fashion-mnist": Task(data=fl.data.FashionMNIST, model=fashion_model, epochs=5, batch_size=128, lr=4e-3),
}


def train(task: Task, given: dict[str, Any]) -> None:
    """Train and test, with `given` from the command line over what fdl.yml says over the task's own settings."""
    defaults = {"epochs": task.epochs, "batch_size": task.batch_size}
    config = fl.RunConfig.load().with_defaults(defaults, "quickstart.py").with_settings(given, "command line")
    torch.manual_seed(config.training.seed)
    if task.threads:
        torch.set_num_threads(task.threads)
    images, held_out = task.data("train"), task.data("test")
    model = task.model()
    optimizer = optim.AdamW(model.parameters(), lr=task.lr, weight_decay=0.01)
    trainer = fl.Trainer.setup(model, optimizer, images, config=config)
    steps = (config.training.epochs or 0) * -(-len(images) // config.training.batch_size)

    started = time.perf_counter()
    for _ in trainer.epochs():
        for x, y in trainer.batches():
            lr = task.lr * (0.5 + 0.5 * math.cos(math.pi * trainer.global_step / steps))
            for group in optimizer.param_groups:
                group["lr"] = lr
            trainer.step(F.cross_entropy(trainer.model(x), y), lr=lr)
        trainer.evaluate(held_out, metrics)
    seconds = time.perf_counter() - started

    accuracy = trainer.evaluate(held_out, metrics)["accuracy"]
    print(f"\ntest accuracy {accuracy:.4f} on {len(held_out):,} held-out images, trained in {seconds:.1f} s")
    print(f"the run: {trainer.run.place} (checkpoints, run.db)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=sorted(TASKS), default="digits", help="what to train on")
    parser.add_argument("--epochs", type=int, help="passes over the training images")
    parser.add_argument("--batch-size", type=int, help="images a step")
    parser.add_argument("--seed", type=int, help="of the first weights and the order of the images")
    parser.add_argument("--resume", metavar="RUN", help="a run's folder, to go on with it")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    if "resume" in given:  # as seen from where `./fdl quickstart` was typed
        given["resume"] = os.path.join(os.environ.get("FDL_CWD", ""), given["resume"])
    try:
        train(TASKS[given.pop("data")], given)
    except fl.FlodlError as error:
        sys.exit(f"quickstart: {error}")


if __name__ == "__main__":
    main()
