"""`fdl config show|explain|diff|validate` as whole processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.schema import SCHEMA_FILE

Fdl = Callable[..., Any]
Write = Callable[..., Path]

MANIFEST = """\
# letters
docker: dev

# how several devices
# train together

ddp:
  policy: cadence
  backend: nccl
  divergence_threshold: 0.05
training:
  epochs: 10
  seed: 42
  batch_size: 32

commands:
  # one epoch
  quick:
    training: { epochs: 1 }
    options: { model: linear, batches: 100 }
"""
OVERLAY = """\

ddp:
  backend: cpu

training:
  epochs: 1
"""
LISTING = """\
# resolved manifest, base + overlay
docker: dev                     # fdl.yml:2
ddp:
  policy: cadence               # fdl.yml:8
  backend: cpu                  # fdl.ci.yml:3 (override)
  divergence_threshold: 0.05    # fdl.yml:10
training:
  epochs: 1                     # fdl.ci.yml:6 (override)
  seed: 42                      # fdl.yml:13
  batch_size: 32                # fdl.yml:14
commands:
  quick:                        # fdl.yml:18 (preset)
    training: { epochs: 1 }
    options: { model: linear, batches: 100 }
"""


@pytest.fixture
def project(write: Write) -> None:
    write("fdl.yml", MANIFEST)
    write("fdl.ci.yml", OVERLAY)


@pytest.mark.usefixtures("project")
def test_the_example_of_the_design_page(fdl: Fdl) -> None:
    result = fdl("--env", "ci", "config", "show")
    assert (result.code, result.out, result.err) == (0, LISTING, "")


@pytest.mark.usefixtures("project")
def test_json_has_place_and_chain_of_every_leaf(fdl: Fdl, tmp_path: Path) -> None:
    shown = json.loads(fdl("ci", "config", "show", "--json").out)
    assert shown["layers"] == ["fdl.yml", "fdl.ci.yml"]
    written = {"policy": "cadence", "backend": "cpu", "divergence_threshold": 0.05}
    assert shown["values"]["ddp"] == {**shown["values"]["ddp"], **written}
    assert shown["origins"]["ddp.backend"] == {
        "value": "cpu",
        "file": str(tmp_path / "fdl.ci.yml"),
        "line": 3,
        "column": 12,
        "text": "fdl.ci.yml:3",
        "chain": [
            {"value": "auto", "file": None, "line": None, "column": None, "text": "default"},
            {"value": "nccl", "file": str(tmp_path / "fdl.yml"), "line": 9, "column": 12, "text": "fdl.yml:9"},
        ],
    }
    assert [c["text"] for c in shown["origins"]["training.batch_size"]["chain"]] == ["default"]


@pytest.mark.usefixtures("project")
def test_explain_prints_every_layer(fdl: Fdl) -> None:
    result = fdl("--env", "ci", "--set", "training.epochs=7", "config", "explain", "training.epochs")
    assert result.out == (
        "training.epochs = 7\n"
        "  fdl.yml:12    10\n"
        "  fdl.ci.yml:6  1\n"
        "  --set         7   <- in effect\n"
    )  # fmt: skip
    result = fdl("config", "explain", "training.batch_size")
    assert result.out == "training.batch_size = 32\n  default     32\n  fdl.yml:14  32   <- in effect\n"
    result = fdl("config", "explain", "training.epoch")
    assert (result.code, result.out) == (2, "")
    assert "Did you mean 'training.epochs'" in result.err


@pytest.mark.usefixtures("project")
def test_diff_compares_environments(fdl: Fdl, write: Write) -> None:
    write("fdl.prod.yml", "ddp: { backend: cpu }\ndocker: null\n")
    assert fdl("config", "diff", "ci", "prod").out == (
        "- docker: dev  # fdl.yml:2\n- training.epochs: 1  # fdl.ci.yml:6\n+ training.epochs: 10  # fdl.yml:12\n"
    )
    assert fdl("config", "diff", "ci", "ci").out == ""
    compared = json.loads(fdl("config", "diff", "ci", "--json").out)
    assert compared["ddp.backend"]["left"]["value"] == "nccl"
    assert compared["ddp.backend"]["right"]["text"] == "fdl.ci.yml:3"


@pytest.mark.usefixtures("project")
def test_validate_checks_all_files_and_folders(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", MANIFEST + "entry: echo\n")
    assert fdl("config", "validate").out == "valid: fdl.yml, fdl.ci.yml\n"
    write("fdl.prod.yml", "training: { epochs: ten }\ncommands: { sub: { path: sub }, gone: { path: nowhere } }\n")
    write("sub/fdl.yml", "entry: true\ncommands: { a: { rnu: x }, b: { run: x, training: { epochs: 1 } } }\n")
    result = fdl("config", "validate")
    assert (result.code, result.out) == (2, "")
    assert "fdl.prod.yml:1:21: training.epochs is 'ten'; it must be a whole number" in result.err
    write("fdl.prod.yml", "commands: { sub: { path: sub }, gone: { path: nowhere } }\n")
    result = fdl("config", "validate")
    for said in (
        "sub/fdl.yml:1:8: entry is true; it must be a text",
        "fdl.prod.yml:1:47: command 'gone': there is no fdl.yml in",
        "unknown key 'rnu' in command 'a'. Did you mean 'run'?",
    ):
        assert said in result.err
    problems = json.loads(fdl("config", "validate", "--json").out)["problems"]
    assert {p["text"] for p in problems} == {"sub/fdl.yml:1", "sub/fdl.yml:2", "fdl.prod.yml:1"}


def test_a_wrong_value_that_an_overlay_covers_is_found_by_validate(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "training: { epochs: ten }")
    write("fdl.ci.yml", "training: { epochs: 1 }")
    assert fdl("--env", "ci", "config", "show").code == 0
    assert fdl("config", "validate").code == 2


def test_all_problems_of_a_file_are_told_with_carets(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "docker: 3\ntraning: {}\ntraining:\n  epochs: -1\n  nan_policy: wran\ntorch: 2.10\n")
    result = fdl("--help")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "fdl: fdl.yml:1:9: docker is 3; it must be a text or true or false\n"
        "    1 | docker: 3\n"
        "      |         ^\n"
        "fdl: fdl.yml:2:1: unknown key 'traning'. Did you mean 'training'?\n"
        "    2 | traning: {}\n"
        "      | ^^^^^^^\n"
        "fdl: fdl.yml:4:11: training.epochs is -1; it must be at least 0\n"
        "    4 |   epochs: -1\n"
        "      |           ^^\n"
        "fdl: fdl.yml:5:15: training.nan_policy is 'wran'. Did you mean 'warn'?\n"
        "    5 |   nan_policy: wran\n"
        "      |               ^^^^\n"
        'fdl: fdl.yml:6:8: torch: put the version in quotes, "2.10": without them YAML reads the number 2.1\n'
        "    6 | torch: 2.10\n"
        "      |        ^^^^\n"
    )


def test_one_bad_command_hides_none_of_the_others(fdl: Fdl, write: Write) -> None:
    write(
        "fdl.yml",
        "entry: echo\ncommands:\n  bad: { trianing: { epochs: 1 } }\n  good: { options: { a: 1 } }\n  run: { rnu: x }\n",
    )
    listed = fdl("--help")
    assert listed.code == 2
    assert "good" in listed.out
    assert "unknown key 'trianing' in command 'bad'. Did you mean 'training'?" in listed.err
    assert "unknown key 'rnu' in command 'run'. Did you mean 'run'?" in listed.err
    assert fdl("good").out == "--a 1\n"
    refused = fdl("bad")
    assert (refused.code, refused.out) == (2, "")
    assert "'trianing'" in refused.err


def test_the_published_schema_is_what_config_schema_prints(fdl: Fdl) -> None:
    printed = fdl("config", "schema").out
    assert printed == SCHEMA_FILE.read_text()
    assert json.loads(printed)["$schema"].startswith("https://json-schema.org/")


def test_without_a_project_the_built_in_commands_say_so(fdl: Fdl) -> None:
    result = fdl("config", "show")
    assert result.code == 2
    assert "there is no fdl.yml in this folder or one above" in result.err
    assert fdl("--help").code == 0
    assert fdl("--help", env={"FDL_ENV": "ci"}).code == 0
    for words in (["-e", "ci"], ["-e", "ci", "config", "show"], ["--env=ci", "go"]):
        result = fdl(*words)
        assert (result.code, result.out) == (2, "")
        assert "--env: there is no fdl.yml in this folder or one above" in result.err
    assert fdl("--version").out == "fdl 0.1.0\n"


def test_folders_below_can_be_shown_and_explained(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { sub: { path: sub } }")
    write("sub/fdl.yml", "entry: echo\ntraining:\n  epochs: 3\n")
    assert "  epochs: 3                     # sub/fdl.yml:3" in fdl("config", "show", "sub").out.splitlines()
    assert "sub/fdl.yml:3" in fdl("config", "explain", "training.epochs", "sub").out
    assert "Did you mean 'sub'?" in fdl("config", "show", "sbu").err


def test_the_kept_parse_is_never_out_of_date(fdl: Any, write: Write) -> None:
    path = write("fdl.yml", "commands: { a: { run: echo 1 } }")
    times = path.stat()
    assert fdl("a").out == "1\n"
    path.write_text("commands: { a: { run: echo 2 } }")  # the same size, the same time
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fdl("a").out == "2\n"
    kept = list((Path(fdl.env["HOME"]) / ".cache" / "flodl" / "manifests").iterdir())
    assert len(kept) == 1
    kept[0].write_text("{ damaged")
    assert fdl("a").out == "2\n"
