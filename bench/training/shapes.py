"""The shapes of ResNet-50's parameters, for those who want gradients of that size and not the network.

The network itself is in `examples/models.py`, which needs PyTorch; a test compares the two.
"""

from __future__ import annotations

Shape = tuple[int, ...]

# How many blocks each stage has, and how many channels inside a block.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
# What a block gives out over what it has inside.
EXPANSION = 4
CLASSES = 1000


def resnet50() -> list[Shape]:
    """Return the shapes of all 161 parameters, in the order of the forward pass."""
    shapes = _convolution(3, 64, 7)
    inputs = 64
    for blocks, width in STAGES:
        outputs = EXPANSION * width
        for block in range(blocks):
            shapes += _convolution(inputs, width, 1) + _convolution(width, width, 3) + _convolution(width, outputs, 1)
            if block == 0:
                # The shortcut has to change the number of channels, too.
                shapes += _convolution(inputs, outputs, 1)
            inputs = outputs
    return [*shapes, (CLASSES, inputs), (CLASSES,)]


def _convolution(inputs: int, outputs: int, kernel: int) -> list[Shape]:
    """Return the shapes of a convolution's weights and of the scale and shift of the normalisation after it."""
    return [(outputs, inputs, kernel, kernel), (outputs,), (outputs,)]
