"""Read a torch model's architecture (`privacy.architecture`)."""

from torch import nn

from privacy.architecture import ModuleFact, TensorFact, architecture_digest


def architecture_of(model: nn.Module) -> str:
    """Give the digest of a model's architecture, hex; a model as ``model()`` gave it."""
    modules = tuple(ModuleFact(name, _kind(module)) for name, module in model.named_modules())
    parameters = [
        TensorFact(name, "trained" if p.requires_grad else "frozen", tuple(p.shape), str(p.dtype))
        for name, p in model.named_parameters()
    ]
    buffers = [
        TensorFact(name, "buffer", tuple(buffer.shape), str(buffer.dtype))
        for name, buffer in model.named_buffers()
    ]
    return architecture_digest(modules, (*parameters, *buffers)).hex()


def _kind(module: nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"
