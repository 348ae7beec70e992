"""What is installed, what is active, and the commands that tell and change it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.errors import CliError
from flodl_cli.libtorch import store
from flodl_cli.libtorch.arch import Arch, read, render
from flodl_cli.libtorch.exports import exports
from flodl_cli.libtorch.store import Installed, Store

CPU = Arch("2.13.0+cpu", None, (), 1, "wheel", "ab" * 32)
CUDA = Arch("2.8.0+cu128", "12.8", ("8.6", "12.0+PTX"), 1, "zip")


@pytest.fixture
def put(flodl_home: Path) -> Callable[..., Path]:
    """Puts a variant into the store of the home: `put("precompiled/cpu", CPU)`."""

    def make(name: str, arch: Arch, root: Path | None = None) -> Path:
        folder = (root or flodl_home / "libtorch") / name
        (folder / "torch" / "lib").mkdir(parents=True)
        (folder / ".arch").write_text(render(arch))
        return folder

    return make


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    for arch in (CPU, CUDA, CUDA._replace(prefix="/somewhere else/torch")):
        (tmp_path / ".arch").write_text(render(arch))
        assert read(tmp_path) == arch


@pytest.mark.parametrize("text", ["", "version=2.13.0\n", render(CPU).replace("abi=1", "abi=x"), "\0\xff"])
def test_half_a_file_is_no_variant(tmp_path: Path, text: str) -> None:
    (tmp_path / ".arch").write_text(text, encoding="latin-1")
    assert read(tmp_path) is None


def test_where_the_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[..., Path], write: Callable[..., Path]
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("FLODL_HOME", raising=False)
    assert store.home() == Path("/home/me/.flodl/libtorch")
    monkeypatch.setenv("FLODL_HOME", "there")
    assert store.home() == tmp_path / "there" / "libtorch"
    write("fdl.yml", "")
    write("libtorch/README", "some sources, no store")
    assert store.home() == tmp_path / "there" / "libtorch"
    put("precompiled/cpu", CPU, tmp_path / "libtorch")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    assert store.home() == tmp_path / "libtorch"
    assert [i.name for i in store.installed()] == ["precompiled/cpu"]
    assert store.active() is None
    Store(store.home()).activate(store.installed()[0])
    assert store.active() == store.installed()[0]
    monkeypatch.undo()


def test_list(libtorch: Any, put: Callable[..., Path]) -> None:
    assert "`fdl libtorch download` gets one" in libtorch("list").out
    assert libtorch("list", "--json").out == "[]\n"
    put("precompiled/cpu", CPU)
    put("builds/sm86", CUDA)
    put("precompiled/half", CPU).joinpath(".arch").unlink()
    put("precompiled/.hidden", CPU)
    libtorch("activate", "precompiled/cpu")
    assert (
        libtorch("list").out
        == "* precompiled/cpu  2.13.0+cpu, CPU, wheel\n  builds/sm86      2.8.0+cu128, CUDA 12.8, 8.6 12.0+PTX, zip\n"
    )


def test_activate(libtorch: Any, put: Callable[..., Path], flodl_home: Path) -> None:
    put("precompiled/cpu", CPU)
    put("precompiled/cu128", CUDA)
    put("builds/cpu", CPU)
    assert "no libtorch is active" in libtorch("env").err
    done = libtorch("activate", "cu128")
    assert (done.code, "# precompiled/cu128: libtorch 2.8.0+cu128 chosen, active" in done.out) == (0, True)
    assert (flodl_home / "libtorch" / ".active").read_text() == "precompiled/cu128\n"
    assert "'cpu' is more than one: precompiled/cpu, builds/cpu" in libtorch("activate", "cpu").err


@pytest.mark.parametrize("command", ["activate", "remove", "info", "env"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cu12", "Did you mean 'cu128'?"),
        ("precompiled/cu12", "Did you mean 'precompiled/cu128'?"),
        ("../../x", "no libtorch '../../x'"),
        ("precompiled/../builds/x", "no libtorch 'precompiled/../builds/x'"),
        ("/etc", "no libtorch '/etc'"),
        ("", "no libtorch ''"),
    ],
)
def test_a_name_that_is_none(libtorch: Any, put: Callable[..., Path], command: str, name: str, said: str) -> None:
    put("precompiled/cu128", CUDA)
    wrong = libtorch(command, name, *(["-y"] if command == "remove" else []))
    assert (wrong.code, wrong.out) == (2, "")
    assert said in wrong.err


def test_remove(libtorch: Any, put: Callable[..., Path], flodl_home: Path) -> None:
    folder = put("precompiled/cpu", CPU)
    put("precompiled/cu128", CUDA)
    libtorch("activate", "cpu")
    asked = libtorch("remove", "cpu")
    assert (asked.code, "--yes does it without asking" in asked.err, folder.exists()) == (2, True, True)
    assert libtorch("remove", "cpu", "-y").out == "precompiled/cpu was removed\n"
    assert not folder.exists()
    assert not (flodl_home / "libtorch" / ".active").exists()
    libtorch("activate", "cu128")
    put("builds/x", CPU)
    libtorch("remove", "x", "-y")
    assert libtorch("env").code == 0  # another one than the active


def test_remove_asks_on_a_terminal(libtorch: Any, fdl: Any, put: Callable[..., Path]) -> None:
    folder = put("precompiled/cpu", CPU)
    for answer, code, there in (("n", 2, True), ("y", 0, False)):
        leader, terminal = os.openpty()
        process = fdl.start("libtorch", "remove", "cpu", stdin=terminal)
        os.write(leader, f"{answer}\n".encode())
        out, err = process.communicate(timeout=60)
        os.close(leader)
        os.close(terminal)
        assert (process.returncode, folder.exists()) == (code, there), err
        assert f"remove precompiled/cpu ({folder})? [y/N]" in out + err


def test_env_of_every_shell(libtorch: Any, put: Callable[..., Path], tmp_path: Path) -> None:
    root = tmp_path / 'it\'s a "place" $HOME'
    put("precompiled/cpu", CPU._replace(abi=0), root)
    prefix = str(root / "precompiled" / "cpu" / "torch")
    libtorch("activate", "cpu", "--path", str(root))
    want = {
        "LIBTORCH": prefix,
        "LIBTORCH_CXX11_ABI": "0",
        "CMAKE_PREFIX_PATH": f"{prefix}:/before",
        "LD_LIBRARY_PATH": f"{prefix}/lib",
    }
    assert json.loads(libtorch("env", "--json", "--path", str(root)).out)["LIBTORCH"] == prefix
    show = f"import json, os; print(json.dumps({{k: os.environ.get(k) for k in {list(want)}}}))"
    for shell in ("bash", "zsh", "fish"):
        lines = libtorch("env", "--shell", shell, "--path", str(root)).out
        if program := shutil.which(shell):
            env = {"PATH": os.environ["PATH"], "CMAKE_PREFIX_PATH": "/before", "HOME": str(tmp_path)}
            line = f"{lines}exec {sys.executable} -c '{show.replace(chr(39), chr(34))}'"
            said = subprocess.run([program, "-c", line], env=env, capture_output=True, text=True, check=True).stdout
            assert json.loads(said) == want, shell


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake (.ci/run installs it)")
def test_env_for_cmake(tmp_path: Path) -> None:
    folder = tmp_path / 'a;b "c" $d \\e'
    lines = exports(Installed("precompiled/cpu", folder, CPU), "cmake")
    script = tmp_path / "x.cmake"
    script.write_text("set(CMAKE_PREFIX_PATH /before)\n" + "\n".join(lines) + "\nlist(GET CMAKE_PREFIX_PATH 0 first)\n"
                      'message("<${first}>")\n')  # fmt: skip
    said = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True, check=True).stderr
    assert said == f"<{folder}/torch>\n"


def test_the_shell_of_the_user(libtorch: Any, fdl: Any, put: Callable[..., Path]) -> None:
    put("precompiled/cpu", CPU)
    libtorch("activate", "cpu")
    fdl.env["SHELL"] = "/usr/bin/fish"
    assert libtorch("env").out.startswith("set -gx LIBTORCH ")
    fdl.env["SHELL"] = "/bin/dash"
    assert libtorch("env").out.startswith("export LIBTORCH=")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.13.0+cpu", 'tch = "0.26"'),
        ("2.7.1", 'tch = "0.20" is for 2.7.0: get that, or set'),
        ("2.99.0", "none is known for 2.99.0; the newest, 0.26, is for 2.13.0"),
    ],
)
def test_info_names_the_tch_that_fits(libtorch: Any, put: Callable[..., Path], version: str, said: str) -> None:
    put("precompiled/cpu", CPU._replace(version=version))
    assert said in libtorch("info", "cpu").out


def test_names_are_completed(fdl: Any, libtorch: Any, put: Callable[..., Path]) -> None:
    put("precompiled/cpu", CPU)
    said = fdl("--complete", "fish", "libtorch", "activate", "pre")
    assert "precompiled/cpu" in said.out


# link


@pytest.fixture
def environment(tmp_path: Path, libraries: dict[str, bytes]) -> Callable[[str], Path]:
    """A Python whose torch has the given version; the program that runs it."""

    def make(version: str) -> Path:
        torch = tmp_path / "env" / "torch"
        for name, content in libraries.items():
            (torch / name).parent.mkdir(parents=True, exist_ok=True)
            (torch / name).write_bytes(content)
        (torch / "__init__.py").write_text("raise SystemExit('imported')")
        (torch / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
        program = tmp_path / "env" / "python"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={torch.parent} exec {sys.executable} "$@"\n')
        program.chmod(0o755)
        return program

    return make


def test_link(libtorch: Any, environment: Callable[[str], Path], flodl_home: Path, tmp_path: Path) -> None:
    python = environment("2.12.1+cpu")
    done = libtorch("link", "--python", str(python))
    assert done.code == 0, done.err
    assert "# linked/cpu: libtorch 2.12.1+cpu linked, active" in done.out
    assert "was linked before" in libtorch("link", "--python", str(python)).out
    found = json.loads(libtorch("info", "--json").out)
    assert (found["prefix"], found["source"]) == (str(tmp_path / "env" / "torch"), "link")
    assert found["tch"] == {"version": "0.25", "torch": "2.12.0", "fits": False}
    assert [p.name for p in (flodl_home / "libtorch" / "linked" / "cpu").iterdir()] == [".arch"]  # no copy

    environment("2.13.0+cpu")  # the environment got another torch
    assert "linked/cpu: libtorch 2.13.0+cpu linked" in libtorch("link", "--python", str(python)).out
    assert len(json.loads(libtorch("list", "--json").out)) == 1

    shutil.rmtree(tmp_path / "env")
    assert "(gone: " in libtorch("list").out
    assert "(gone)" in libtorch("info").out
    for words in (["env"], ["activate", "cpu"]):
        wrong = libtorch(*words)
        assert (wrong.code, "is gone; `fdl libtorch remove linked/cpu`" in wrong.err) == (2, True)
    assert libtorch("remove", "cpu", "-y").code == 0


def test_removing_a_link_keeps_the_torch(libtorch: Any, environment: Callable[[str], Path], tmp_path: Path) -> None:
    libtorch("link", "--python", str(environment("2.13.0")))
    assert libtorch("remove", "cpu", "-y").code == 0
    assert (tmp_path / "env" / "torch" / "lib" / "libtorch.so").is_file()


def test_link_without_torch(libtorch: Any, write: Callable[..., Path]) -> None:
    bare = write("bare", f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    wrong = libtorch("link", "--python", str(bare))
    assert (wrong.code, "has no torch: activate the environment that has it" in wrong.err) == (2, True)
    gone = libtorch("link", "--python", "/no/python")
    assert (gone.code, gone.err) == (2, "fdl: /no/python does not run: /no/python: No such file or directory\n")


def test_damaged_metadata_is_named_and_can_be_removed(fdl: Any, put: Callable[..., Path], flodl_home: Path) -> None:
    folder = put("precompiled/cpu", CPU)
    (folder / ".arch").write_text("")
    place = ("--path", str(flodl_home / "libtorch"))
    done = fdl("libtorch", "list", *place)
    assert "precompiled/cpu is damaged: `fdl libtorch remove precompiled/cpu`" in done.err
    done = fdl("libtorch", "info", "cpu", *place)
    assert done.code != 0
    assert "precompiled/cpu is damaged: its .arch is missing or cannot be read" in done.err
    assert fdl("libtorch", "remove", "cpu", "--yes", *place).code == 0
    assert not folder.exists()


def test_a_name_that_is_taken_is_refused_before_anything_is_moved(flodl_home: Path) -> None:
    there = Store(flodl_home / "libtorch")
    (there.root / "builds" / "sm61").mkdir(parents=True)
    with pytest.raises(
        CliError, match=r"in the way: its .arch is missing or cannot be read; `fdl libtorch remove builds/sm61`"
    ):
        there.check_free("builds/sm61")


@pytest.mark.parametrize("python", ["/bin/true", "/bin/echo"])
def test_a_link_to_what_is_no_python_is_refused(fdl: Any, flodl_home: Path, python: str) -> None:
    done = fdl("libtorch", "link", "--python", python)
    assert done.code != 0
    assert f"{python} does not answer as a Python does" in done.err
    assert "Traceback" not in done.err


def test_an_unreachable_host_is_of_the_network_not_of_the_file() -> None:
    from flodl_cli.libtorch.fetch import _NETWORK

    assert {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN} <= set(_NETWORK)
    assert errno.ENOSPC not in _NETWORK
