"""`fdl skill` and `fdl api-ref`: what they say is true of the flodl that is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flodl_cli.schema import section_fields

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Asking flodl takes an import of torch, so the tests of one module share the answer."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def api(fdl: Any, cache: str) -> Callable[..., Any]:
    return lambda *words: fdl("api-ref", *words, env={"XDG_CACHE_HOME": cache})


@pytest.fixture
def guide(fdl: Any) -> str:
    shown = fdl("skill", "show")
    assert shown.code == 0
    text: str = shown.out
    return text


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_code_of_the_guide_runs_and_ports_to_the_same_numbers(guide: str, write: Write) -> None:
    code = blocks(guide, "python")
    assert len(code) >= 6
    assert "assert losses == old_losses" in code[1]  # the guide checks itself
    write("guide.py", "\n\n".join(code))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "guide.py"], env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "def forward(self, x)" in ran.stdout


def test_the_names_and_settings_of_the_guide_exist(api: Any, fdl: Any, guide: str, write: Write) -> None:
    reference = json.loads(api("--json").out)
    names = {n["name"] for n in reference["names"]}
    used = set(re.findall(r"\bfl\.([A-Za-z_.]+[A-Za-z_])", guide))
    assert len(used) >= 6
    assert used <= names
    methods = {n.rpartition(".")[2] for n in names}
    called = set(re.findall(r"\.([a-z_]+)\(", "".join(re.findall(r"^\|.*\|$", guide, re.MULTILINE))))
    theirs = {
        "backward",
        "step",
        "zero_grad",
        "eval",
        "save",
        "state_dict",
        "add_scalar",
        "to",
        "cat",
        "a",
        "b",
        "skip",
    }
    assert called - theirs <= methods
    manifest = blocks(guide, "yaml")[0]
    write("fdl.yml", manifest)
    assert fdl("config", "validate").code == 0
    named = set(re.findall(r"`([a-z_]+)=", guide)) - {"scheduler", "name"}
    assert {"clip_norm", "accumulate", "amp", "resume", "drop_last"} <= named
    assert named - {"device"} <= set(section_fields("training"))


def test_the_guide_is_a_skill_named_as_its_folder(fdl: Any, tmp_path: Path) -> None:
    result = fdl("skill", "install")
    path = tmp_path / ".agents" / "skills" / "port-to-flodl" / "SKILL.md"
    assert (result.code, result.out) == (0, f"wrote {path}\n")
    head = yaml.safe_load(path.read_text().split("---\n")[1])
    assert head["name"] == path.parent.name
    assert 0 < len(head["description"]) <= 1024
    assert fdl("skill", "install").out == f"{path} is up to date\n"
    path.write_text("mine")
    asked = fdl("skill", "install")
    assert (asked.code, path.read_text()) == (2, "mine")
    assert "differs from the guide of this version; replace it? No terminal" in asked.err
    assert fdl("skill", "install", "--yes").code == 0
    assert path.read_text() != "mine"


def test_the_guide_goes_into_the_project_or_where_it_is_wanted(fdl: Any, write: Write, tmp_path: Path) -> None:
    write("fdl.yml", "commands: {}\n")
    (tmp_path / "inner").mkdir()
    assert fdl("skill", "install", cwd=tmp_path / "inner").code == 0
    assert (tmp_path / ".agents/skills/port-to-flodl/SKILL.md").exists()
    assert fdl("skill", "install", "--to", "elsewhere/skills").code == 0
    assert (tmp_path / "elsewhere/skills/port-to-flodl/SKILL.md").exists()
    write("blocked", "a file")
    assert fdl("skill", "install", "--to", "blocked").code == 2
    assert "install" in fdl("skill", "instal").err


def test_the_reference_lists_signatures_and_first_lines(api: Any) -> None:
    shown = api()
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].startswith("flodl ")
    assert "fl.flow(first: Part) -> FlowBuilder" in lines
    at = lines.index("    .through(part: Part) -> FlowBuilder")
    assert lines[at + 1].startswith("        ")
    assert "fl.data.Digits(split: str = 'train', *, flat: bool = True) -> None" in shown.out


def test_the_reference_is_the_public_interface(api: Any) -> None:
    """The same names as the module itself gives."""
    found = json.loads(api("--json").out)
    code = "import flodl as fl, json; print(json.dumps([fl.__version__, sorted(fl.__all__)]))"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, names = json.loads(asked.stdout)
    assert found["version"] == version
    assert {n["name"] for n in found["names"] if "." not in n["name"]} == set(names) - {"__version__"}
    assert all(set(n) >= {"name", "kind", "signature", "doc"} for n in found["names"])
    by_name = {n["name"]: n for n in found["names"]}
    assert by_name["Trainer.step"]["kind"] == "method"
    assert by_name["Trainer.step"]["signature"].startswith("(loss: Tensor | None = None")
    assert by_name["Trainer.device" if "Trainer.device" in by_name else "Trainer.global_step"]["kind"] == "property"


def test_one_name_is_explained(api: Any) -> None:
    shown = api("fl.Trainer.setup")
    assert shown.out.startswith("fl.Trainer.setup(model: nn.Module, optimizer: ")
    assert "    dataset: what `fl.data.as_dataset` takes" in shown.out
    assert "    .evaluate(" in api("Trainer").out
    for wrong, said in (("setpu", "'Trainer.setup'"), ("Trainer.evalute", "'Trainer.evaluate'"), ("xyz", "lists all")):
        result = api(wrong)
        assert (result.code, result.out) == (2, "")
        assert said in result.err


def test_what_was_asked_is_kept_until_flodl_changes(fdl: Any, write: Write, tmp_path: Path) -> None:
    def module(function: str) -> Path:
        return write("fake/flodl/__init__.py", f"__version__ = '9'\n__all__ = ['{function}']\ndef {function}(): ...\n")

    env = {"PYTHONPATH": ":".join([str(tmp_path / "fake"), *sys.path]), "PYTHONDONTWRITEBYTECODE": "1"}
    module("one")
    assert "fl.one()" in fdl("api-ref", env=env).out
    kept = list(Path(fdl.env["HOME"]).rglob("api/*.json"))
    assert len(kept) == 1
    before = kept[0].stat().st_mtime_ns
    assert "fl.one()" in fdl("api-ref", env=env).out
    assert kept[0].stat().st_mtime_ns == before
    module("other")
    assert "fl.other()" in fdl("api-ref", env=env).out


def test_a_python_without_flodl_or_with_a_broken_one(fdl: Any, tmp_path: Path, write: Write) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    sources = str(Path(__file__).parents[1] / "src")
    env = {"VIRTUAL_ENV": str(tmp_path), "PYTHONPATH": sources}
    assert "has no flodl: install it there" in fdl("api-ref", env=env).err
    write("broken/flodl/__init__.py", "raise ImportError('half of it is missing')")
    broken = fdl("api-ref", env={**env, "PYTHONPATH": f"{tmp_path / 'broken'}:{sources}"})
    assert (broken.code, "cannot be imported: ImportError: half of it is missing" in broken.err) == (2, True)
