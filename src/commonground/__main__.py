"""``python -m commonground`` is the command."""

import sys

from commonground.cli import main

sys.exit(main())
