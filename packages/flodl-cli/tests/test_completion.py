"""Completion in the real shells, asked for as their users do: with the Tab key, or by the shell's own question."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.completion.reply import split_line

Fdl = Callable[..., Any]
Write = Callable[..., Path]

TRAIN = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=["digits", "fashion-mnist"], help="what to train on: images")
parser.add_argument("--epochs", type=int)
parser.add_argument("--fast", action=argparse.BooleanOptionalAction)
parser.add_argument("--resume")
parser.parse_args()
"""


@pytest.fixture
def project(fdl: Any, write: Write, tmp_path: Path) -> None:
    """A project, and a program `fdl` on PATH."""
    write(
        "fdl.yml",
        "commands:\n"
        "  test: { run: 'true', description: 'all: tests' }\n"
        "  train: { path: train }\n"
        "  lint: { run: 'true' }\n",
    )
    write("fdl.ci.yml", "")
    write("fdl.prod.yml", "")
    write(
        "train/fdl.yml",
        "entry: python train.py\ntraining: { epochs: 3 }\ncommands:\n  quick: { training: { epochs: 1 } }\n",
    )
    write("train/train.py", TRAIN)
    write("train/runs/2026-a/run.db", "")
    write("train/runs/no-run/other", "")
    write("bin/fdl", f'#!/bin/sh\nexec "{sys.executable}" -m flodl_cli "$@"\n').chmod(0o755)
    fdl.env["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"


def answer(fdl: Fdl, *question: str) -> tuple[str, list[str]]:
    directives, *lines = fdl("--complete", *question).out.split("\n")
    return directives, [line.partition("\t")[0] for line in lines if line]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["t"], ["test", "train"]),
        (["--e"], ["--env"]),
        (["--env", ""], ["ci", "prod"]),
        (["--env=p"], ["--env=prod"]),
        (["--env", "ci,"], ["ci,prod"]),
        (["p"], ["prod"]),
        (["ci", "lin"], ["lint"]),
        (["test", ""], ["--", "--help"]),
        (["train", "q"], ["quick"]),
        (["train", "--"], ["--data", "--epochs", "--fast", "--no-fast", "--resume", "--help"]),
        (["train", "--data", "digits", "--d"], []),
        (["train", "--data", ""], ["digits", "fashion-mnist"]),
        (["train", "quick", "--data", "f"], ["fashion-mnist"]),
        (["train", "--data=f"], ["--data=fashion-mnist"]),
        (["train", "--resume", ""], ["runs/2026-a"]),
        (["config", "e"], ["explain"]),
        (["config", "show", "--j"], ["--json"]),
        (["config", "explain", "training.ep"], ["training.epochs"]),
        (["config", "explain", "commands.lint."], ["commands.lint.run"]),
        (["config", "explain", "--j"], ["--json"]),
        (["config", "diff", ""], ["ci", "prod"]),
        (["config", "diff", "ci", "p"], ["prod"]),
        (["config", "diff", "ci", "prod", ""], []),
        (["completions", ""], ["bash", "zsh", "fish"]),
        (["--set", "training.nan_p"], ["training.nan_policy="]),
        (["--set", "training.nan_policy=s"], ["training.nan_policy=skip", "training.nan_policy=stop"]),
        (["nothing", "x"], []),
    ],
)
def test_what_fits(fdl: Fdl, words: list[str], expected: list[str]) -> None:
    assert answer(fdl, "fish", *words)[1] == expected


@pytest.mark.usefixtures("project")
def test_directives(fdl: Fdl) -> None:
    assert answer(fdl, "zsh", "--set", "tra")[0] == "nospace"
    assert answer(fdl, "zsh", "test", "--", "")[0] == "files"
    assert answer(fdl, "zsh", "train", "--resume", "")[0] == "files"


