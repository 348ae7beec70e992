"""Which wheels a libtorch consists of: found by pip, with the mirrors, proxies, credentials and constraints it is set up with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

from flodl_cli.libtorch.errors import HashError, ResolveError
from flodl_cli.libtorch.fetch import Forbidden, Transport, Untrusted, fetch, sha256_of, shown_url
from flodl_cli.libtorch.progress import Progress

__all__ = ["INDEX_VARIABLE", "Wheel", "as_pip_does", "get", "place_of", "resolve"]

INDEX_VARIABLE = "FLODL_TORCH_INDEX"  # where the indexes of cpu, cu126, ... lie, should pip's own not have the build
_TORCH_INDEX = "https://download.pytorch.org/whl"


class Wheel(NamedTuple):
    """A wheel that pip chose."""

    name: str
    version: str
    url: str
    sha256: str | None  # None where the index names none
    options: tuple[str, ...] = ()  # pip's, for the index that it is on, besides pip's own

    @property
    def file(self) -> str:
        return os.path.basename(urllib.parse.unquote(urllib.parse.urlsplit(self.url).path))


def resolve(version: str, tag: str) -> list[Wheel]:
    """The wheel of torch for `cpu` or a CUDA such as `cu128`, and those of the CUDA libraries that it needs.

    pip's own indexes are asked first, then PyTorch's for the tag; on macOS there is one build, without a tag.
    """
    mac = sys.platform == "darwin"
    wanted = f"torch=={version}" + ("" if mac else f"+{tag}")
    words = [wanted, "--no-deps"] if tag == "cpu" else [wanted]
    index: tuple[str, ...] = ()
    report, said = _report(words)
    if report is None and not mac:
        index = ("--extra-index-url", f"{(os.environ.get(INDEX_VARIABLE) or _TORCH_INDEX).rstrip('/')}/{tag}")
        report, said = _report([*words, *index])
    if report is None:
        raise ResolveError(f"pip finds no {wanted} for this Python and machine:\n{said}\n{_remedy(version)}")
    return _wheels(report, index)


def _remedy(version: str) -> str:
    return (
        f"A mirror: {INDEX_VARIABLE}=URL or pip's index-url. Another release than {version}: --version. "
        "The zip of PyTorch's server: --source zip. The torch of a Python environment: fdl libtorch link."
    )


def _report(words: Sequence[str]) -> tuple[Any, str]:
    """pip's installation report, or None and what pip said."""
    options = ("--dry-run", "--ignore-installed", "--only-binary=:all:", "--report=-", "--quiet", "--no-input")
    result = _pip("install", *options, *words)
    if result.returncode == 0:
        return json.loads(result.stdout), ""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    retries = [line for line in lines if line.startswith("WARNING: Retrying")]
    errors = list(dropwhile(lambda line: not line.startswith("ERROR: "), lines)) or lines[-6:]
    said = "\n".join(f"  {line}" for line in (*retries[:1], *errors))
    if "DO NOT MATCH THE HASHES" in said:
        raise HashError(f"pip got something else than the index describes:\n{said}")
    return None, said


def _pip(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs the pip of this Python; a program of its own, because it has no interface to import."""
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_REQUIRE_VIRTUALENV": "0", "PYTHONWARNINGS": ""}
    command = [sys.executable, "-m", "pip", *words]
    result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0 and "No module named pip" in result.stderr:
        raise ResolveError(f"{sys.executable} has no pip: {sys.executable} -m ensurepip, or --source zip")
    return result


def _wheels(report: Any, index: tuple[str, ...]) -> list[Wheel]:
    """Those of the report that hold C++ libraries, torch first."""
    found = []
    for item in report["install"]:
        name, version = item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"]
        if name == "torch" or name.startswith("nvidia-"):
            sha256 = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
            found.append(Wheel(name, version, item["download_info"]["url"], sha256, index))
    return sorted(found, key=lambda w: (w.name != "torch", w.name))


def as_pip_does(transport: Transport) -> Transport:
    """The same with the proxy and the certificates that pip is told to use."""
    listing = _pip("config", "list").stdout
    values: dict[str, str] = {}
    for line in listing.splitlines():  # global, then the user's, then the environment's: the last one counts
        key, _, value = line.partition("=")
        values[key.rpartition(".")[2]] = value.strip("'\"")
    return transport._replace(cert=values.get("cert"), proxy=values.get("proxy"))


def get(wheel: Wheel, folder: Path, progress: Progress, transport: Transport) -> tuple[Path, str]:
    """The wheel as a file, and its SHA-256. One that lies on this machine is read where it is."""
    parts = urllib.parse.urlsplit(wheel.url)
    if parts.scheme == "file":
        path = Path(urllib.request.url2pathname(parts.path))
        found = sha256_of(path)
        if wheel.sha256 is not None and found != wheel.sha256:
            raise HashError(f"{path} has the SHA-256 {found}, the index says {wheel.sha256}")
        return path, found
    if wheel.sha256 is None:
        progress.say(f"the index names no SHA-256 for {wheel.file}: it is taken as it comes")
    try:
        return fetch(wheel.url, folder, wheel.sha256, progress, transport)
    except Forbidden:
        return _by_pip(wheel, folder, progress, "needs credentials")
    except Untrusted:
        return _by_pip(wheel, folder, progress, "has a certificate that only pip's settings may trust")


def _by_pip(wheel: Wheel, folder: Path, progress: Progress, why: str) -> tuple[Path, str]:
    """pip knows credentials that are in no report (of index URLs, of .netrc, of a keyring), and whom it is told to trust."""
    progress.say(f"{shown_url(wheel.url)} {why}: pip downloads it")
    what = ("--no-deps", "--only-binary=:all:", f"{wheel.name}=={wheel.version}", *wheel.options)
    result = _pip("download", "--quiet", "--no-input", "--dest", str(folder), *what)
    path = folder / wheel.file
    if result.returncode != 0 or not path.is_file():
        raise Forbidden(f"{shown_url(wheel.url)}: pip may not download it either:\n{result.stderr.strip()[-2000:]}")
    found = sha256_of(path)
    if wheel.sha256 is not None and found != wheel.sha256:
        raise HashError(f"{wheel.file} has the SHA-256 {found}, the index says {wheel.sha256}")
    return path, found


def place_of(member: str) -> str | None:
    """Where a member of a wheel belongs: the C++ parts of torch, and NVIDIA's libraries beside it, where its RUNPATH looks."""
    folder, *inner = member.split("/")
    if folder == "torch" and (inner[0] in ("lib", "include", "share") or inner == ["version.py"]):
        return member
    if folder == "nvidia" and "bin" not in inner and not inner[-1].endswith((".py", ".pyc")):
        return member
    return member if folder == "torch.libs" else None
