"""Every Python block of the pages runs, those of a page one after the other, in an empty folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

os.environ.setdefault("OMP_NUM_THREADS", "1")
if (
    "FLODL_CACHE" not in os.environ
):  # the pages alone: what they learn about steps is no business of the user's own runs
    _cache = tempfile.TemporaryDirectory(prefix="flodl-docs-cache-", ignore_cleanup_errors=True)
    os.environ["FLODL_CACHE"] = _cache.name
for name in ("FDL_COMMAND", "FDL_CWD"):  # the tests are a task of fdl; what a page starts is not
    os.environ.pop(name, None)


def setup(namespace: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    folder = tempfile.TemporaryDirectory(prefix="flodl-docs-", ignore_cleanup_errors=True)
    namespace["_left"] = (Path.cwd(), folder)
    os.chdir(folder.name)


def teardown(namespace: dict[str, Any]) -> None:
    before, folder = namespace["_left"]
    os.chdir(before)
    folder.cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["*.md"], setup=setup, teardown=teardown
).pytest()
