"""The processor and the instructions that PyTorch uses of it: on both hang the last bits of results."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

__all__ = ["has_bf16", "processor", "processor_name"]

CPU_INFO = Path("/proc/cpuinfo")


@cache
def processor_name() -> str:
    """What the processor calls itself; where the system does not say, its architecture."""
    try:
        named = re.search(r"^model name[ \t]*:[ \t]*(\S.*)$", CPU_INFO.read_text("utf-8", "replace"), re.MULTILINE)
    except OSError:  # another system than Linux
        named = None
    return " ".join(named[1].split()) if named else platform.processor() or platform.machine() or "unnamed processor"


def has_bf16() -> bool:
    """Whether PyTorch computes products of bfloat16 by instructions of this processor; True where it cannot tell."""
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a build without oneDNN
        return True


def processor() -> str:
    """Name and instructions, as in ``AMD EPYC 9354 (AVX512)``."""
    import torch

    return f"{processor_name()} ({torch.backends.cpu.get_cpu_capability()})"
