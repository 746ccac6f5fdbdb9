"""Elastic training with TensorFlow."""

from ronde.tensorflow.elastic import (
    TensorFlowKerasState,
    TensorFlowState,
    run,
)

__all__ = [
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]
