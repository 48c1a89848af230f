"""Hold a model's trainable parameters in one flat vector.

Shapes: D = coordinates.
"""

import torch
from torch import Tensor, nn

from privacy.spec import VectorSpec


class FlatModel:
    """The parameters of a module as views of one vector: to set the vector is to set the model."""

    def __init__(self, model: nn.Module, spec: VectorSpec) -> None:
        """Move the parameters into a vector, their values kept.

        Args:
            model: On the device to compute on.
            spec: Its trainable parameters.
        """
        named = dict(model.named_parameters())
        self.names = [tensor.name for tensor in spec.tensors]
        self.parameters = [named[name] for name in self.names]
        self.device = self.parameters[0].device
        sizes = [tensor.size for tensor in spec.tensors]
        self.vector_D = torch.zeros(spec.length, device=self.device)
        with torch.no_grad():
            for parameter, part in zip(self.parameters, self.vector_D.split(sizes), strict=True):
                part.copy_(parameter.reshape(-1))
                parameter.data = part.view(parameter.shape)

    def set(self, model_D: Tensor) -> None:
        """Take a model version, shape (D,), from any device."""
        self.vector_D.copy_(model_D)

    def read(self, out_D: Tensor) -> None:
        """Write the parameters to a vector, shape (D,), on any device."""
        out_D.copy_(self.vector_D)

    def set_gradient(self, gradient_D: Tensor) -> None:
        """Give each parameter its part of a gradient, shape (D,)."""
        gradient_D = gradient_D.to(self.device)
        parts = gradient_D.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.view(parameter.shape)
