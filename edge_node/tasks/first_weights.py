"""Look at a model's first weights for what sites' search of model versions would take amiss."""

from torch import nn

_LEAST_UNITS = 8  # below, the search for imprints looks at no layer


def zero_weight_notes(model: nn.Module) -> list[str]:
    """Name each layer whose weights begin as zeros beside a bias that does not.

    The first steps give such a layer rows along one direction, each with the offset that it was
    drawn: the weights of an imprint (`privacy.leakage.model_lint`), whatever the app means by them.
    """
    notes = []
    for name, module in model.named_modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if not (isinstance(weight, nn.Parameter) and isinstance(bias, nn.Parameter)):
            continue
        is_layer = weight.requires_grad and weight.ndim > 1 and bias.numel() >= _LEAST_UNITS
        if is_layer and not bool(weight.any()) and bool(bias.any()):
            notes.append(
                f"the weights of {name!r} begin as zeros and its bias does not: after a few steps"
                " sites may take it for a layer made to leak and refuse the model; let the bias"
                " begin as zeros too"
            )
    return notes
