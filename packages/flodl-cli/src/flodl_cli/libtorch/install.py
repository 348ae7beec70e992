"""From an answer of pip, or a URL, to a variant in the store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from flodl_cli.errors import CliError
from flodl_cli.libtorch import official, wheel
from flodl_cli.libtorch.arch import Arch
from flodl_cli.libtorch.binaries import missing_libraries
from flodl_cli.libtorch.errors import ArchiveError, HashError, LibtorchError, MachineError, ResolveError
from flodl_cli.libtorch.fetch import Transport, fetch
from flodl_cli.libtorch.metadata import inspect
from flodl_cli.libtorch.progress import progress
from flodl_cli.libtorch.store import Installed, Store
from flodl_cli.libtorch.unpack import unpack

__all__ = ["Wanted", "already", "damage", "download", "planned"]


class Wanted(NamedTuple):
    """What the user asked for."""

    version: str  # "2.13.0"
    tag: str  # "cpu", "cu128"
    source: str = "wheel"
    sha256: str | None = None  # of the zip
    base_url: str | None = None


class Download(NamedTuple):
    """One file that makes part of a variant."""

    name: str
    url: str
    sha256: str | None


def planned(wanted: Wanted) -> list[Download]:
    """The files that a download gets."""
    if wanted.source == "wheel":
        return [Download(w.file, w.url, w.sha256) for w in wheel.resolve(wanted.version, wanted.tag)]
    url = official.zip_url(wanted.version, wanted.tag, wanted.base_url)
    return [Download(url.rpartition("/")[2].replace("%2B", "+"), url, wanted.sha256)]


def already(store: Store, wanted: Wanted) -> Installed | None:
    """What was installed before and is just that."""
    want = (wanted.version, wanted.tag, wanted.source)
    for found in store.installed():
        same = (found.arch.release, found.arch.tag, found.arch.source) == want and not found.gone
        if same and wanted.sha256 in (None, found.arch.sha256):
            return found
    return None


def damage(variant: Installed) -> str:
    """What is wrong with the files of a variant; empty where nothing is."""
    try:
        missing = [m.name for m in missing_libraries(variant.lib) if m.name.startswith(("libtorch", "libc10"))]
    except CliError as error:
        return str(error)
    return f"{', '.join(missing)} missing from {variant.lib}" if missing else ""


def download(
    store: Store, wanted: Wanted, transport: Transport, *, activate: bool = True, quiet: bool = False
) -> tuple[Installed, bool]:
    """Downloads, checks, installs and activates; returns the variant and whether it was there already."""
    with store.changing():
        found = already(store, wanted)
        if found and (problem := damage(found)):
            raise LibtorchError(
                f"{found.name} is damaged: {problem}; `fdl libtorch remove {found.name}`, then download again"
            )
        variant = found or _installed(store, wanted, transport, quiet)
        if activate:
            store.activate(variant)
    return variant, found is not None


def _installed(store: Store, wanted: Wanted, transport: Transport, quiet: bool) -> Installed:
    staged = store.staging()
    try:
        sha256 = _fill(staged, store.parts(), wanted, transport, quiet)
        prefix = staged / "torch"
        arch = inspect(prefix, wanted.source, sha256)
        _check(arch, wanted)
    except (ArchiveError, HashError, MachineError, ResolveError):
        store.drop_parts()  # whole, but not what was wanted: nothing of it is worth resuming
        raise
    (prefix / "build-version").write_text(arch.version + "\n", encoding="utf-8")  # tch compares it with its own
    for old in store.installed():
        if old.gone and old.arch == arch:
            store.remove(old)
    name, _ = store.name_for("precompiled", wanted.tag, arch)
    variant = store.install(staged, name, arch)
    store.drop_parts()
    return variant


def _fill(staged: Path, parts: Path, wanted: Wanted, transport: Transport, quiet: bool) -> str:
    """Downloads and unpacks all files of a variant; the SHA-256 of the main one."""
    if wanted.source == "zip":
        (item,) = planned(wanted)
        with progress(item.name, quiet=quiet) as shown:
            path, sha256 = fetch(item.url, parts, item.sha256, shown, transport)
            unpack(path, staged, official.place_of, shown)
        return sha256
    digests = []
    if not quiet:
        print(f"fdl: asking pip for torch {wanted.version} for {wanted.tag}", file=sys.stderr, flush=True)
    wheels = wheel.resolve(wanted.version, wanted.tag)
    transport = wheel.as_pip_does(transport)
    for one in wheels:
        with progress(one.file, quiet=quiet) as shown:
            path, digest = wheel.get(one, parts, shown, transport)
            unpack(path, staged, wheel.place_of, shown)
        digests.append(digest)
    return digests[0]  # torch is the first


def _check(arch: Arch, wanted: Wanted) -> None:
    if arch.release != wanted.version or arch.tag != wanted.tag:
        raise ResolveError(
            f"asked for torch {wanted.version} for {wanted.tag}, got {arch.version} for {arch.tag}: nothing was installed"
        )
