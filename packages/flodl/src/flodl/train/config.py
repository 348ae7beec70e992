"""Every setting of a run: one tree of frozen dataclasses, each value with its origin."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from flodl.errors import ConfigError, nearest

__all__ = ["OutputConfig", "RunConfig", "TrainingConfig"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The section `training:`.

    epochs: passes over the data, for the builder and for `trainer.epochs()` without a number.
    batch_size: samples a step. seed: of the order of the samples; the builder also seeds torch, numpy and random with it.
    shuffle: a new order every epoch. drop_last: leave out a short last batch (else it is trained).
    nan_policy: what a loss of NaN or infinity does: "warn" counts it, says so once and trains on, "skip" leaves that
    update out, "stop" ends the run before it.
    step: "eager", or "compiled": the builder's steps are one compiled graph each, from forward to update, where that can
    be (torch 2.13); results agree to rounding.
    device: "auto" (CUDA when there is one, else where the model is) or any torch device.
    resume: a run folder or a checkpoint to go on from.
    """

    epochs: int | None = None
    batch_size: int = 32
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    nan_policy: Literal["warn", "skip", "stop"] = "warn"
    step: Literal["eager", "compiled"] = "eager"
    device: str = "auto"
    resume: str | None = None

    def __post_init__(self) -> None:
        _check_types(self, "training")
        for name, least in (("epochs", 0), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"training.{name} is {value}; it must be at least {least}")
        if self.step == "compiled" and self.nan_policy != "warn":
            raise ConfigError(
                f'training.nan_policy is "{self.nan_policy}", which reads each loss before its update; '
                'with training.step "compiled" the two are one: choose "warn", or step "eager"'
            )


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """The section `output:`.

    folder: where runs are written, each in a folder of its own. name: a title for people.
    record: write `run.db`. checkpoint: write `checkpoint.pt` when training ends or is interrupted.
    quiet: nothing on the terminal but warnings.
    """

    folder: str = "runs"
    name: str | None = None
    record: bool = True
    checkpoint: bool = True
    quiet: bool = False

    def __post_init__(self) -> None:
        _check_types(self, "output")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run. `origins` says where each one was set ("default", "fdl.yml:11", "argument of setup")."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
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


_SECTIONS: dict[str, Any] = {"training": TrainingConfig, "output": OutputConfig}
_SECTION_OF = {f.name: section for section, cls in _SECTIONS.items() for f in dataclasses.fields(cls)}


def _check_types(section: Any, name: str) -> None:
    hints = get_type_hints(type(section))
    for f in dataclasses.fields(section):
        value, hint = getattr(section, f.name), hints[f.name]
        choices = get_args(hint)
        if get_origin(hint) is Literal:
            if value not in choices:
                raise ConfigError(f"{name}.{f.name} is {value!r}.{nearest(str(value), choices)}")
            continue
        allowed = choices or (hint,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            kinds = " or ".join("nothing" if t is type(None) else t.__name__ for t in allowed)
            raise ConfigError(f"{name}.{f.name} is {value!r}; it must be {kinds}")
