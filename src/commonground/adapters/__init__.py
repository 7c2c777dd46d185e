"""Adapters in peft's format: folders of them read into a model, and written from a model's tensors.

What a run leaves is written by :func:`commonground.export.export_adapter`.
"""

from commonground.adapters.factors import Factors, peft_factors
from commonground.adapters.read import load_adapter
from commonground.adapters.write import copy_tokenizer, merged, write_adapter, write_merged

__all__ = ["Factors", "copy_tokenizer", "load_adapter", "merged", "peft_factors", "write_adapter", "write_merged"]
