"""A table of texts for a paper or a repository: LaTeX (booktabs) and Markdown, with everything escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from commonground.quoting import escaped

__all__ = ["TypesetTable", "latex_text", "markdown_text"]

_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": r"\textbar{}",
    '"': "''", "`": r"\textasciigrave{}",
    "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "·": r"$\cdot$", "–": "--", "…": r"\ldots{}", "≤": r"$\leq$",
    "≥": r"$\geq$", "√": r"$\surd$", "∞": r"$\infty$", "✓": r"$\surd$", "✗": r"$\times$", "→": r"$\to$",
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "Δ": r"$\Delta$", "δ": r"$\delta$", "ε": r"$\varepsilon$",
    "η": r"$\eta$", "κ": r"$\kappa$", "λ": r"$\lambda$", "μ": r"$\mu$", "π": r"$\pi$", "ρ": r"$\rho$",
    "σ": r"$\sigma$", "τ": r"$\tau$", "φ": r"$\varphi$", "ω": r"$\omega$",
}  # fmt: skip
# A sign is that of a number, not the hyphen of a word or of a range.
_PIECES = re.compile(r"(?P<raised>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)|(?P<sign>(?<![\w.)\]-])[+-](?=\.?\d))|.")


def latex_text(text: str) -> str:
    r"""A text that LaTeX sets as it is read here: special characters escaped, signs and Greek letters in mathematics.

    Letters of other scripts stay as they are, which pdfLaTeX reads as far as the document's fonts have them, and
    XeLaTeX and LuaLaTeX read.

    >>> latex_text("50 % of a_b, -1.5 ± 0.1")
    '50 \\% of a\\_b, $-$1.5 $\\pm$ 0.1'
    """

    def written(found: re.Match[str]) -> str:
        if found["raised"]:
            return "$^{" + found[0].translate(_RAISED) + "}$"
        return f"${found[0]}$" if found["sign"] else _LATEX.get(found[0], found[0])

    whole = _PIECES.sub(written, escaped(text, 1000))
    return f"{{}}{whole}" if whole[:1] in ("[", "*") else whole  # after \\ they would be an argument of it


def markdown_text(text: str) -> str:
    r"""A text that Markdown shows as it is read here, in one cell of a table.

    >>> markdown_text("a|b *c*")
    'a\\|b \\*c\\*'
    """
    shown = re.sub(r"([\\`*_{}\[\]|~$])", r"\\\1", escaped(text, 1000))
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True)
class TypesetTable:
    """A table whose cells are texts.

    Attributes:
        caption: a sentence; what the numbers are.
        heads: the columns' headings; all but the first ``words`` are numbers and set flush right.
        rows: a text for each column.
        bold: cells to stress, as (row, column).
        label: by which a LaTeX document refers to it.
        words: how many of the first columns are no numbers.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    label: str = "tab:results"
    words: int = 1

    def latex(self) -> str:
        r"""A ``table`` with a ``tabular`` of the package booktabs; it needs ``\usepackage{booktabs}``."""

        def cell(row: int, column: int, text: str) -> str:
            shown = latex_text(text)
            return rf"\textbf{{{shown}}}" if (row, column) in self.bold else shown

        def line(number: int, texts: Sequence[str]) -> str:
            return "  " + " & ".join(cell(number, place, text) for place, text in enumerate(texts)) + r" \\"

        columns = "l" * self.words + "r" * (len(self.heads) - self.words)
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{latex_text(self.caption)}}}",
                rf"  \label{{{self.label}}}",
                rf"  \begin{{tabular}}{{{columns}}}",
                r"  \toprule",
                line(-1, self.heads),
                r"  \midrule",
                *(line(number, texts) for number, texts in enumerate(self.rows)),
                r"  \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def markdown(self) -> str:
        """A table as GitHub and Pandoc read it, the caption below."""

        def line(number: int, texts: Sequence[str]) -> str:
            shown = map(markdown_text, texts)
            marked = (f"**{text}**" if (number, place) in self.bold else text for place, text in enumerate(shown))
            return f"| {' | '.join(marked)} |"

        rule = ["---"] * self.words + ["---:"] * (len(self.heads) - self.words)
        lines = [
            line(-1, self.heads),
            f"| {' | '.join(rule)} |",
            *(line(n, texts) for n, texts in enumerate(self.rows)),
        ]
        return "\n".join([*lines, "", markdown_text(self.caption), ""])
