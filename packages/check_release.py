"""Builds wheels and source distributions of both packages into dist/ and checks them as a stranger would meet them.

Built twice, the bytes must be the same; `twine check --strict`; one version everywhere (and in the tag); what belongs into
them is inside, and nothing else. With --install they are installed into an empty environment of each Python that is given,
and train outside of the checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"flodl-cli": "flodl_cli", "flodl": "flodl"}
SMOKE = """
import flodl as fl, torch
from torch import nn
train, test = fl.data.Digits("train"), fl.data.Digits("test")
torch.manual_seed(0)
model = fl.flow(nn.Linear(64, 64)).through(nn.GELU()).through(nn.Linear(64, 10)).build()
with fl.Trainer.setup(model, torch.optim.Adam(model.parameters(), lr=3e-3), train, batch_size=64, step="eager") as trainer:
    for _ in trainer.epochs(3):
        for x, y in trainer.batches():
            trainer.step(nn.functional.cross_entropy(trainer.model(x), y))
    found = trainer.evaluate(test, lambda m, b: {"accuracy": (m(b[0]).argmax(1) == b[1]).float().mean()})
assert found["accuracy"] > 0.85, found
assert "/site-packages/" in fl.__file__, fl.__file__
"""


def run(*command: str, **options: object) -> str:
    """The standard output; ends this program where the command fails."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"release-check: {' '.join(command)} ended with {done.returncode}\n{done.stdout}")
    return str(done.stdout)


def version(package: str) -> str:
    """As the package's own source says."""
    source = ROOT / "packages" / package / "src" / PACKAGES[package] / "__init__.py"
    found = re.search(r'^__version__ = "(.+)"$', source.read_text("utf-8"), re.MULTILINE)
    assert found, source
    return found[1]


def check_versions(tag: str | None) -> str:
    """One for all: both packages, the changelog, the citation, the tag."""
    one = version("flodl")
    places = {
        "flodl-cli": version("flodl-cli"),
        "CITATION.cff": (
            re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE) or [""] * 2
        )[1],
        "CHANGELOG.md": one if f"\n## {one} " in (ROOT / "CHANGELOG.md").read_text("utf-8") else "no such heading",
        **({"the tag": tag.removeprefix("v")} if tag else {}),
    }
    wrong = {place: found for place, found in places.items() if found != one}
    if wrong:
        sys.exit(f"release-check: flodl is {one}, but {', '.join(f'{p} says {f}' for p, f in wrong.items())}")
    return one


def build(into: Path) -> None:
    """Both packages, with the time of the newest commit as the time of every file."""
    when = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    env = {**os.environ, "SOURCE_DATE_EPOCH": when}
    for package in PACKAGES:
        run(
            sys.executable,
            "-m",
            "build",
            "--outdir",
            str(into),
            str(ROOT / "packages" / package),
            env=env,
            stderr=subprocess.STDOUT,
        )


def check_contents(dist: Path) -> None:
    """What each file must hold, and must not."""
    for file in sorted(dist.iterdir()):
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                names = wheel.namelist()
        else:
            with tarfile.open(file) as sdist:
                names = [name.partition("/")[2] for name in sdist.getnames()]
        flodl = file.name.startswith("flodl-")
        wanted = ["LICENSE", "py.typed", *(["monitor/static/index.html"] if flodl else ["schema/fdl.schema.json"])]
        missing = [part for part in wanted if not any(name.endswith(part) for name in names)]
        if missing:
            sys.exit(f"release-check: {file.name} has no {', '.join(missing)}")
        strange = [
            n for n in names if file.suffix == ".whl" and re.search(r"^\w+/(tests|benchmarks)/|node_modules/", n)
        ]
        if strange:
            sys.exit(f"release-check: {file.name} has {strange[0]}")


def check_installed(python: str, dist: Path, number: str) -> None:
    """In an empty environment, from outside of the checkout."""
    with tempfile.TemporaryDirectory(prefix="flodl-release-") as folder:
        run(python, "-m", "venv", f"{folder}/env")
        inside = f"{folder}/env/bin/"
        wheels = [str(wheel) for wheel in sorted(dist.glob("*.whl"))]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        run(f"{inside}pip", "install", "--quiet", "--disable-pip-version-check", *constraints, *wheels)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
        run(f"{inside}python", "-c", SMOKE, cwd=folder, env=env)
        said = run(f"{inside}fdl", "--version", cwd=folder, env=env)
        if number not in said:
            sys.exit(f"release-check: `fdl --version` says {said.strip()!r}, not {number}")
        print(f"{run(f'{inside}python', '--version').strip()}: installed, trained, `fdl` is {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="install and train in an empty environment, too")
    parser.add_argument("--python", nargs="*", default=[sys.executable], help="the Pythons to install into")
    parser.add_argument("--tag", help="the tag that is released, such as v0.1.0")
    given = parser.parse_args()
    number = check_versions(given.tag)
    dist = ROOT / "dist"
    with tempfile.TemporaryDirectory(prefix="flodl-release-") as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        for into in (first, second):
            build(into)
        for file in sorted(first.iterdir()):
            if file.read_bytes() != (second / file.name).read_bytes():
                sys.exit(f"release-check: {file.name}, built twice, is not the same")
        check_contents(first)
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(first, dist)
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    print(f"{number}: {', '.join(file.name for file in sorted(dist.iterdir()))}; the same bytes twice")
    for python in given.python if given.install else []:
        check_installed(python, dist, number)


if __name__ == "__main__":
    main()
