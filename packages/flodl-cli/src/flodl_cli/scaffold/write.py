"""Writing new files: all of them or none, and never over what is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flodl_cli.errors import CliError
from flodl_cli.machine.asking import ended_by_sigterm

__all__ = ["create", "replace_text"]


def create(folder: Path, files: Mapping[str, str]) -> None:
    """Makes `folder` with these files. They are written beside it and moved there whole; an empty folder is filled.

    Raises CliError: something is in the way, or cannot be written. Then nothing has changed.
    """
    folder = folder.absolute()
    _must_be_free(folder)
    staged = None
    with ended_by_sigterm():
        try:
            staged = Path(tempfile.mkdtemp(prefix=".fdl-", dir=folder.parent))
            for name, text in files.items():
                path = staged / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            if folder.exists():
                _fill(folder, staged)
            else:
                staged.chmod(0o777 & ~_umask())  # mkdtemp made it private
                os.rename(staged, folder)
        except OSError as error:
            raise CliError(f"cannot make {folder}: {error.strerror}") from None
        finally:
            if staged is not None and staged.exists():
                shutil.rmtree(staged)


def replace_text(path: Path, text: str) -> None:
    """A file with a new text and its old mode, in one move; behind a link, the file that it leads to."""
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "x", encoding="utf-8", newline="") as file:
            file.write(text)
        shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _must_be_free(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise CliError(f"{folder} is there already, and is no folder")
    try:
        held = sorted(p.name for p in folder.iterdir() if p.name != ".git")
    except OSError as error:
        raise CliError(f"cannot look into {folder}: {error.strerror}") from None
    if held:
        raise CliError(f"{folder} is there already, with {', '.join(held[:3])}{', ...' if len(held) > 3 else ''} in it")


def _fill(folder: Path, staged: Path) -> None:
    """Into an empty folder, which may be somebody's current one; a stop in the middle takes all back."""
    moved: list[Path] = []
    try:
        for path in sorted(staged.iterdir()):
            target = folder / path.name
            if os.path.lexists(target):
                raise FileExistsError(17, os.strerror(17), str(target))
            moved.append(target)
            os.rename(path, target)
    except BaseException:
        for target in moved:
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
