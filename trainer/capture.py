"""Captures what chosen decoder layers put out, by forward hooks: the residual stream, before the final norm.

A decoder layer's output is taken, never `hidden_states` of the model's answer: there the last entry is already
normalised, while the serving engines hand the drafter what came out of the layer.
Legend: B rows, S tokens, H hidden, C = K * H.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Output = Tensor | tuple[Tensor, ...]


class LayerCapture:
    """While entered, keeps the latest output of each chosen layer; `joined` puts them side by side, in order."""

    def __init__(self, layers: Sequence[nn.Module], layer_ids: Sequence[int]) -> None:
        self._layers, self._layer_ids = layers, tuple(layer_ids)
        self._outputs: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> LayerCapture:
        self._handles = [
            self._layers[layer_id].register_forward_hook(self._hook(layer_id)) for layer_id in set(self._layer_ids)
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, layer_id: int) -> Callable[[nn.Module, object, Output], None]:
        def keep(_module: nn.Module, _inputs: object, output: Output) -> None:
            self._outputs[layer_id] = output if isinstance(output, Tensor) else output[0]

        return keep

    def joined(self) -> Tensor:
        """Return the captured outputs [B, S, C], layer after layer along the last dimension."""
        return torch.cat([self._outputs[layer_id] for layer_id in self._layer_ids], dim=-1)
