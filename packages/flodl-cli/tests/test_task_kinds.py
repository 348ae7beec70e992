"""needs, dotenv, cwd, docker, append, dry runs, cycles."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fdl = Callable[..., Any]
Write = Callable[..., Path]


def test_needs_run_first_and_each_once(fdl: Fdl, write: Write) -> None:
    write(
        "fdl.yml",
        "commands:\n"
        "  a: { run: echo a }\n"
        "  b: { run: echo b, needs: a }\n"
        "  c: { run: echo c, needs: [a, b] }\n"
        "  all: { run: echo all, needs: [b, c, 'sub x'] }\n"
        "  sub: { path: sub, needs: a }\n",
    )
    write("sub/fdl.yml", "commands: { x: { run: echo x, needs: y }, y: { run: echo y } }")
    assert fdl("all").out.split() == ["a", "b", "c", "y", "x", "all"]
    assert fdl("sub", "y").out.split() == ["a", "y"]


def test_a_failed_need_ends_the_chain_with_its_code(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { a: { run: exit 5 }, b: { run: echo b, needs: a } }")
    result = fdl("b")
    assert (result.code, result.out, result.err) == (5, "", "")


def test_arguments_reach_the_command_and_not_its_needs(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { a: { run: echo a }, b: { run: echo b, needs: a } }")
    assert fdl("b", "--", "x").out == "a\nb x\n"


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (
            "commands: { a: { run: x, needs: b }, b: { run: x, needs: [c] }, c: { run: x, needs: a } }",
            "needs: a cycle: a -> b -> c -> a",
        ),
        ("commands: { a: { run: x, needs: a } }", "needs: a cycle: a -> a"),
        (
            "commands: { a: { run: x, needs: biuld }, build: { run: x } }",
            "needs: no command 'biuld'. Did you mean 'build'?",
        ),
        ("commands: { a: { path: . } }", "path: a cycle of folders"),
        ("commands: { a: { run: x, cwd: nowhere } }", "cwd: there is no folder"),
        ("commands: { a: { run: x, dotenv: .env } }", "there is no dotenv file"),
        ("commands: { a: { run: x, path: y } }", "command 'a' has run and path; it must be one of them"),
        ("commands: { a: { run: x, training: { epochs: 1 } } }", "'training' has no effect in a run command ('a')"),
        ("commands: { a: { options: { x: 1 } } }", "is a preset, and this manifest has no entry"),
        ("entry: 'echo \"'\ncommands: { a: { options: { x: 1 } } }", "entry: no closing quotation"),
        (
            "entry: no-such-program\ncommands: { a: { options: { x: 1 } } }",
            "there is no program 'no-such-program' on PATH",
        ),
    ],
)
def test_what_cannot_run_is_told_with_its_place(fdl: Fdl, write: Write, manifest: str, said: str) -> None:
    write("fdl.yml", manifest)
    result = fdl("a")
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_a_cycle_of_folders_is_told(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    write("fdl.yml", "commands: { sub: {} }")
    write("sub/fdl.yml", "commands: { up: { path: .. }, ok: { run: echo ok } }")
    result = fdl("sub", "up", "sub")
    assert result.code == 2
    assert f"sub/fdl.yml:1:25: path: a cycle of folders: {tmp_path} -> {tmp_path / 'sub'} -> {tmp_path}" in result.err
    assert fdl("sub", "ok").out == "ok\n"


def test_a_folder_is_a_command_by_its_name(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands:\n  letters:\n  other: { description: the other }\n")
    write("letters/fdl.yml", "entry: echo letters")
    write("other/fdl.yml", "description: o\ncommands: { x: { run: echo x, description: the x } }")
    assert fdl("letters").out == "letters\n"
    assert fdl("other", "x").out == "x\n"
    assert "the x" in fdl("other", "--help").out
    alone = fdl("other")
    assert alone.code == 2
    assert "fdl other needs a command. Valid: x." in alone.err


def test_overlays_and_local_settings_hold_in_folders_too(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { sub: { path: sub } }")
    write("fdl.ci.yml", "")
    write("sub/fdl.yml", "entry: echo\noptions: { a: 1, b: 1, c: 1, d: 1 }\n")
    write("sub/fdl.ci.yml", "options: { b: 2, c: 2, d: 2 }\n")
    write("sub/fdl.local.yml", "options: { c: 3, d: 3 }\n")
    assert fdl("--env", "ci", "--set", "options.d=4", "sub").out == "--a 1 --b 2 --c 3 --d 4\n"
    assert fdl("sub").out == "--a 1 --b 1 --c 3 --d 3\n"


DOTENV = """\
# comment
PLAIN=one  # trailing
export EXPORTED=two
SPACES = three four
SINGLE='$HOME "x" # kept'
DOUBLE="a\\nb \\"q\\" $HOME"
EMPTY=
HASH=a#b
MULTI="first
second"
REAL=file
"""


def test_dotenv_files(fdl: Fdl, write: Write, show_words: Path) -> None:
    write(".env", DOTENV)
    names = ["PLAIN", "EXPORTED", "SPACES", "SINGLE", "DOUBLE", "EMPTY", "HASH", "MULTI", "REAL"]
    values = " ".join(f'"${n}"' for n in names)
    write("fdl.yml", f"commands:\n  show:\n    dotenv: .env\n    run: python words.py {values}\n")
    result = fdl("show", env={"REAL": "environment"})
    assert [eval(line) for line in result.out.splitlines()] == [
        "one",
        "two",
        "three four",
        '$HOME "x" # kept',
        'a\nb "q" $HOME',
        "",
        "a#b",
        "first\nsecond",
        "environment",
    ]


def test_a_wrong_dotenv_line_is_told(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "dotenv: [.env]\ncommands: { a: { run: 'true' } }")
    write(".env", "GOOD=1\nnot a line\n")
    result = fdl("a")
    assert (result.code, result.err.splitlines()[0]) == (2, "fdl: .env:2:1: not a NAME=VALUE line")


def test_the_manifest_s_variables_win_over_all(fdl: Fdl, write: Write) -> None:
    write(".env", "A=file\nB=file\n")
    write(
        "fdl.yml",
        "dotenv: .env\nenv: { A: manifest }\ncommands: { show: { run: echo $A $B $C, env: { C: '${env:B:unset}' } } }",
    )
    assert fdl("show", env={"A": "environment"}).out == "manifest file unset\n"


def test_cwd_is_seen_from_the_manifest(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    write("sub dir/x", "")
    write("fdl.yml", "commands: { where: { run: pwd, cwd: sub dir } }")
    assert fdl("where").out == f"{tmp_path / 'sub dir'}\n"


def test_append_stands_behind_the_arguments(fdl: Fdl, write: Write) -> None:
    write(
        "fdl.yml", "commands: { log: { run: echo start, append: '| tr a-z A-Z' }, own: { run: 'echo \"$2\" \"$1\"' } }"
    )
    assert fdl("log", "--", "x; y").out == "START X; Y\n"
    assert fdl("log").out == "START\n"
    assert fdl("own", "--", "1 1", "2").out == "2 1 1\n"


@pytest.fixture
def docker(write: Write, fdl: Any) -> Path:
    """A program named docker that tells how it was called and then runs what the container would."""
    write(
        "bin/docker",
        "#!/usr/bin/env python3\n"
        "import json, os, subprocess, sys\n"
        "words = sys.argv[1:]\n"
        "with open(os.environ['DOCKER_LOG'], 'w') as file:\n"
        "    json.dump({'words': words, 'cwd': os.getcwd()}, file)\n"
        "inside = words[words.index('box') + 1:]\n"
        "sys.exit(subprocess.run(inside).returncode)\n",
    ).chmod(0o755)
    log = write("docker.json", "")
    fdl.env.update(PATH=f"{Path('bin').absolute()}:{os.environ['PATH']}", DOCKER_LOG=str(log))
    return log


def called(log: Path) -> Any:
    return json.loads(log.read_text())


def test_docker_gets_the_arguments_intact(
    fdl: Fdl, write: Write, docker: Path, tmp_path: Path, show_words: Path
) -> None:
    write(
        "fdl.yml",
        "docker: box\ncommands: { show: { run: python3 words.py, env: { A: 'x y' } }, bare: { run: echo bare, docker: false } }",
    )
    words = ["a b", "$HOME; touch x", "*", "'q'"]
    result = fdl("show", "--", *words)
    assert result.out.splitlines() == [repr(w) for w in words]
    call = called(docker)
    assert call["cwd"] == str(tmp_path)
    assert call["words"] == [
        "compose",
        "run",
        "--rm",
        "-e",
        "A",
        "box",
        "sh",
        "-c",
        'python3 words.py "$@"',
        "sh",
        *words,
    ]
    assert not Path("x").exists()
    docker.write_text("")
    assert fdl("bare").out == "bare\n"
    assert docker.read_text() == ""


def test_docker_runs_the_entry_of_a_folder_there_with_its_configuration(fdl: Fdl, write: Write, docker: Path) -> None:
    write("fdl.yml", "docker: box\ncommands: { sub: { path: sub dir } }")
    write("sub dir/fdl.yml", "entry: sh show.sh\ntraining: { epochs: 2 }\n")
    write("sub dir/show.sh", 'basename "$PWD"; echo "$@"')
    assert fdl("sub", "a", "b  c").out == "sub dir\na b  c\n"
    words = called(docker)["words"]
    mount = words[words.index("-v") + 1]
    assert mount.endswith(":/run/fdl-config.json:ro")
    assert "FDL_CONFIG=/run/fdl-config.json" in words
    assert not os.path.exists(mount.partition(":")[0])


def test_a_dry_run_prints_lines_that_a_shell_would_run(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    write("fdl.yml", "commands:\n  a: { run: touch ran }\n  b: { run: 'echo \"$X\"', needs: a, env: { X: it's } }\n")
    result = fdl("--dry-run", "b", "--", "two words", "$HOME")
    assert result.code == 0
    assert not Path("ran").exists()
    assert "# a\n" in result.out
    shell = subprocess.run(["sh"], input=result.out, capture_output=True, text=True, check=True)
    assert shell.stdout == "it's two words $HOME\n"
    assert Path("ran").exists()


def test_verbose_says_what_runs(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands:\n  a: { run: echo out, env: { X: 1 } }\n")
    assert fdl("-v", "a").err == "fdl: a\n"
    assert "sh -c 'echo out'" in fdl("-vv", "a").err
    assert "X=1" in fdl("-vvv", "a").err
    assert fdl("a").err == ""
