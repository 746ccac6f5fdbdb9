"""Being told when a parameter's gradient has been computed.

PyTorch 2.1 and newer call a hook of the parameter itself. Before, the hook goes on the node of the graph that adds up
the gradient; the graph holds that node weakly, so whoever wants the hook keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["GradientHook"]


class GradientHook:
    """Calls ``function(parameter)`` each time a gradient was added to ``parameter.grad``, until removed."""

    def __init__(self, parameter: torch.Tensor, function: Callable[[torch.Tensor], None]) -> None:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            self._node: Any = None
            self._hook = parameter.register_post_accumulate_grad_hook(function)
        else:
            with torch.enable_grad():
                self._node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            self._hook = self._node.register_hook(lambda *_: function(parameter))

    def remove(self) -> None:
        """Call the function no more."""
        self._hook.remove()
        self._node = None
