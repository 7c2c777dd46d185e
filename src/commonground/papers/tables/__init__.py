"""A paper's table of accuracies, filled cell by cell: what is measured is kept, what is missing is trained.

- :mod:`.table`: what a printed table is: rows (methods), columns (partitions), their settings;
- :mod:`.variants`: one setting changed at a time, to find what moves a cell;
- :mod:`.cells`: measured cells and their files;
- :mod:`.readings`: which of a run's accuracies a cell reports;
- :mod:`.fill`: trains what is missing, in a given order and time;
- :mod:`.judge`: cells beside the printed values, and claims judged over seeds;
- :mod:`.status`: what is there, what is missing, and for how long that would take;
- :mod:`.differences`: the effect of each variant;
- :mod:`.queue`: the order in which the papers' tables are filled.
"""
