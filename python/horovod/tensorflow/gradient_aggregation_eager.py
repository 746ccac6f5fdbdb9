"""Adding up gradients before they travel, without a graph."""

from ronde.tensorflow.aggregation import (
    LocalGradientAggregationHelperEager,
)

__all__ = [
    "LocalGradientAggregationHelperEager",
]
