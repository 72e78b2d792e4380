"""Writes tutorial.ipynb from tutorial.md: Python and shell blocks become cells, all else text. It has no outputs."""

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def notebook(markdown: str) -> dict[str, Any]:
    """The notebook, in Jupyter's format."""
    pieces = re.split(r"^```(python|sh)\n(.*?)^```\n", markdown, flags=re.DOTALL | re.MULTILINE)
    cells = [text_cell(pieces[0])]
    for kind, code, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        cells += [code_cell(code if kind == "python" else f"!{code}"), text_cell(text)]
    kept = [cell | {"id": f"cell-{k}"} for k, cell in enumerate(cell for cell in cells if cell["source"])]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"cells": kept, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def text_cell(text: str) -> dict[str, Any]:
    """Markdown."""
    return {"cell_type": "markdown", "metadata": {}, "source": lines(text)}


def code_cell(code: str) -> dict[str, Any]:
    """Python, not run yet."""
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines(code)}


def lines(text: str) -> list[str]:
    """As Jupyter keeps them."""
    return text.strip().splitlines(keepends=True)


def written() -> str:
    """The file's content."""
    made = notebook((DOCS / "tutorial.md").read_text())
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (DOCS / "tutorial.ipynb").write_text(written())
