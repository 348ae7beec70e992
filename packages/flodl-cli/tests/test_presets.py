"""Presets and typed options become the words and the run configuration of an entry."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fdl = Callable[..., Any]
Write = Callable[..., Path]


def parsed(result: Any) -> dict[str, Any]:
    assert result.code == 0, result.err
    values: dict[str, Any] = dict(eval(result.out))
    return values


PRESETS = """\
training: { epochs: 7 }
options: { fast: true, names: [a, b c] }
commands:
  quick:
    training: { epochs: 1 }
    options: { n: 9, shuffle: false, tag: [x, y], text: "-dash" }
  wrong:
    options: { n: abc, policy: zigzag, sped: 3 }
"""


def test_a_preset_becomes_options_and_what_is_typed_wins(fdl: Fdl, entry: Any, argparse_script: str) -> None:
    entry(argparse_script, PRESETS)
    values = parsed(fdl("go", "quick"))
    assert values["epochs"] == 1
    assert (values["n"], values["fast"], values["shuffle"], values["tag"]) == (9, True, False, ["x", "y"])
    assert (values["names"], values["text"]) == (["a", "b c"], "-dash")
    values = parsed(fdl("go", "quick", "-n", "5", "--epochs=2"))
    assert (values["n"], values["epochs"]) == (5, 2)
    assert parsed(fdl("go"))["epochs"] == 7


@pytest.mark.parametrize("words", [["--n", "5"], ["-n5"], ["--n=5"]])
def test_an_option_given_by_preset_and_by_hand_reaches_the_entry_once(
    fdl: Fdl, entry: Any, argparse_script: str, words: list[str]
) -> None:
    entry(argparse_script, PRESETS)
    printed = fdl("--dry-run", "go", "quick", *words).out
    assert re.findall(r" (--?n[ =]?\d+)", printed) == [" ".join(words)]


def test_the_values_of_a_preset_are_checked_with_their_place(fdl: Fdl, entry: Any, argparse_script: str) -> None:
    entry(argparse_script, PRESETS)
    result = fdl("go", "wrong")
    assert (result.code, result.out) == (2, "")
    for said in (
        "go/fdl.yml:9:19: n is 'abc'; it must be a whole number",
        "go/fdl.yml:9:32: policy is 'zigzag'. Valid: async, cadence.",
        "go/fdl.yml:9:40: the entry has no option 'sped'.",
    ):
        assert said in result.err
    assert parsed(fdl("go", "quick"))["n"] == 9  # its neighbour is not concerned


def test_what_the_call_sets_wins_over_presets_and_folders(fdl: Fdl, write: Write) -> None:
    write(
        "fdl.yml",
        "entry: echo\ntraining: { epochs: 7 }\ncommands:\n  cfg: { training: { seed: 5 } }\n"
        "  good: { options: { n: 9, m: 1 } }\n  ap: { path: ap }\n",
    )
    write(
        "ap/fdl.yml",
        "entry: echo\ntraining: { epochs: 3 }\ncommands: { p2: { training: { epochs: 2, batch_size: 8 } } }\n",
    )
    assert '"training": {"epochs": 7, "seed": 45}' in fdl("--set", "training.seed=45", "--dry-run", "cfg").out
    environ = {"FDL_SET_TRAINING__SEED": "46"}
    assert '"training": {"epochs": 7, "seed": 46}' in fdl("--dry-run", "cfg", env=environ).out
    assert '"seed": 47' in fdl("--set", "training.seed=47", "--dry-run", "cfg", env=environ).out
    assert '"training": {"epochs": 7}' in fdl("--set", "training.seed=null", "--dry-run", "cfg").out
    assert '"seed": 48' in fdl("--set", "commands.cfg.training.seed=48", "--dry-run", "cfg").out
    assert fdl("--set", "options.n=45", "good").out == "--n 45 --m 1\n"
    below = fdl("--set", "training.epochs=44", "--dry-run", "ap", "p2").out
    assert '"training": {"epochs": 44, "batch_size": 8}' in below
    assert '"seed": 5' in fdl("--dry-run", "cfg").out


def test_a_misspelt_preset_is_told_the_nearest(fdl: Fdl, entry: Any, argparse_script: str) -> None:
    entry(argparse_script, PRESETS)
    result = fdl("go", "quik")
    assert result.code == 2
    assert "fdl go has no command 'quik'. Did you mean 'quick'?" in result.err


def test_options_of_an_unknown_program_are_passed_by_name(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { go: { path: go } }")
    write(
        "go/fdl.yml",
        "entry: sh show.sh\noptions: { batch_size: 3, loud: true, quiet: false }\ncommands: { a: { options: { x: [1, 2] } } }",
    )
    write("go/show.sh", 'for w in "$@"; do echo "$w"; done')
    assert fdl("go", "a", "typed").out.split() == ["--batch-size", "3", "--loud", "--x", "1", "2", "typed"]
    assert fdl("go", "--batch-size", "4").out.split() == ["--loud", "--batch-size", "4"]


def test_the_run_configuration_reaches_the_entry_as_a_file(fdl: Fdl, entry: Any, tmp_path: Path) -> None:
    script = """\
import json, os, pathlib
path = os.environ['FDL_CONFIG']
print(json.dumps([json.loads(pathlib.Path(path).read_text()), path]))
"""
    entry(
        script,
        "training:\n  epochs: 7\n  seed: 1\noutput: { folder: out }\ncommands:\n  quick:\n    training: { epochs: 1 }\n",
    )
    config, path = json.loads(fdl("go", "quick").out)
    assert config["values"] == {"training": {"epochs": 1, "seed": 1}, "output": {"folder": "out"}}
    assert config["origins"]["training.epochs"] == {
        "file": str(tmp_path / "go" / "fdl.yml"),
        "line": 8,
        "column": 25,
        "text": "go/fdl.yml:8",
    }
    assert not os.path.exists(path)
    config, _ = json.loads(fdl("--set", "training.epochs=5", "go").out)
    assert config["values"]["training"]["epochs"] == 5
    assert config["origins"]["training.epochs"]["text"] == "--set"


def test_what_is_typed_is_in_the_run_configuration(fdl: Fdl, entry: Any, argparse_script: str) -> None:
    reader = """\
    import os, sys
    sys.stderr.write(pathlib.Path(os.environ['FDL_CONFIG']).read_text())
    print("""
    entry(argparse_script.replace("    print(", reader), "training: { epochs: 7 }\n")
    assert json.loads(fdl("go").err)["values"] == {"training": {"epochs": 7}}
    said = json.loads(fdl("go", "--epochs", "3").err)
    assert said["values"] == {"training": {"epochs": 3}}
    assert said["origins"]["training.epochs"]["text"] == "--epochs on the command line"


def test_a_preset_can_have_an_entry_of_its_own(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { bench: { path: bench } }")
    write(
        "bench/fdl.yml",
        "commands:\n  graph: { entry: python graph.py, options: { rounds: 3 } }\n  other: { run: echo other }\n",
    )
    write(
        "bench/graph.py",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--rounds', type=int)\nprint(p.parse_args())\n",
    )
    assert fdl("bench", "graph").out == "Namespace(rounds=3)\n"
    assert fdl("bench", "graph", "--rounds", "5").out == "Namespace(rounds=5)\n"
    assert "bench graph: --rounds is 'x'" in fdl("bench", "graph", "--rounds", "x").err
    assert "--rounds INT" in fdl("bench", "graph", "--help").out
    assert "fdl bench graph" in fdl("schema", "list").out
    assert fdl("--complete", "fish", "bench", "graph", "--r").out.splitlines()[1] == "--rounds\t"
