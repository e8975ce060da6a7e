"""The notebook over the demonstration run: its cells run in order and print what it shows.

``python -m tests.docs.test_notebook`` writes their outputs into it again.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "demo.ipynb"


def executed(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with the outputs of running them in one namespace; they only print."""
    namespace: dict[str, Any] = {}
    made, count = [], 0
    for cell in cells:
        if cell["cell_type"] == "code":
            count += 1
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
            text = printed.getvalue().splitlines(keepends=True)
            output = {"name": "stdout", "output_type": "stream", "text": text}
            cell = cell | {"execution_count": count, "outputs": [output]}
        made.append(cell)
    return made


def test_the_notebook_shows_what_its_cells_print() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert executed(notebook["cells"]) == notebook["cells"]
    outputs = [cell["outputs"][0]["text"] for cell in notebook["cells"] if "outputs" in cell]
    assert len(outputs) >= 6
    assert all(outputs)


if __name__ == "__main__":
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    notebook["cells"] = executed(notebook["cells"])
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
