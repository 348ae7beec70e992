"""The first two tutorials as notebooks: `./fdl notebooks` writes examples/notebooks from docs/site/tutorials."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("01-first-run", "02-flow")
_LINK = re.compile(r"\]\((?:\.\./)?((?:tutorials/|how/|migrate/)?[\w-]+)\.md\)")


def notebook(page: str) -> nbformat.NotebookNode:
    """The page's text and Python as cells, without outputs; links lead to the page's folder."""
    text = (ROOT / "docs" / "site" / "tutorials" / f"{page}.md").read_text("utf-8")
    text = _LINK.sub(lambda link: f"](../../docs/site/{_place(link[1])}.md)", text)
    cells = []
    for number, part in enumerate(re.split(r"^```python\n(.*?)^```\n", text, flags=re.MULTILINE | re.DOTALL)):
        if part.strip():
            cells.append(new_code_cell(part.strip()) if number % 2 else new_markdown_cell(part.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"{page}-{number}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=kernel)


def _place(link: str) -> str:
    return link if "/" in link else f"tutorials/{link}"


def main() -> None:
    folder = ROOT / "examples" / "notebooks"
    folder.mkdir(exist_ok=True)
    for page in PAGES:
        nbformat.write(notebook(page), folder / f"{page}.ipynb")


if __name__ == "__main__":
    main()
