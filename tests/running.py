"""Run notebooks in this process and record what their cells give: ``python -m tests.running NOTEBOOK...``."""

import ast
import contextlib
import io
import sys
from typing import Any

import nbformat


def run_cells(notebook: nbformat.NotebookNode) -> list[list[nbformat.NotebookNode]]:
    """Run the code of a notebook from top to bottom, in one namespace, and record what its cells give."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, start=1):
        cell.outputs, cell.execution_count = _outputs(cell.source, names, number), number
    return [cell.outputs for cell in cells]


def _outputs(source: str, names: dict[str, Any], number: int) -> list[nbformat.NotebookNode]:
    body, last = ast.parse(source), None
    if body.body and isinstance(body.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(body.body.pop().value)  # type: ignore[attr-defined]
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, f"cell {number}", "exec"), names)  # noqa: S102 - our own notebooks
        if last is not None:
            value = eval(compile(last, f"cell {number}", "eval"), names)  # noqa: S307 - likewise
    outputs = []
    if printed.getvalue():
        outputs.append(nbformat.v4.new_output("stream", name="stdout", text=printed.getvalue()))
    if value is not None:
        data = {"text/plain": repr(value)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        outputs.append(nbformat.v4.new_output("execute_result", data=data, execution_count=number))
    return outputs


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        read = nbformat.read(argument, as_version=4)
        run_cells(read)
        nbformat.validate(read)
        nbformat.write(read, argument)
