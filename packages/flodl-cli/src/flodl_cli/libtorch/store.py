"""Where the libtorch variants are: `precompiled/cu128`, `builds/sm61-sm120`, `linked/cpu`, and which one is active.

Whatever changes the store holds its lock and moves finished folders into place, so that a reader, who holds none, never
sees a half of anything.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from flodl_cli.errors import CliError, nearest
from flodl_cli.libtorch.arch import ARCH_FILE, Arch, read, render
from flodl_cli.project import find_root

__all__ = ["KINDS", "Installed", "Store", "active", "home", "installed"]

_REMEDY = "is missing or cannot be read; `fdl libtorch remove {}` takes the folder away"
KINDS = ("precompiled", "builds", "linked")
_ACTIVE, _LOCK, _STAGING, _PARTS = ".active", ".lock", ".staging", ".parts"


class Installed(NamedTuple):
    """One variant of a store."""

    name: str  # "precompiled/cpu"
    folder: Path
    arch: Arch

    @property
    def prefix(self) -> Path:
        """The folder with lib, include and share: what LIBTORCH and CMAKE_PREFIX_PATH name."""
        return self.folder / self.arch.prefix

    @property
    def lib(self) -> Path:
        return self.prefix / "lib"

    @property
    def gone(self) -> bool:
        """True when its files were removed by someone else, such as the environment that a link names."""
        return not self.lib.is_dir()


def home() -> Path:
    """The store for the current folder: ./libtorch of a project that has one, else `$FLODL_HOME/libtorch` (~/.flodl/libtorch)."""
    try:
        project = find_root(Path.cwd(), os.environ)
    except FileNotFoundError:  # the current folder was removed
        project = None
    if project is not None and any((project / "libtorch" / kind).is_dir() for kind in KINDS):
        return project / "libtorch"
    named = os.environ.get("FLODL_HOME")
    if named:
        return Path(named).absolute() / "libtorch"
    try:
        return Path.home() / ".flodl" / "libtorch"
    except RuntimeError:
        raise CliError("there is no home folder: FLODL_HOME=/folder (or --path) says where libtorch is kept") from None


def active() -> Installed | None:
    """The active libtorch, or None."""
    return Store(home()).active()


def installed() -> list[Installed]:
    """All that is installed, by name."""
    return Store(home()).installed()


class Store:
    """The variants below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def installed(self) -> list[Installed]:
        found = []
        for kind in KINDS:
            folder = self.root / kind
            for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
                arch = read(folder / name)
                if arch is not None and not name.startswith("."):
                    found.append(Installed(f"{kind}/{name}", folder / name, arch))
        return found

    def damaged(self) -> list[str]:
        """The names of folders that were variants: their metadata is gone or cannot be read."""
        names = []
        for kind in KINDS:
            folder = self.root / kind
            for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
                if not name.startswith(".") and (folder / name).is_dir() and read(folder / name) is None:
                    names.append(f"{kind}/{name}")
        return names

    def active(self) -> Installed | None:
        try:
            name = (self.root / _ACTIVE).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return next((i for i in self.installed() if i.name == name), None)

    def find(self, name: str) -> Installed:
        """The variant of a name; `cpu` stands for `precompiled/cpu` where only one variant is called so."""
        every = self.installed()
        matching = [i for i in every if i.name == name] or [i for i in every if i.name.partition("/")[2] == name]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise CliError(f"'{name}' is more than one: {', '.join(i.name for i in matching)}")
        for broken in self.damaged():
            if name in (broken, broken.partition("/")[2]):
                raise CliError(f"{broken} is damaged: its {ARCH_FILE} {_REMEDY.format(broken)}")
        if not every:
            raise CliError(f"no libtorch '{name}': none is installed in {self.root}; `fdl libtorch download` gets one")
        names = [i.name if "/" in name else i.name.partition("/")[2] for i in every]
        raise CliError(f"no libtorch '{name}' in {self.root}.{nearest(name, names)}")

    def activate(self, variant: Installed) -> None:
        """Written beside and moved over, so that a reader finds the old name or the new one."""
        self._write(self.root / _ACTIVE, variant.name + "\n")

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the lock; the second of two calls says so and waits. What a killed call left half done is removed."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = open(self.root / _LOCK, "w")  # noqa: SIM115 - kept open: the kernel frees it when this process ends
        except OSError as error:
            raise CliError(
                f"cannot write in {self.root}: {error.strerror}; FLODL_HOME or --path names another folder"
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"fdl: another fdl is changing {self.root}: waiting for it", file=sys.stderr, flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._sweep()
            try:
                yield
            finally:
                self._sweep()

    def _sweep(self) -> None:
        parts = self.root / _PARTS
        if parts.is_dir() and not any(parts.iterdir()):
            parts.rmdir()
        if os.path.lexists(self.root / _STAGING):
            shutil.rmtree(self.root / _STAGING)

    def staging(self) -> Path:
        """A new folder for what is being installed; it is removed unless `install` moves it."""
        (self.root / _STAGING).mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(dir=self.root / _STAGING))

    def parts(self) -> Path:
        """Where unfinished downloads wait to be resumed."""
        folder = self.root / _PARTS
        folder.mkdir(exist_ok=True)
        return folder

    def drop_parts(self) -> None:
        shutil.rmtree(self.root / _PARTS, ignore_errors=True)

    def name_for(self, kind: str, base: str, arch: Arch) -> tuple[str, bool]:
        """The name that a variant gets, and whether it is there already: another version does not replace one."""
        for name in self._names(base, arch):
            found = read(self.root / kind / name)
            if found is None:
                return f"{kind}/{name}", False
            if found == arch:
                return f"{kind}/{name}", True
        raise AssertionError("names never end")

    def _names(self, base: str, arch: Arch) -> Iterator[str]:
        yield base
        yield f"{base}-{arch.release}"
        number = 2
        while True:
            yield f"{base}-{arch.release}-{number}"
            number += 1

    def install(self, staged: Path, name: str, arch: Arch) -> Installed:
        """Gives a staged folder its metadata and its name, in this order."""
        self.check_free(name)
        (staged / ARCH_FILE).write_text(render(arch), encoding="utf-8")
        staged.chmod(0o755)  # mkdtemp made it private
        target = self.root / name
        target.parent.mkdir(exist_ok=True)
        os.rename(staged, target)
        return Installed(name, target, arch)

    def check_free(self, name: str) -> None:
        """Raise `CliError` where something that is no variant has the name: of no use, but not to be deleted unasked."""
        target = self.root / name
        if os.path.lexists(target):
            raise CliError(f"{target} is in the way: its {ARCH_FILE} {_REMEDY.format(name)}")

    def remove_damaged(self, name: str) -> None:
        """Takes a folder out whose metadata cannot be read."""
        os.rename(self.root / name, self.staging() / "removed")

    def remove(self, variant: Installed) -> None:
        """Takes it out of the list first; a kill in the middle leaves only what the next call sweeps away."""
        if (current := self.active()) is not None and current.name == variant.name:
            (self.root / _ACTIVE).unlink()
        os.rename(variant.folder, self.staging() / "removed")

    def _write(self, path: Path, text: str) -> None:
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
