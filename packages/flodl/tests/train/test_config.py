"""Settings: their values, their origins, their errors."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from torch import nn
from torch.optim import SGD

import flodl as fl


def write(path: Path, values: object, origins: object = ()) -> Path:
    path.write_text(json.dumps({"values": values, "origins": dict(origins)}))  # type: ignore[call-overload]
    return path


def test_load_reads_what_fdl_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fl.RunConfig.load() == fl.RunConfig()
    origin = {"file": "fdl.yml", "line": 11, "column": 3, "text": "fdl.yml:11"}
    path = write(
        tmp_path / "c.json", {"training": {"epochs": 4}, "output": {"quiet": True}}, {"training.epochs": origin}
    )
    monkeypatch.setenv("FDL_CONFIG", str(path))
    config = fl.RunConfig.load().with_settings({"batch_size": 7}, "argument")
    assert (config.training.epochs, config.training.batch_size, config.output.quiet) == (4, 7, True)
    lines = config.explain().splitlines()
    assert any(line.split() == ["training.epochs", "=", "4", "#", "fdl.yml:11"] for line in lines)
    assert any(line.split() == ["training.batch_size", "=", "7", "#", "argument"] for line in lines)
    assert any(line.split() == ["training.seed", "=", "0", "#", "default"] for line in lines)
    assert fl.RunConfig.of(config.as_dict()) == config


def test_errors_name_the_place(tmp_path: Path) -> None:
    origin = {"file": "fdl.yml", "line": 3, "column": 3, "text": "fdl.yml:3"}
    path = write(tmp_path / "c.json", {"training": {"epoch": 4}}, {"training.epoch": origin})
    with pytest.raises(fl.ConfigError, match=r"no setting training.epoch \(fdl.yml:3\). Did you mean 'epochs'"):
        fl.RunConfig.load(path)
    path = write(tmp_path / "c.json", {"training": {"epochs": -4}}, {"training.epochs": origin})
    with pytest.raises(fl.ConfigError, match=r"training.epochs is -4; it must be at least 0 \(fdl.yml:3\)"):
        fl.RunConfig.load(path)
    with pytest.raises(fl.ConfigError, match="no section 'trainig'. Did you mean 'training'"):
        fl.RunConfig.of({"trainig": {}})
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(fl.ConfigError, match=r"cannot read the run configuration .*broken.json"):
        fl.RunConfig.load(tmp_path / "broken.json")


def test_fdl_knows_the_same_settings_and_defaults() -> None:
    """`fdl.yml` is checked by fdl, which cannot import this package: its schema must say the same."""
    schema = json.loads((files("flodl_cli") / "schema" / "fdl.schema.json").read_text("utf-8"))["$defs"]
    for section, fields in fl.RunConfig().as_dict().items():
        assert {name: p["default"] for name, p in schema[section]["properties"].items()} == fields


def test_a_trainer_explains_where_each_setting_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 2)
    config = fl.RunConfig.of({"training": {"accumulate": 2}}, {"training.accumulate": "fdl.yml:7"})
    trainer = fl.Trainer.setup(model, SGD(model.parameters(), lr=0.1), config=config, batch_size=8, record=False)
    trainer.explain()
    trainer.close()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "training.batch_size = 8 # argument of Trainer.setup" in lines
    assert "training.accumulate = 2 # fdl.yml:7" in lines
    assert "training.clip_norm = None # default" in lines
    assert len(lines) == sum(len(fields) for fields in config.as_dict().values())
