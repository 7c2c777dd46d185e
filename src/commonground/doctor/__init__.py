"""What is here and what is missing: versions, extras, the machine, the data folder, the confinement of programs."""

from commonground.doctor.findings import Findings, examine
from commonground.doctor.packages import FEATURES

__all__ = ["FEATURES", "Findings", "examine"]
