"""Metrics: a base class whose numbers are joined over ranks, and the reference trainer's four.

Any metric with `update`, `compute` and `reset` will do beside these; torchmetrics has far more of them.
"""

from .accuracy import Accuracy, TransformersAccuracy
from .classify import ClassifyFPreRecMetric
from .element import Element
from .metric import Metric
from .span import SpanFPreRecMetric

__all__ = [
    "Accuracy",
    "ClassifyFPreRecMetric",
    "Element",
    "Metric",
    "SpanFPreRecMetric",
    "TransformersAccuracy",
]
