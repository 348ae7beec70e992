"""The published JSON schema says the same as fdl does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flodl_cli.config.source import Source
from flodl_cli.config.validate import check_manifest
from flodl_cli.config.yaml import parse_yaml
from flodl_cli.schema import manifest_schema, section_fields

GOOD = [
    "description: x\ntorch: '2.10'\ndocker: dev\nenv: { A: 1, B: x, C: true }\ndotenv: [.env]\ngrace: 2.5",
    "entry: python train.py\nschema: true\noptions: { a: 1, b: [x, y], c: true }",
    "training: { epochs: 3, batch_size: 4, seed: 0, shuffle: false, drop_last: true, nan_policy: skip, device: cpu, resume: x }",
    "ddp: { policy: cadence, anchor: auto, max_anchor: 4, overhead_target: 0.05, speed_hint: { 1: 2.3 }, partition_ratios: [1] }",
    "output: { folder: runs, name: x, record: true, checkpoint: false, quiet: true }",
    "x-anchor: { any: [thing] }\ncommands: { a: { run: x, x-note: y, needs: [b], env: {} }, b: { path: c } }",
    "commands: { d: { entry: x, schema: false, training: { epochs: 1 } } }",
]
BAD = [
    "descripton: x",
    "torch: 2.10",
    "docker: 3",
    "env: { A: [1] }",
    "grace: -1",
    "training: { epochs: 1.5 }",
    "training: { epochs: true }",
    "training: { batch_size: 0 }",
    "training: { nan_policy: zigzag }",
    "training: []",
    "ddp: { overhead_target: 2 }",
    "ddp: { partition_ratios: [a] }",
    "output: { recrod: true }",
    "commands: { a: { rnu: x } }",
    "commands: { a: { run: [x] } }",
    "commands: { a: x }",
]


def fdl_accepts(text: str) -> bool:
    return not check_manifest(parse_yaml(Source("fdl.yml", text, Path("fdl.yml"))))


def schema_accepts(text: str) -> bool:
    document: Any = parse_yaml(Source("fdl.yml", text)).plain()
    return jsonschema.Draft202012Validator(manifest_schema()).is_valid(document)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(manifest_schema())


@pytest.mark.parametrize("text", GOOD)
def test_both_accept(text: str) -> None:
    assert fdl_accepts(text)
    assert schema_accepts(text)


@pytest.mark.parametrize("text", BAD)
def test_both_refuse(text: str) -> None:
    assert not fdl_accepts(text)
    assert not schema_accepts(text)


def test_every_default_fits_its_own_field() -> None:
    for section in ("training", "ddp", "output"):
        for name, field in section_fields(section).items():
            assert field.get("description"), f"{section}.{name} is not described"
            if field.get("default") is not None:
                jsonschema.validate(field["default"], field)
