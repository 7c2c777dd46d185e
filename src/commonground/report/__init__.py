"""The page a run, a comparison or a reproduction leaves behind: ``report.html``, and every figure as PNG and CSV.

One file that needs nothing else: it opens from a disk, a mail or a phone, without a network (a content security policy
in the page forbids every request). Its tables carry each number at full precision (``data-value``) under the name it
has in the folder's file (``data-key``), and every table and figure says which file it was read from. The same figures
lie in ``figures/`` as PNG and, with the plotted values, as CSV.

Why matplotlib: each figure is drawn once by a library everybody keeps installed and comes out both as a PNG, without a
browser, and as SVG of about 10 kB for the page; the colours become CSS variables (light and dark), and some lines of
JavaScript show the exact values under the pointer. Measured on two cores, it costs 0.35 s to import and 0.05 s a figure
(SVG and PNG together). The libraries that bring their own hover put their script into every page, 4.8 MB (Plotly),
1.3 MB (Bokeh) or 0.9 MB and 1.3 s (Vega-Lite through vl-convert, an 84 MB install), and the first two need a browser to
write a PNG. A comparison of 10 methods over 5 seeds leaves 51 pages: about 4 MB here, 240 MB with Plotly.

``write_report`` recognises the kind of folder; the other three are for those who know it.
"""

from commonground.report.comparison import write_comparison_report
from commonground.report.reproduction import write_reproduction_report
from commonground.report.run import write_run_report
from commonground.report.write import write_report

__all__ = ["write_comparison_report", "write_report", "write_reproduction_report", "write_run_report"]
