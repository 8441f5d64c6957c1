"""The captioner: what it says follows from its parts; soft and hard attention learn what they should."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem
from fenchel.closeness.named import closeness_named
from fenchel.errors import FenchelError
from fenchel.models import Captioner, build
from fenchel.nn import use_estimator
from fenchel.train.captions.objective import cross_entropies, doubly_stochastic_penalty, objective, reinforced

TOL = 1e-11
TINY: dict[str, Any] = {"vocabulary": 9, "image_size": 4, "width": 8, "depth": 1, "dropout": 0.0}


def tiny(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    model = Captioner(**{**TINY, **changes}).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "score" in name:  # which begins at 0, a uniform preference
                parameter.normal_()
        if model.evidence is not None:
            model.evidence.weight.mul_(6)  # so that weights are far from uniform
    return model


def asked(rows: int = 3, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, 3, 4, 4, generator=generator, dtype=torch.float64)
    words = torch.randint(3, 9, (rows, 5), generator=generator)
    targets = torch.randint(3, 9, (rows, 5), generator=generator)
    words[0, 3:], targets[0, 3:] = 0, 0
    return images, words, targets


def by_hand(model: Any, images: Tensor, words: Tensor, estimator: str, alpha: float) -> dict[str, Tensor]:
    """What the model says, a caption and a word at a time, out of its parts."""
    logits, weights = [], []
    for image, row in zip(images, words, strict=True):
        cells = model.templates(image[None])[0]
        log_u = None
        if model.configuration()["preference"] == "context":
            log_u = model.preference.network(cells[None])[0, :, 0]
        state = None
        for word in row:
            states, state = model.decoder(model.embed(word)[None, None], state)
            s = states[0, 0]
            z, t = model.evidence(s), cells / cells.shape[-1] ** 0.5
            if estimator == "first_order" and model.inference.closeness is None:
                p = (alpha * t @ z + (0 if log_u is None else log_u)).softmax(-1)
            else:
                near = closeness_named(model.inference.closeness)
                problem = InferenceProblem(Discrete(t, log_u), z[None], alpha, near)
                p = problem.solve(estimator, **({"tol": TOL} if estimator == "exact" else {})).weights[0]
            h = sum(p[i] * cells[i] for i in range(len(cells)))
            beta = torch.sigmoid(model.gate(s))
            logits.append(model.head(s + beta * h))
            weights.append(p)
    shape = (*words.shape, -1)
    return {"logits": torch.stack(logits).view(shape), "weights": torch.stack(weights).view(shape)}


@pytest.mark.parametrize(
    ("estimator", "preference", "closeness"),
    [
        ("first_order", "uniform", None),
        ("first_order", "context", None),
        ("second_order", "context", None),
        ("exact", "uniform", None),
        ("exact", "context", None),
        ("first_order", "context", "tsallis:1.5"),
        ("exact", "uniform", "sparsemax"),
    ],
)
def test_it_says_what_its_parts_say(estimator, preference, closeness):
    images, words, targets = asked()
    model = tiny(estimator=estimator, preference=preference, closeness=closeness, alpha=0.7)
    model.inference.tol = TOL if estimator == "exact" else None
    said = model(images=images, words=words)
    wanted = by_hand(model, images, words, estimator, 0.7)
    torch.testing.assert_close(said["weights"], wanted["weights"], rtol=0, atol=1e-9)
    torch.testing.assert_close(said["logits"], wanted["logits"], rtol=0, atol=1e-9)
    assert float(said["weights"].detach().var(-1).mean()) > 1e-3  # somewhere it looks
    gradients = [
        torch.autograd.grad(cross_entropies(one["logits"], targets).sum(), list(model.parameters()))
        for one in (said, wanted)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_gradients_of_the_exact_answer_are_those_of_finite_differences():
    images, words, targets = asked()
    model = tiny(estimator="exact", preference="context")
    parameter = model.evidence.weight
    direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def loss() -> Tensor:
        return cross_entropies(model(images=images, words=words)["logits"], targets).sum()

    (gradient,) = torch.autograd.grad(loss(), parameter)
    ends = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            parameter.add_(step * direction)
            ends.append(loss().item())
    assert (gradient * direction).sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3)


def test_the_control_takes_the_mean_of_all_cells_and_soft_attention_goes_to_it():
    images, words, _ = asked()
    control = tiny(attention="mean").eval()
    cells = control.templates(images)
    states, _ = control.decoder(control.embed(words))
    wanted = control.head(states + control.gate(states).sigmoid() * cells.mean(1, keepdim=True))
    torch.testing.assert_close(control(images=images, words=words)["logits"], wanted)
    soft = tiny(alpha=1e-9).eval()
    soft.load_state_dict(control.state_dict(), strict=False)
    torch.testing.assert_close(soft(images=images, words=words)["logits"], wanted)


def test_without_a_gate_the_whole_of_what_is_inferred_is_added():
    images, words, _ = asked()
    model, gated = tiny(gate=False), tiny()
    with torch.no_grad():
        gated.gate.weight.zero_()
        gated.gate.bias.fill_(100.0)
    gated.load_state_dict(model.state_dict(), strict=False)
    said = [one(images=images, words=words)["logits"] for one in (model, gated)]
    torch.testing.assert_close(*said)


@pytest.mark.parametrize("attention", ["soft", "hard", "mean"])
@pytest.mark.parametrize("preference", ["uniform", "context"])
def test_words_one_by_one_are_those_of_all_at_once(attention, preference):
    if attention == "mean" and preference == "context":
        preference = "uniform"
    model = tiny(attention=attention, preference=preference).train()
    images, _, _ = asked()
    found = model.captions(images, begin=1, end=2, longest=6, never=(0, 1))
    assert model.training
    model.eval()
    for image, one in zip(images, found, strict=True):
        words = torch.tensor([[1, *one.words]])
        logits = model(images=image[None], words=words)["logits"][0]
        logits[:, [0, 1]] = -torch.inf
        likely = logits.log_softmax(-1)
        said = [*one.words, *([2] if one.ended else [])]
        assert likely.argmax(-1).tolist()[: len(said)] == said
        total = torch.stack([likely[place, word] for place, word in enumerate(said)]).sum()
        assert one.log_probability == pytest.approx(total.item())
    wide = model.captions(images, begin=1, end=2, longest=6, never=(0, 1), beam=4, length_power=0.0)
    assert all(
        one.log_probability >= two.log_probability - 1e-9 for one, two in zip(wide, found, strict=True)
    )


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_rows_and_padding_change_nothing(attention):
    model = tiny(attention=attention).eval()
    images, words, _ = asked()
    together = model(images=images, words=words)["logits"]
    alone = model(images=images[:1], words=words[:1, :3])["logits"]
    torch.testing.assert_close(together[:1, :3], alone)


def test_hard_attention_looks_at_one_cell():
    images, words, targets = asked()
    model = tiny(attention="hard").eval()
    said = model(images=images, words=words)
    assert set(said) == {"logits", "weights"}
    cells = model.templates(images)
    states, _ = model.decoder(model.embed(words))
    chosen = said["weights"].argmax(-1)
    taken = torch.stack([cells[row][chosen[row]] for row in range(len(cells))])
    torch.testing.assert_close(said["logits"], model.head(states + model.gate(states).sigmoid() * taken))
    model.train()
    torch.manual_seed(0)
    drawn = [model(images=images, words=words, targets=targets)["chosen"] for _ in range(400)]
    shares = torch.nn.functional.one_hot(torch.stack(drawn), cells.shape[1]).double().mean(0)
    assert float((shares - said["weights"].detach()).abs().max()) < 5 * 0.5 / 400**0.5
    with pytest.raises(FenchelError, match="targets is None"):
        model(images=images, words=words)
    with pytest.raises(FenchelError, match=r"draws has shape \(3, 2\); expected that of words, \(3, 5\)"):
        model(images=images, words=words, targets=targets, draws=torch.rand(3, 2))
    p = said["weights"].detach()
    for draw, wanted in ((0.0, 0), (1 - 1e-12, p.shape[-1] - 1)):
        draws = torch.full(words.shape, draw, dtype=torch.float64)
        chosen = model(images=images, words=words, targets=targets, draws=draws)["chosen"]
        assert chosen.unique().tolist() == [wanted]
    draws = torch.rand(words.shape, generator=torch.Generator().manual_seed(1))
    chosen = model(images=images, words=words, targets=targets, draws=draws)["chosen"]
    for row, word in ((0, 0), (1, 3), (2, 4)):
        total, cell = p[row, word, 0].item(), 0
        while total <= draws[row, word].item():
            cell += 1
            total += p[row, word, cell].item()
        assert chosen[row, word] == cell


def expected_loss(model: Any, images: Tensor, words: Tensor, targets: Tensor) -> Tensor:
    """The expected cross-entropy over all draws, by enumeration."""
    cells, log_preference = model.seen(images)
    states, _ = model.decoder(model.embed(words))
    weights = model.weights(states, cells, log_preference)
    total = weights.new_zeros(())
    for cell in range(cells.shape[1]):
        h = model.gate(states).sigmoid() * cells[:, None, cell]
        total = total + (weights[..., cell] * cross_entropies(model.head(states + h), targets)).sum()
    return total


@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_the_mean_gradient_of_reinforce_is_that_of_the_expected_loss(estimator):
    model = tiny(attention="hard", estimator=estimator).train()
    image, word, target = asked(1)
    word, target = word[:, :2], torch.tensor([[5, 4]])
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(expected_loss(model, image, word, target), parameters)
    torch.manual_seed(0)
    rows, rounds = 250, 60
    images, words, targets = (one.expand(rows, *one.shape[1:]) for one in (image, word, target))
    drawn: list[list[Tensor]] = []
    for _ in range(rounds):
        said = model(images=images, words=words, targets=targets)
        loss = objective(said, targets, coverage=0.0, entropy=0.0) / rows
        drawn.append(list(torch.autograd.grad(loss, parameters)))
    told = {}
    for (name, _), place, of_all in zip(model.named_parameters(), range(len(wanted)), wanted, strict=True):
        # The first round's baseline is of its own draws; all later ones are of earlier draws.
        samples = torch.stack([one[place] for one in drawn[1:]])
        error = samples.std(0) / (rounds - 1) ** 0.5
        away = (samples.mean(0) - of_all).abs()
        assert bool((away <= 5 * error + 1e-12).all())
        told[name] = bool((of_all.abs() > 10 * error).any())
    # What is learned of where to look comes from the draws alone: without it, zero would have been found out.
    assert told["evidence.weight"]
    without = model.baseline.average.item()
    assert without < 0  # rewards are logarithms of probabilities


def test_a_baseline_makes_gradients_vary_less():
    image, word, target = asked(1)
    words, targets, images = word.expand(64, -1), target.expand(64, -1), image.expand(64, -1, -1, -1)

    def varies(baseline: bool) -> float:
        model = tiny(attention="hard", baseline_decay=0.5).train()
        torch.manual_seed(0)
        found = []
        for _ in range(40):
            if not baseline:
                model.baseline.average.zero_()
                model.baseline.begun.fill_(1.0)
            loss = objective(
                model(images=images, words=words, targets=targets), targets, coverage=0.0, entropy=0.0
            )
            found.append(torch.autograd.grad(loss, model.evidence.weight)[0])
        return float(torch.stack(found).var(0).sum())

    assert varies(True) < 0.5 * varies(False)


def test_straight_through_takes_one_cell_and_the_gradient_of_the_mean():
    images, words, targets = asked()
    model = tiny(attention="hard", gradient="straight_through").train()
    assert model.baseline is None
    torch.manual_seed(3)
    said = model(images=images, words=words)
    assert set(said) == {"logits", "weights", "chosen"}
    cells = model.templates(images)
    states, _ = model.decoder(model.embed(words))
    one_hot = torch.nn.functional.one_hot(said["chosen"], cells.shape[1]).double()
    gate = model.gate(states).sigmoid()
    torch.testing.assert_close(said["logits"], model.head(states + gate * (one_hot @ cells)))
    ours = torch.autograd.grad(cross_entropies(said["logits"], targets).sum(), model.evidence.weight)[0]
    # d loss / d p at the drawn one-hot, times dp / dθ.
    p = said["weights"].detach().requires_grad_()
    taken = one_hot + p - p.detach()
    loss = cross_entropies(model.head(states.detach() + gate.detach() * (taken @ cells.detach())), targets)
    (slope,) = torch.autograd.grad(loss.sum(), p)
    weights = model(images=images, words=words)["weights"]
    theirs = torch.autograd.grad((weights * slope).sum(), model.evidence.weight)[0]
    torch.testing.assert_close(ours, theirs)


def test_the_doubly_stochastic_penalty_and_the_entropy_by_hand():
    images, words, targets = asked()
    model = tiny()
    said = model(images=images, words=words)
    penalty = 0.0
    for row in range(len(words)):
        for cell in range(said["weights"].shape[-1]):
            looked = sum(said["weights"][row, t, cell] for t in range(words.shape[1]) if targets[row, t] != 0)
            penalty = penalty + (1 - looked) ** 2
    found = doubly_stochastic_penalty(said["weights"], targets != 0).sum()
    torch.testing.assert_close(found, penalty)
    nats = cross_entropies(said["logits"], targets).sum()
    torch.testing.assert_close(objective(said, targets, coverage=0.3, entropy=0.0), nats + 0.3 * penalty)
    hard = tiny(attention="hard").train()
    torch.manual_seed(0)
    drawn = hard(images=images, words=words, targets=targets)
    real = targets != 0
    entropy = -(drawn["weights"] * drawn["weights"].log()).sum(-1)[real].sum()
    bonus = objective(drawn, targets, coverage=0.0, entropy=0.0) - objective(
        drawn, targets, coverage=0.0, entropy=0.2
    )
    torch.testing.assert_close(bonus, 0.2 * entropy)


def test_a_weight_of_zero_leaves_the_gradient_finite():
    scores = torch.tensor([[[0.0, -2000.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    advantage, chosen = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[2]])
    reinforced(scores.softmax(-1), chosen, advantage, entropy=0.5).sum().backward()
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())
    kept = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    reinforced(kept.softmax(-1), chosen - 1, advantage, entropy=0.5).sum().backward()
    torch.testing.assert_close(scores.grad[..., [0, 2]], kept.grad)


def test_the_baseline_is_a_buffer_that_training_moves():
    images, words, targets = asked()
    model = tiny(attention="hard", baseline_decay=0.5).train()
    torch.manual_seed(0)
    first = model(images=images, words=words, targets=targets)
    real = targets != 0
    assert first["advantage"][real].mean().abs() < 1e-12
    assert bool((first["advantage"][~real] == 0).all())
    begun = model.baseline.average.item()
    second = model(images=images, words=words, targets=targets)
    rewards = -cross_entropies(second["logits"], targets)[real]
    torch.testing.assert_close(second["advantage"][real], rewards - begun)
    assert model.baseline.average.item() == pytest.approx(0.5 * begun + 0.5 * rewards.mean().item())
    assert not second["advantage"].requires_grad
    model.eval()
    kept = model.baseline.average.item()
    model(images=images, words=words, targets=targets)
    assert model.baseline.average.item() == kept
    again = tiny(attention="hard", baseline_decay=0.5)
    again.load_state_dict(model.state_dict())
    assert again.baseline.average.item() == kept


def test_it_can_be_switched_and_is_built_again_from_its_configuration():
    images, words, _ = asked()
    model, exact = tiny(), tiny(estimator="exact")
    with use_estimator(model, "exact"):
        switched = model(images=images, words=words)["logits"]
    torch.testing.assert_close(switched, exact(images=images, words=words)["logits"])
    again = build("captioner", **model.configuration()).double()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(
        again(images=images, words=words)["logits"], model(images=images, words=words)["logits"]
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"attention": "loud"}, "attention of Captioner is 'loud'"),
        ({"gradient": "guess"}, "gradient of Captioner"),
        ({"preference": "position"}, "preference of Captioner"),
        ({"estimator": "third"}, "estimator of Inference"),
        ({"image_size": 6, "depth": 2}, "must be divisible by 2 \\*\\* depth = 4"),
        ({"attention": "mean", "preference": "context"}, "the plain mean of all cells"),
        ({"attention": "hard", "closeness": "sparsemax"}, "a chance to be drawn"),
        ({"baseline_decay": 1.0}, "decay of RewardBaseline"),
        ({"dropout": 1.0}, "dropout of Captioner"),
        ({"vocabulary": 0}, "vocabulary of Captioner"),
        ({"gate": 1}, "gate of Captioner is 1; expected True or False"),
        ({"closeness": 5}, "closeness is 5"),
    ],
)
def test_wrong_arguments_are_named(wrong, said):
    with pytest.raises(FenchelError, match=said):
        Captioner(**{**TINY, **wrong})


def test_wrong_tensors_are_named():
    images, words, _ = asked()
    model = tiny()
    with pytest.raises(FenchelError, match=r"images have shape \(3, 3, 4, 2\); expected \(B, 3, 4, 4\)"):
        model(images=images[..., :2], words=words)
    with pytest.raises(FenchelError, match="expected as many rows"):
        model(images=images[:2], words=words)
    with pytest.raises(FenchelError, match="words"):
        model(images=images, words=words.double())
