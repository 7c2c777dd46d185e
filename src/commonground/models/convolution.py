"""Strided 1×1 convolutions without the strides, which one of PyTorch's libraries gets wrong on some CPUs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PointwiseConv2d", "use_safe_convolutions"]


class PointwiseConv2d(nn.Conv2d):
    """A strided 1×1 convolution, computed as one of stride 1 of the pixels that the strides leave: the same function.

    On a CPU with AVX2 and no AVX-512, oneDNN 3.12 (that of PyTorch 2.13) writes past its workspace for the weight
    gradient of a strided 1×1 convolution of fewer than eight channels, on channels-last images: crashes, or other
    tensors damaged in silence (https://github.com/uxlfoundation/oneDNN/issues/6035). Without strides it does not.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if any(self._reversed_padding_repeated_twice):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = F.pad(input, self._reversed_padding_repeated_twice, mode)
        down, right = self.stride
        return F.conv2d(input[..., ::down, ::right], weight, bias, groups=self.groups)


def use_safe_convolutions(model: nn.Module) -> nn.Module:
    """Make every strided 1×1 ``nn.Conv2d`` of fewer than eight channels a :class:`PointwiseConv2d`, in place.

    On every CPU, so that numbers do not depend on which one it is; layers with a ``forward`` of their own stay.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d and _is_unsafe(module):
            module.__class__ = PointwiseConv2d
    return model


def _is_unsafe(layer: nn.Conv2d) -> bool:
    return max(layer.kernel_size) == 1 and max(layer.stride) > 1 and layer.in_channels // layer.groups < 8
