"""Adding up gradients before they travel."""

from ronde.tensorflow.aggregation import (
    LocalGradientAggregationHelper,
)

__all__ = [
    "LocalGradientAggregationHelper",
]
