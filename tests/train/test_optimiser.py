from __future__ import annotations

import torch
from torch import nn

from fenchel import models
from fenchel.train.optimiser import adamw, decays


def small(name: str) -> nn.Module:
    return models.build(name, image_size=8, width=16, depth=2, heads=2, mlp_width=16)


def test_only_matrices_decay_and_every_parameter_is_in_one_group():
    for name in ("vit", "ot-vit"):
        model = small(name)
        groups = adamw(model, 0.1, 0.5).param_groups
        decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
        parameters = dict(model.named_parameters())
        assert len(decay) == sum(len(group["params"]) for group in groups) == len(parameters)
        for parameter_name, parameter in parameters.items():
            expected = 0.5 if decays(parameter_name, parameter) else 0.0
            assert decay[id(parameter)] == expected, parameter_name
        exempt = {
            parameter_name
            for parameter_name, parameter in parameters.items()
            if not decays(parameter_name, parameter)
        }
        assert all("bias" in n or "norm" in n or "class_token" in n or "position" in n for n in exempt), (
            exempt
        )
        assert any("class_token" in n for n in exempt)
        assert any("position" in n for n in exempt)
        assert any("norm" in n for n in exempt)


def test_decay_shrinks_matrices_and_leaves_the_rest():
    model = nn.Linear(3, 2)
    nn.init.ones_(model.bias)
    nn.init.ones_(model.weight)
    optimiser = adamw(model, 0.1, 0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    assert torch.allclose(model.weight, torch.full((2, 3), 0.95))
    assert torch.equal(model.bias, torch.ones(2))
