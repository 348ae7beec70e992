"""Every setting of a run: one tree of frozen dataclasses, each value with its origin."""

from __future__ import annotations

import dataclasses
import json
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flodl.distributed.config import DdpConfig
from flodl.errors import ConfigError, nearest
from flodl.train.recipes import Recipe

__all__ = ["OutputConfig", "RunConfig", "TrainingConfig", "without_output"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The section `training:`.

    How long: `epochs`, passes over the data, for the builder and for `trainer.epochs()` without a number; `max_steps`,
    optimizer updates; `max_time`, seconds of this process. The first one reached ends training.

    Batches: `batch_size`, samples a step; `shuffle`, a new order every epoch; `drop_last`, leave out a short last batch
    (else it is trained); `group_by_length`, batches of samples of similar length; `workers`, processes that fetch batches
    and `prefetch`, batches fetched ahead (chosen by measuring without a number).

    The update: `accumulate`, batches whose gradients make one update, weighted by `loss_weight`: "samples", or "tokens",
    the labels that are not -100; `clip_norm` and `clip_value` of the gradients, once an update; `amp`, "bf16", or "fp16"
    with a gradient scaler; `scheduler` by name, with `warmup_steps` from 0 and an end at `min_lr_ratio` times the learning
    rate, once an update; `ema`, the decay of an exponential average of the weights, and `swa_epochs`, how many of the last
    epochs are averaged; `nan_policy`, what a loss of NaN or infinity does: "warn" counts it, says so once and trains on,
    "skip" leaves that update out, "stop" ends the run before it.

    Evaluation: every `evaluate_steps` updates, or every `evaluate_epochs` epochs. `stop_metric` ends training when it has
    not become better (`stop_mode`) by more than `stop_delta` for `patience` evaluations.

    seed: of the order of the samples; the builder also seeds torch, numpy and random with it. deterministic: torch's
    deterministic algorithms, and a fixed form of the step.
    step: "auto" finds the fastest way to compute a step on this machine while training, and remembers it; "eager" is
    plain PyTorch; "compiled": the builder's steps are one graph each, from forward to update, where that can be (torch
    2.13); or any recipe, such as "eager+fused+onednn" or "whole+threads=1" (see `flodl.train.recipes`). Results agree to
    rounding.
    device: "auto" (CUDA when there is one, else where the model is) or any torch device.
    resume: a run folder or a checkpoint to go on from.
    """

    epochs: int | None = None
    max_steps: int | None = None
    max_time: float | None = None
    batch_size: int = 32
    shuffle: bool = True
    drop_last: bool = False
    group_by_length: bool = False
    workers: int | None = None
    prefetch: int | None = None
    accumulate: int = 1
    loss_weight: Literal["samples", "tokens"] = "samples"
    clip_norm: float | None = None
    clip_value: float | None = None
    amp: Literal["bf16", "fp16"] | None = None
    scheduler: str | None = None
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    ema: float | None = None
    swa_epochs: int | None = None
    nan_policy: Literal["warn", "skip", "stop"] = "warn"
    evaluate_steps: int | None = None
    evaluate_epochs: int = 1
    stop_metric: str | None = None
    stop_mode: Literal["min", "max"] = "min"
    stop_delta: float = 0.0
    patience: int = 5
    seed: int = 0
    deterministic: bool = False
    step: str = "auto"
    device: str = "auto"
    resume: str | None = None

    def __post_init__(self) -> None:
        _check(self, "training", _LEAST_OF_TRAINING)
        for name in ("min_lr_ratio", "ema"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= 1:
                raise ConfigError(f"training.{name} is {value}; it must be between 0 and 1")
        if self.step == "auto":
            pass
        elif Recipe.parse(self.step).graph == "whole" and self.nan_policy != "warn":
            raise ConfigError(
                f'training.nan_policy is "{self.nan_policy}", which reads each loss before its update; '
                f'with training.step "{self.step}" the two are one: choose "warn", or step "auto"'
            )
        elif Recipe.parse(self.step).graph != "eager" and self.deterministic:
            raise ConfigError(
                f'training.deterministic fixes the form of the step to "eager", training.step is "{self.step}"'
            )
        if self.scheduler is None and (self.warmup_steps or self.min_lr_ratio):
            name = "warmup_steps" if self.warmup_steps else "min_lr_ratio"
            raise ConfigError(f'training.{name} belongs to a schedule: set training.scheduler, such as "cosine"')


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """The section `output:`.

    folder: where runs are written, each in a folder of its own. name: a title for people. record: write `run.db`.
    checkpoint: write checkpoints when training ends or is interrupted, every `save_steps` updates, and at the end of an
    epoch when the last one is `save_seconds` old. The newest `keep_last` stay, and the best by `keep_best`, a metric whose
    best is its `keep_best_mode`.
    serve: the port of a live dashboard for this run. report: `report.html` in the run's folder, written at each epoch.
    tensorboard, csv: also log there. statistics: of gradients and weights. profile: how many steps to profile.
    quiet: nothing on the terminal but warnings.
    """

    folder: str = "runs"
    name: str | None = None
    record: bool = True
    checkpoint: bool = True
    save_steps: int | None = None
    save_seconds: float = 30.0
    keep_last: int = 2
    keep_best: str | None = None
    keep_best_mode: Literal["min", "max"] = "min"
    serve: int | None = None
    report: bool = False
    tensorboard: bool = False
    csv: bool = False
    statistics: bool = False
    profile: int = 0
    quiet: bool = False

    def __post_init__(self) -> None:
        _check(self, "output", _LEAST_OF_OUTPUT)
        for name, needs in (
            ("serve", "record"),
            ("report", "record"),
            ("save_steps", "checkpoint"),
            ("keep_best", "checkpoint"),
        ):
            for need in ("record", needs):
                if getattr(self, name) not in (None, False) and not getattr(self, need):
                    raise ConfigError(f"output.{name} needs output.{need}, which is off")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run. `origins` says where each one was set ("default", "fdl.yml:11", "argument of setup")."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
    ddp: DdpConfig = field(default_factory=DdpConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> RunConfig:
        """The configuration that `fdl` resolved for this process, from `path` or the file named by `FDL_CONFIG`.

        Without either, the defaults. Raises `ConfigError` for a setting that does not exist or does not fit, with the
        file and line that set it.
        """
        path = path or os.environ.get("FDL_CONFIG")
        if not path:
            return cls()
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            values, origins = document["values"], document.get("origins", {})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"cannot read the run configuration {path}: {error}") from error
        return cls.of(values, {key: origin["text"] for key, origin in origins.items()})

    @classmethod
    def of(cls, values: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> RunConfig:
        """From nested plain values, `{"training": {"epochs": 3}}`."""
        origins = dict(origins or {})
        sections: dict[str, Any] = {}
        for name, section in values.items():
            if name not in _SECTIONS:
                raise ConfigError(f"there is no section {name!r}.{nearest(name, _SECTIONS)}")
            fields = [f.name for f in dataclasses.fields(_SECTIONS[name])]
            for key in section:
                if key not in fields:
                    where = origins.get(f"{name}.{key}")
                    place = f" ({where})" if where else ""
                    raise ConfigError(f"there is no setting {name}.{key}{place}.{nearest(key, fields)}")
            try:
                sections[name] = _SECTIONS[name](**section)
            except ConfigError as error:
                where = next((o for key, o in origins.items() if key in str(error)), None)
                raise ConfigError(f"{error} ({where})" if where else str(error)) from None
        return cls(**sections, origins=origins)

    def with_settings(self, settings: Mapping[str, Any], origin: str) -> RunConfig:
        """A copy with some fields set by their bare names (`batch_size=64`), which are unique over all sections."""
        values: dict[str, dict[str, Any]] = {}
        origins = dict(self.origins)
        for key, value in settings.items():
            section = _SECTION_OF.get(key)
            if section is None:
                raise ConfigError(f"there is no setting {key!r}.{nearest(key, _SECTION_OF)}")
            values.setdefault(section, {})[key] = value
            origins[f"{section}.{key}"] = origin
        changed = {name: dataclasses.replace(getattr(self, name), **fields) for name, fields in values.items()}
        return dataclasses.replace(self, **changed, origins=origins)

    def with_section(self, name: str, section: Any, origin: str) -> RunConfig:
        """A copy with one section replaced; what differs from the default there has this origin."""
        changed = {
            f"{name}.{f.name}": origin for f in dataclasses.fields(section) if getattr(section, f.name) != f.default
        }
        return dataclasses.replace(self, **{name: section}, origins={**self.origins, **changed})

    def with_defaults(self, settings: Mapping[str, Any], origin: str) -> RunConfig:
        """As `with_settings`, but only for fields that nobody has set yet: a script's own defaults."""
        open_ = {key: value for key, value in settings.items() if f"{_SECTION_OF.get(key)}.{key}" not in self.origins}
        return self.with_settings(open_, origin)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Nested plain values; `RunConfig.of` reads them back."""
        return {name: dataclasses.asdict(getattr(self, name)) for name in _SECTIONS}

    def all_origins(self) -> dict[str, str]:
        """Where each setting was set, "default" for the others, by dotted name."""
        keys = [f"{section}.{key}" for section, fields in self.as_dict().items() for key in fields]
        return {key: self.origins.get(key, "default") for key in keys}

    def explain(self) -> str:
        """Every setting with its value and where that came from, one a line."""
        values = self.as_dict()
        rows = []
        for name, origin in self.all_origins().items():
            section, key = name.split(".")
            rows.append((name, repr(values[section][key]), origin))
        left, middle = (max(len(row[i]) for row in rows) for i in (0, 1))
        return "\n".join(f"{key:<{left}} = {value:<{middle}}  # {origin}" for key, value, origin in rows)


def without_output(config: RunConfig) -> RunConfig:
    """For a rank that is not the first one: nothing is written or shown twice."""
    return dataclasses.replace(config, output=OutputConfig(record=False, checkpoint=False, quiet=True))


_SECTIONS: dict[str, Any] = {"training": TrainingConfig, "ddp": DdpConfig, "output": OutputConfig}
_SECTION_OF = {f.name: section for section, cls in _SECTIONS.items() for f in dataclasses.fields(cls)}


_LEAST_OF_TRAINING = {
    "epochs": 0, "max_steps": 0, "max_time": 0, "batch_size": 1, "workers": 0, "prefetch": 0, "accumulate": 1,
    "clip_norm": 0, "clip_value": 0, "warmup_steps": 0, "swa_epochs": 1, "evaluate_steps": 1, "evaluate_epochs": 1,
    "stop_delta": 0, "patience": 1, "seed": 0,
}  # fmt: skip
_LEAST_OF_OUTPUT = {"save_steps": 1, "save_seconds": 0, "keep_last": 1, "serve": 0, "profile": 0}


def _check(section: Any, name: str, least: Mapping[str, float]) -> None:
    """Raise `ConfigError` for a value of the wrong type, or below the least one."""
    hints = get_type_hints(type(section))
    for f in dataclasses.fields(section):
        value, hint = getattr(section, f.name), hints[f.name]
        kinds = get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
        choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        if choices:
            if value not in choices and not (value is None and type(None) in kinds):
                raise ConfigError(f"{name}.{f.name} is {value!r}.{nearest(str(value), choices)}")
            continue
        accepted = (*kinds, int) if float in kinds else kinds
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
            said = " or ".join("nothing" if t is type(None) else t.__name__ for t in kinds)
            raise ConfigError(f"{name}.{f.name} is {value!r}; it must be {said}")
        if f.name in least and value is not None and not value >= least[f.name]:
            raise ConfigError(f"{name}.{f.name} is {value}; it must be at least {least[f.name]}")