def test_a_broken_manifest_completes_nothing_and_disturbs_nobody(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: [")
    result = fdl("--complete", "fish", "")
    assert (result.code, result.out) == (2, "")
    assert fdl("completions", "bash").code == 0  # start files call it in any folder


@pytest.mark.parametrize(
    ("line", "words", "quote"),
    [
        ("fdl ", ["fdl", ""], ""),
        ("fdl te", ["fdl", "te"], ""),
        ("fdl 'a b' \"c \\\" d", ["fdl", "a b", 'c " d'], '"'),
        ("fdl a\\ b", ["fdl", "a b"], ""),
        ("fdl ''", ["fdl", ""], ""),
        ("fdl '' ", ["fdl", "", ""], ""),
    ],
)
def test_unfinished_lines_are_split_like_the_shell_does(line: str, words: list[str], quote: str) -> None:
    assert split_line(line) == (words, quote)


class Terminal:
    """A shell on a pseudo-terminal, typed into as by a user."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.main, side = pty.openpty()
        self.process = subprocess.Popen(
            argv, stdin=side, stdout=side, stderr=side, env={**env, "TERM": "dumb"}, start_new_session=True
        )
        os.close(side)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())

    def wait_for(self, pattern: str, seconds: float = 30) -> None:
        """Reads until the pattern appeared behind what the last call waited for."""
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.seen)):
            left = end - time.monotonic()
            assert left > 0, f"{pattern!r} did not come: {self.seen!r}"
            if select.select([self.main], [], [], left)[0]:
                self.seen += os.read(self.main, 4096).decode(errors="replace").replace("\r", "")
        self.seen = self.seen[match.end() :]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.main)


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (.ci/run installs it)")
    return found


@pytest.fixture
def bash(fdl: Any, project: None) -> Iterator[Terminal]:
    terminal = Terminal([shell("bash"), "--norc", "--noprofile", "-i"], fdl.environment())
    terminal.type("PS1='ready> '; bind 'set enable-bracketed-paste off'; . <(fdl completions bash); echo be''gin\n")
    terminal.wait_for("begin\nready> ")
    yield terminal
    terminal.close()


@pytest.fixture
def zsh(fdl: Any, project: None, tmp_path: Path) -> Iterator[Terminal]:
    script = tmp_path / "fdl.zsh"
    script.write_text(fdl("completions", "zsh").out)
    terminal = Terminal([shell("zsh"), "-f", "-i"], fdl.environment())
    terminal.type(
        f"PS1='ready> '; unsetopt zle_bracketed_paste; autoload -Uz compinit && compinit -u -D; . {script}; echo be''gin\n"
    )
    terminal.wait_for(r"begin\n[^\n]*ready> ")
    yield terminal
    terminal.close()


LINES = [
    ("fdl tes", "fdl test "),
    ("fdl train --data f", "fdl train --data fashion-mnist "),
    ("fdl --env c", "fdl --env ci "),
    ("fdl train --data=fa", "fdl train --data=fashion-mnist "),
]


@pytest.mark.parametrize(("typed", "completed"), LINES)
def test_bash_completes(bash: Terminal, typed: str, completed: str) -> None:
    bash.type(typed + "\t")
    bash.wait_for(re.escape(completed))


def test_bash_lists(bash: Terminal) -> None:
    bash.type("fdl t\t\t")
    bash.wait_for(r"test +train")
    bash.type("\x15fdl train --\t\t")
    bash.wait_for(r"--data +--epochs")


def test_bash_falls_back_to_file_names(bash: Terminal, write: Write) -> None:
    write("some-file", "")
    bash.type("fdl test -- some-f\t")
    bash.wait_for("some-file ")


def test_bash_asks_the_fdl_that_is_typed(bash: Terminal, write: Write) -> None:
    write("other/fdl", "#!/bin/sh\nprintf '\\nfrom-the-other\\t\\n'\n").chmod(0o755)
    bash.type("./other/fdl fro\t")
    bash.wait_for("from-the-other ")


@pytest.mark.parametrize(("typed", "completed"), LINES)
def test_zsh_completes(zsh: Terminal, typed: str, completed: str) -> None:
    zsh.type(typed + "\t")
    zsh.wait_for(re.escape(completed.removeprefix(typed)).replace("\\ ", " "))


def test_zsh_lists_with_descriptions(zsh: Terminal) -> None:
    zsh.type("fdl t\t\t")
    zsh.wait_for(r"test +-- all: tests")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fdl tes", ["test\tall: tests"]),
        ("fdl train --data ", ["digits", "fashion-mnist"]),
        ("fdl train --data=f", ["--data=fashion-mnist"]),
        ("fdl --env ", ["ci\tenvironment", "prod\tenvironment"]),
        ("fdl train --da", ["--data\twhat to train on: images"]),
    ],
)
def test_fish_completes(fdl: Any, tmp_path: Path, line: str, expected: list[str]) -> None:
    script = tmp_path / "fdl.fish"
    script.write_text(fdl("completions", "fish").out)
    command = [shell("fish"), "--no-config", "-c", f"source {script}; complete -C '{line}'"]
    result = subprocess.run(command, env=fdl.environment(), capture_output=True, text=True, timeout=60)
    assert (result.stderr, result.returncode) == ("", 0)
    assert [entry.rstrip("\t") for entry in result.stdout.splitlines()] == expected


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_autocomplete_installs_for_new_shells(fdl: Any, project: None, name: str, tmp_path: Path) -> None:
    home = Path(fdl.env["HOME"])
    assert fdl("autocomplete", "--shell", name, "--yes").code == 0
    start_file = home / f".{name}rc"
    once = start_file.read_text()
    assert fdl("autocomplete", "--shell", name, "--yes").code == 0
    assert start_file.read_text() == once
    terminal = Terminal([shell(name), "-i"], {**fdl.environment(), "ZDOTDIR": str(home), "PS1": "ready> "})
    try:
        terminal.type("echo be''gin\n")
        terminal.wait_for(r"begin\n")
        terminal.type("fdl tes\t")
        terminal.wait_for("t " if name == "zsh" else "fdl test ")
    finally:
        terminal.close()


def test_autocomplete_for_fish_is_a_file_that_fish_reads(fdl: Any) -> None:
    assert fdl("autocomplete", env={"SHELL": "/usr/bin/fish"}, stdin="").code == 2
    assert fdl("autocomplete", "-y", env={"SHELL": "/usr/bin/fish"}).code == 0
    installed = Path(fdl.env["HOME"]) / ".config" / "fish" / "completions" / "fdl.fish"
    assert installed.read_text() == fdl("completions", "fish").out


@pytest.mark.parametrize("stdin", ["", "y\n"])
def test_without_a_terminal_nothing_is_installed(fdl: Any, stdin: str) -> None:
    result = fdl("autocomplete", "--shell", "bash", stdin=stdin)
    assert result.code == 2
    assert "--yes does it without asking" in result.err
    assert list(Path(fdl.env["HOME"]).iterdir()) == []


def test_the_end_of_input_on_a_terminal_is_no_answer(fdl: Any) -> None:
    terminal = Terminal([*fdl.program, "autocomplete", "--shell", "bash"], fdl.environment())
    try:
        terminal.wait_for(r"\[y/N\] ")
        terminal.type("\x04")
        terminal.wait_for("--yes does it without asking")
        assert terminal.process.wait(timeout=20) == 2
    finally:
        terminal.close()
    assert list(Path(fdl.env["HOME"]).iterdir()) == []
