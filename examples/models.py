"""The networks that the PyTorch examples and benchmarks train, in plain torch: residual networks and a transformer.

``resnet(50)`` has the layers of torchvision's ResNet-50 in the same order (161 parameters, 25,557,032 numbers), so its
gradients are those that people measure with. Nothing here knows that training is distributed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

# How many blocks each of the four stages has.
RESNET_STAGES = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
BOTTLENECK_FROM = 50
STAGE_WIDTHS = (64, 128, 256, 512)

# Makes a normalisation layer for so many channels: BatchNorm2d, or one that looks at the batches of all ranks.
Norm = Callable[[int], nn.Module]


class Block(nn.Module):
    """Some convolutions, and a shortcut past them; the first of a stage also halves the image."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool, norm: Norm) -> None:
        super().__init__()
        if bottleneck:
            outputs = 4 * width
            layers = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            outputs = width
            layers = [(inputs, width, 3, stride), (width, width, 3, 1)]
        convolutions: list[nn.Module] = []
        for before, after, kernel, step in layers:
            convolutions += [_convolution(before, after, kernel, step), norm(after), nn.ReLU(inplace=True)]
        self.convolutions = nn.Sequential(*convolutions[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_convolution(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, images: Tensor) -> Tensor:
        """Add what the convolutions make of the images to the images."""
        return torch.relu(self.convolutions(images) + self.shortcut(images))


def resnet(depth: int = 50, classes: int = 1000, norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    """Return a residual network of one of the depths in `RESNET_STAGES`, for images of any size."""
    bottleneck = depth >= BOTTLENECK_FROM
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), norm(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for number, (blocks, width) in enumerate(zip(RESNET_STAGES[depth], STAGE_WIDTHS)):
        for index in range(blocks):
            stride = 2 if number > 0 and index == 0 else 1
            layers.append(Block(channels, width, stride, bottleneck, norm))
            channels = 4 * width if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Transformer(nn.Module):
    """Predicts the next symbol of a text from those before it."""

    def __init__(self, symbols: int, context: int, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.context = context
        self.symbol = nn.Embedding(symbols, width)
        self.position = nn.Embedding(context, width)
        # Without dropout, so that the result does not depend on how a batch is split among ranks.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, symbols)

    def forward(self, text: Tensor) -> Tensor:
        """Return the scores of all symbols for what follows each place of the texts."""
        length = text.shape[1]
        values = self.symbol(text) + self.position(torch.arange(length, device=text.device))
        ahead = torch.ones(length, length, dtype=torch.bool, device=text.device).triu(1)
        for layer in self.layers:
            values = layer(values, src_mask=ahead)
        return self.scores(self.norm(values))
