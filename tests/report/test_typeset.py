"""Tables to take away: their numbers are the files' numbers, and no name can break LaTeX or Markdown."""

from __future__ import annotations

import doctest
import html
import json
import re

import pytest

from commonground.report import typeset, write_report
from commonground.report.result_tables import cells_to_typeset
from commonground.report.typeset import TypesetTable, latex_text, markdown_text

HOSTILE = r"50% of a_b & c#1 $x^2$ {y} \input{z} ~|`<b>*"


def cells_of_latex(line: str) -> list[str]:
    """The cells of a row, cut at the ampersands that are none of a text."""
    assert line.endswith(r" \\")
    return [part.strip() for part in re.split(r"(?<!\\)&", line.removesuffix(r" \\"))]


def test_what_latex_would_act_on_is_escaped() -> None:
    assert latex_text("a_b & 50 %") == r"a\_b \& 50 \%"
    assert latex_text(r"\input{x}") == r"\textbackslash{}input\{x\}"
    assert latex_text("-1.5 ± .2 [-3, +4], 1-2, 2.1·10⁻⁷, R²") == (
        r"$-$1.5 $\pm$ .2 [$-$3, $+$4], 1-2, 2.1$\cdot$10$^{-7}$, R$^{2}$"
    )
    assert latex_text("[a]") == "{}[a]"  # after the end of a row it would be a length
    assert "\n" not in latex_text("two\nlines")
    left = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textbar|textasciigrave)\{\}|\\[&%$#_{}]",
        "",
        latex_text(HOSTILE),
    )
    assert not re.search(r"[\\{}&%#_^~]", left)
    assert re.sub(r"\$[<>]\$", "", left).count("$") == 0


def test_examples_of_the_docstrings() -> None:
    assert doctest.testmod(typeset).failed == 0


def test_what_markdown_would_act_on_is_escaped() -> None:
    shown = markdown_text(HOSTILE)
    assert not re.search(r"(?<!\\)[|`*_$\[{]", shown)
    assert "<" not in shown
    assert markdown_text("two\nlines") == r"two\\nlines"


def test_a_table_has_a_cell_for_every_column() -> None:
    table = TypesetTable(HOSTILE, ["method", HOSTILE], [[HOSTILE, "-1"], ["[b]", "2 ± 1"]], frozenset({(1, 1)}))
    latex, lines = table.latex(), table.markdown().splitlines()
    rows = [line for line in latex.splitlines() if line.endswith(r" \\")]
    assert [len(cells_of_latex(row)) for row in rows] == [2, 2, 2]
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 2
    assert r"\begin{tabular}{lr}" in latex
    assert r"\textbf{2 $\pm$ 1}" in rows[2]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines[:4]] == [3, 3, 3, 3]
    assert lines[1] == "| --- | ---: |"
    assert lines[3] == r"| \[b\] | **2 ± 1** |"


def test_a_comparison_leaves_its_table(comparison_folder) -> None:
    page = write_report(comparison_folder).read_text("utf-8")
    entry = json.loads((comparison_folder / "comparison.json").read_text())
    latex = (comparison_folder / "table.tex").read_text("utf-8")
    markdown = (comparison_folder / "table.md").read_text("utf-8")
    rows = [cells_of_latex(line) for line in latex.splitlines() if line.endswith(r" \\")]
    for row, method in zip(rows[1:], entry["methods"], strict=True):
        own = method["personal_accuracy"]
        assert row[0] == method["title"]
        assert re.sub(r"\\textbf\{(.*)\}", r"\1", row[1]) == rf"{100 * own['mean']:.1f} $\pm$ {100 * own['std']:.1f}"
    best = max(entry["methods"], key=lambda method: method["personal_accuracy"]["mean"])["title"]
    assert [row[0] for row in rows if row[1].startswith(r"\textbf")] == [best]
    other = next(method["differences"] for method in entry["methods"] if method["differences"])
    assert f"[{100 * other['low']:+.1f}, {100 * other['high']:+.1f}]".replace("-", "−") in markdown.replace("\\", "")
    for text in (latex, markdown):
        assert html.escape(text) in page


def test_other_metrics_are_a_table_of_their_own(comparison_folder) -> None:
    """Beside the first they made one of twelve columns, wider than any page."""
    page = write_report(comparison_folder).read_text("utf-8")
    texts = [(comparison_folder / f"{name}.tex").read_text("utf-8") for name in ("table", "metrics")]
    heads = [cells_of_latex(text.split("\\toprule\n")[1].splitlines()[0]) for text in texts]
    assert len(heads[0]) <= 6
    assert not {"Log loss", "AUC"} & {*heads[0]}
    assert {"Log loss", "AUC"} <= {*heads[1]}
    assert html.escape((comparison_folder / "metrics.md").read_text("utf-8")) in page


def test_a_paper_s_table_has_a_row_for_each_method(reproduction_folder) -> None:
    cells = [
        {"column": column, "method": method, "paper": paper, "measured": 70 + i, "low": 69.25, "high": 72, "seeds": 2}
        for i, (column, method, paper) in enumerate(
            [("A (10, 2)", "FedRep", 81.0), ("B_2", "FedRep", 80.5), ("A (10, 2)", "FedAvg", None)]
        )
    ]
    (reproduction_folder / "cells.json").write_text(json.dumps(cells))
    write_report(reproduction_folder)
    rows = [
        cells_of_latex(line)
        for line in (reproduction_folder / "table.tex").read_text("utf-8").splitlines()
        if line.endswith(r" \\")
    ]
    assert rows == [
        ["Method", "A (10, 2): paper", r"here [95 \%]", r"B\_2: paper", r"here [95 \%]"],
        ["FedRep", "81.0", "70.0 [69.2, 72.0]", "80.5", "71.0 [69.2, 72.0]"],
        ["FedAvg", "--", "72.0 [69.2, 72.0]", "--", "--"],
    ]


@pytest.mark.parametrize(
    "cells", [[{"a": 1.5, "b": "x"}], [{"method": "m", "column": "c", "paper": 1, "measured": 2}] * 2]
)
def test_cells_of_another_form_are_a_row_each(cells) -> None:
    table = cells_to_typeset(cells, "t")
    assert len(table.rows) == len(cells)
    assert list(table.heads) == list(cells[0])
