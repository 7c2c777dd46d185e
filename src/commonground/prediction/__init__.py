"""What a finished run's models answer: rows of tables, texts, pictures, and the samples that it was tested on."""

from commonground.prediction.rows import predict_rows
from commonground.prediction.tested import predict_tests

__all__ = ["predict_rows", "predict_tests"]
