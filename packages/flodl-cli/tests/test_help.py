"""What `fdl`, its options and the help of commands say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Fdl = Callable[..., Any]
Write = Callable[..., Path]


def test_help_shows_defaults_with_their_origin_choices_and_presets(fdl: Fdl, entry: Any, argparse_script: str) -> None:
    entry(
        argparse_script,
        "description: letters\ntraining: { epochs: 7 }\noptions: { lr: 0.1 }\ncommands:\n  quick: { training: { epochs: 1 } }\n",
    )
    shown = " ".join(fdl("go", "--help").out.split())
    assert "Usage: fdl go [COMMAND] [OPTIONS]" in shown
    assert "quick { training: { epochs: 1 } }" in shown
    assert "--n, -n INT how many [3, train.py]" in shown
    assert "one of: cadence, async [cadence, train.py]" in shown
    assert "--epochs INT [7, go/fdl.yml:3]" in shown
    assert "--lr FLOAT learning rate [0.1, go/fdl.yml:4]" in shown
    assert "--epochs INT [1, go/fdl.yml:6]" in " ".join(fdl("go", "quick", "--help").out.split())


def test_help_of_a_task_shows_what_it_runs_and_where_that_is_written(fdl: Fdl, write: Write) -> None:
    write(
        "fdl.yml",
        "commands:\n  a:\n    description: the a\n    run: touch ran\n    needs: [b]\n  b: { run: touch ran }\n",
    )
    for words in (["a", "--help"], ["--help", "a"], ["a", "-h"]):
        shown = fdl(*words)
        assert shown.code == 0
        assert (
            shown.out
            == "the a\n\nUsage: fdl a [-- ARGUMENTS]\n\n  run: touch ran  # fdl.yml:4\n  needs: [b]  # fdl.yml:5\n"
        )
    assert not Path("ran").exists()
    assert fdl("c", "--help").code == 2


def test_fdl_alone_lists_commands_grouped_with_descriptions(fdl: Fdl, write: Write) -> None:
    write(
        "fdl.yml",
        "description: my project\nentry: echo\ncommands:\n"
        "  t: { run: echo, description: a task }\n  f: { path: f }\n  p: { options: { a: 1 } }\n",
    )
    write("f/fdl.yml", "entry: echo")
    write("fdl.ci.yml", "")
    lines = fdl().out.splitlines()
    assert lines[0] == "my project"
    for heading, row in (("Tasks", "  t  a task"), ("Folders", "  f"), ("Presets", "  p")):
        assert lines[lines.index(heading) + 1] == row
    assert "Environments: ci" in lines


def test_colours_only_where_they_are_wanted(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { a: { run: echo } }")
    assert "\x1b" not in fdl().out
    assert "\x1b[1mTasks" in fdl("--ansi").out


def test_a_wrong_option_of_fdl_is_told_the_nearest(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { a: { run: echo } }")
    for words, said in (
        (["--dry-rn", "a"], "there is no option --dry-rn. Did you mean '--dry-run'"),
        (["--env"], "--env needs a value"),
        (["--dry-run=yes"], "--dry-run takes no value"),
        (["--env", "../x", "a"], "the name of an environment, not a file"),
    ):
        result = fdl(*words)
        assert result.code == 2
        assert said in result.err
