"""How Sphinx builds the site: ``make docs``."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

import fastapi  # noqa: F401  # autodoc loads modules as type checkers see them, which fastapi cannot be loaded as

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "CommonGround"
author = "The CommonGround authors"
copyright = "The CommonGround authors, Apache-2.0"
release = version = version_of("commonground")

extensions = ["generated", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
smartquotes_action = "qe"  # quotes and three dots; two dashes are an option's in docstrings
html_theme = "furo"
html_title = "CommonGround"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"

nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!commonground\.).*"),  # other libraries' names, and docstrings' short ones
    (r"py:.*", r"commonground\.\w+\..*"),  # what is not public, in signatures
    (r"py:mod", r".*"),
]
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
