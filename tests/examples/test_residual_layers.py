"""examples/residual.py and examples/reversible.py: masks are means of coins, and recomputed gradients are the same."""

import pytest
import torch

import residual
import reversible


@pytest.mark.parametrize("arm", residual.ARMS)
def test_a_stage_is_the_formula_of_its_arm(arm: str) -> None:
    torch.manual_seed(0)
    stage, x = residual.Stage(arm, 6, "first_order"), torch.randn(2, 6, 8, 8)
    stage.odds.data.normal_()
    found, features = stage(x), stage.trunk(x)
    wide = torch.nn.functional.interpolate(
        stage.branch(x.unfold(2, 2, 2).unfold(3, 2, 2).amax((-1, -2))), (8, 8), mode="bilinear"
    )
    asked = torch.einsum("oc,bchw->bohw", stage.ask.weight[..., 0, 0], wide) + stage.odds[:, None, None]
    expected = {
        "(1 + M)F": (1 + asked.sigmoid()) * features,
        "MF": asked.sigmoid() * features,
        "F + S": features + asked,
    }
    assert torch.allclose(found, expected[arm], atol=1e-5)
    assert sum(one.numel() for one in stage.parameters()) == 4 * (6 * 6 * 9 + 12) + 36 + 6
    stage.estimator = "exact"
    exact = stage(x)
    assert torch.equal(exact, found) == (arm == "F + S")
    for slope in torch.autograd.grad(exact.square().sum(), [stage.odds, stage.ask.weight]):
        assert slope.abs().sum() > 0


def test_networks_learn_toys() -> None:
    o = residual.ResidualOptions(images=300, test=200, stages=1, width=8, epochs=4, seeds=1)
    assert residual.run(o, "(1 + M)F", 0)["right"] > 50


@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_gradients_of_recomputed_layers_are_those_of_plain_ones(estimator: str) -> None:
    torch.manual_seed(0)
    o = reversible.ReversibleOptions(rows=3, columns=4, width=8, heads=2, estimator=estimator)
    model = reversible.Layers(3, o).double()
    x = torch.randn(2, 12, 8, dtype=torch.double, requires_grad=True)
    weights, wanted = torch.randn(2, 12, 16).double(), [x, *model.parameters()]
    outputs = [model(x, recompute=recompute) for recompute in (True, False)]
    assert torch.equal(*outputs)
    found, expected = (torch.autograd.grad((weights * one).sum(), wanted) for one in outputs)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6 if estimator == "exact" else 1e-11)
        assert other.abs().sum() > 0


def test_what_is_kept_does_not_grow_with_depth() -> None:
    o, kept = reversible.ReversibleOptions(rows=4, columns=8, width=16), {}
    for depth in (2, 3, 5):
        model, x = reversible.Layers(depth, o), torch.randn(2, 32, 16)
        for recompute in (True, False):
            kept[depth, recompute] = reversible.measured(model, x, recompute=recompute)[0]
    assert kept[5, True] == kept[3, True] == kept[2, True]
    each = kept[3, False] - kept[2, False]
    assert kept[5, False] == pytest.approx(kept[2, False] + 3 * each, rel=1e-3)
    assert kept[5, False] > 3 * kept[5, True]
