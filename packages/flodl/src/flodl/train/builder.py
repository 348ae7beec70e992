"""`Trainer.builder`: the framework owns the loop."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flodl.distributed import DdpConfig, inside_a_rank, parse_devices
from flodl.errors import ConfigError
from flodl.train.callbacks import Callback
from flodl.train.config import RunConfig
from flodl.train.evaluate import Metrics
from flodl.train.handle import TrainHandle

if TYPE_CHECKING:
    from flodl.train.remote import RemoteHandle
    from flodl.train.trainer import Trainer

__all__ = ["TrainerBuilder"]


class TrainerBuilder:
    """Collects what a training needs; `run()` starts it and returns a handle. Each call returns the builder."""

    def __init__(
        self,
        model_factory: Callable[..., nn.Module],
        optimizer_factory: Callable[[Iterator[nn.Parameter]], Optimizer],
        train_fn: Callable[[nn.Module, Any], Any],
    ) -> None:
        self._model_factory = model_factory
        self._optimizer_factory = optimizer_factory
        self._train_fn = train_fn
        self._config = RunConfig()
        self._dataset: Any = None
        self._evaluation: tuple[Any, Metrics] | None = None
        self._scheduler: Callable[[Optimizer], LRScheduler] | None = None
        self._callbacks: list[Callback] = []

    def dataset(self, dataset: Any) -> TrainerBuilder:
        """What to train on: anything that `fl.data.as_dataset` takes."""
        self._dataset = dataset
        return self

    def batch_size(self, samples: int) -> TrainerBuilder:
        """Samples a step."""
        return self.settings(batch_size=samples)

    def num_epochs(self, epochs: int) -> TrainerBuilder:
        """Passes over the dataset."""
        return self.settings(epochs=epochs)

    def seed(self, seed: int) -> TrainerBuilder:
        """Of the initial weights, the order of the data and all randomness in between."""
        return self.settings(seed=seed)

    def devices(self, devices: str) -> TrainerBuilder:
        """What to train on: "auto", "cuda:0,1", "cpu:4"; a process for each."""
        return self.settings(devices=devices)

    def policy(self, policy: str) -> TrainerBuilder:
        """When several devices meet: "sync", "cadence" or "async"."""
        return self.settings(policy=policy)

    def backend(self, backend: str) -> TrainerBuilder:
        """What averages travel by: "nccl" or "cpu"."""
        return self.settings(backend=backend)

    def ddp(self, config: DdpConfig) -> TrainerBuilder:
        """All settings of several devices at once."""
        self._config = self._config.with_section("ddp", config, "argument of Trainer.builder")
        return self

    def scheduler(self, scheduler: str | Callable[[Optimizer], LRScheduler]) -> TrainerBuilder:
        """The learning rate's schedule: a name, or a function that makes a torch scheduler of the optimizer."""
        if isinstance(scheduler, str):
            return self.settings(scheduler=scheduler)
        self._scheduler = scheduler
        return self

    def callbacks(self, *callbacks: Callback) -> TrainerBuilder:
        """Call them too, in this order."""
        self._callbacks.extend(callbacks)
        return self

    def evaluate(self, dataset: Any, metrics: Metrics) -> TrainerBuilder:
        """Every `evaluate_steps` updates or `evaluate_epochs` epochs, means over `dataset` of `metrics(model, batch)`,
        recorded as `test_...`."""
        self._evaluation = (dataset, metrics)
        return self

    def config(self, config: RunConfig) -> TrainerBuilder:
        """All settings at once; calls after this one win over it."""
        self._config = config
        return self

    def settings(self, **settings: Any) -> TrainerBuilder:
        """Fields of the configuration by name: `settings(nan_policy="stop", quiet=True)`."""
        self._config = self._config.with_settings(settings, "argument of Trainer.builder")
        return self

    def run(self) -> TrainHandle | RemoteHandle:
        """Start training in the background: here on one device, in a process for each on several.

        Raises at once what is wrong with model, dataset or settings; what only the processes see, `join()` raises.
        """
        self._check()
        ddp = self._config.ddp
        if not inside_a_rank() and self._config.training.device == "auto":
            devices = parse_devices(ddp.devices)
            if len(devices) > 1:
                from flodl.train.remote import RemoteHandle

                return RemoteHandle(self, devices)
        return self.run_here()

    def _check(self) -> None:
        for what, factory in (("model", self._model_factory), ("optimizer", self._optimizer_factory)):
            if isinstance(factory, (nn.Module, Optimizer)) or not callable(factory):
                raise ConfigError(
                    f"Trainer.builder takes a function that makes the {what}, not {type(factory).__name__}"
                )
        training = self._config.training
        if self._dataset is None:
            raise ConfigError("nothing to train on: call .dataset(...) before .run()")
        if training.epochs is None and training.max_steps is None and training.max_time is None:
            raise ConfigError("for how long? call .num_epochs(...) before .run()")

    def run_here(self) -> TrainHandle:
        """Train in this process, which may be one of several ranks."""
        from flodl.train.trainer import Trainer

        training = self._config.training
        random.seed(training.seed)
        np.random.seed(training.seed)
        torch.manual_seed(training.seed)
        model = _make(self._model_factory, training.device)
        optimizer = self._optimizer_factory(model.parameters())
        scheduler = None if self._scheduler is None else self._scheduler(optimizer)
        trainer = Trainer(model, optimizer, self._dataset, self._config, scheduler=scheduler, callbacks=self._callbacks)
        if self._evaluation:
            trainer.plan_evaluation(*self._evaluation)
        return TrainHandle(trainer, lambda: self._train(trainer))

    def _train(self, trainer: Trainer) -> None:
        for _ in trainer.epochs():
            for batch in trainer.batches():
                trainer.train_step(self._train_fn, batch)


def _make(factory: Callable[..., nn.Module], device: str) -> nn.Module:
    """The model; a factory with an argument gets the device."""
    parameters = inspect.signature(factory).parameters.values()
    needs = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not needs:
        return factory()
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return factory(torch.device(chosen))
