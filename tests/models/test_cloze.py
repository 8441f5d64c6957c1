"""Filling in blanks: what the parts say by hand, the two readings of "masked", and equality with BERT."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fenchel
from fenchel import models
from fenchel.errors import FenchelError
from fenchel.models import Cloze
from fenchel.models.cloze import from_transformers, to_transformers
from fenchel.nn.attending import attention_layers
from fenchel.nn.preference import RelativePosition

ESTIMATORS = ("first_order", "second_order", "exact")
MASK = 4
NUMBERS = torch.tensor([[2, 9, MASK, 7, 5, 3], [2, MASK, 8, 3, 0, 0], [2, 6, 3, 0, 0, 0]])


def cloze(seed: int = 0, **changes: Any) -> Cloze:
    """A tiny model whose attention is not close to uniform."""
    torch.manual_seed(seed)
    sizes = {"vocabulary": 12, "width": 8, "depth": 2, "heads": 2, "longest": 8, "mask": MASK, "dropout": 0.0}
    model = Cloze(**{**sizes, **changes}).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(20)
    return model


def by_hand(model: Cloze, numbers: Tensor, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
    """Logits of all places from the parts: each blank's problem is solved by itself."""
    given = model.configuration()
    heads, size = given["heads"], given["width"] // given["heads"]
    rows = []
    x = model.transformed(numbers, positions=positions)
    for row, tokens in enumerate(x):
        templates = model.templates(tokens) / size**0.5
        values = model.templates(tokens) if model.values is None else model.values(tokens)
        found = []
        for place in range(len(tokens)):
            answers = []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                log_u = torch.zeros(len(tokens), dtype=torch.float64)
                if given["preference"] == "relative":
                    relative = next(m for m in model.preference.modules() if isinstance(m, RelativePosition))
                    limit = relative.max_distance
                    stand = torch.arange(len(tokens)) if positions is None else positions[row]
                    buckets = relative.bucket_of_distance[stand - stand[place] + limit]
                    log_u = relative.relative_attention_bias.weight[buckets, head]
                kept = ~hidden[row]
                if given["causal"]:
                    kept = kept & (torch.arange(len(tokens)) <= place)
                evidence = (
                    torch.zeros(size, dtype=torch.float64)
                    if model.evidence is None
                    else model.evidence(tokens[place])[part]
                )
                if not kept.any():
                    answers.append(torch.zeros(size, dtype=torch.float64))
                    continue
                u = fenchel.Discrete(templates[kept][:, part], log_u[kept])
                closeness = None if given["closeness"] is None else fenchel.Tsallis(1.5)
                options = {} if closeness is None else {"closeness": closeness}
                problem = fenchel.InferenceProblem(u, evidence[None], given["alpha"], **options)
                solved = {"tol": 1e-11} if given["estimator"] == "exact" else {}
                weights = problem.solve(given["estimator"], **solved).weights[0]
                answers.append(weights @ values[kept][:, part])
            found.append(torch.cat(answers))
        state = model.norm(tokens + model.output(torch.stack(found)))
        rows.append(model.head(model.feed_forward(state), model.embeddings.word.weight))
    return torch.stack(rows)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("last", ["paper", "standard"])
def test_logits_are_those_of_the_parts_by_hand(estimator, last):
    model = cloze(estimator=estimator, last=last, alpha=0.8)
    real = NUMBERS != 0
    found, expected = model(NUMBERS)["words"], by_hand(model, NUMBERS, NUMBERS == 0)
    torch.testing.assert_close(found[real], expected[real], atol=1e-6, rtol=1e-6)
    grown = {}
    for logits in (found, expected):
        model.zero_grad()
        logits[real].square().sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not name.startswith("layers"):
                grown.setdefault(name, []).append(parameter.grad.clone())
    for one, other in grown.values():
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"closeness": "tsallis:1.5"},
        {"masked": "places"},
        {"preference": "uniform"},
        {"causal": True},
        {"layer_preference": "relative", "depth": 3},
    ],
    ids=str,
)
def test_options_are_what_they_say(changes):
    model = cloze(**changes)
    hidden = NUMBERS == 0
    if changes.get("masked") == "places":
        hidden = hidden | (NUMBERS == MASK)
    real = NUMBERS != 0
    torch.testing.assert_close(
        model(NUMBERS)["words"][real], by_hand(model, NUMBERS, hidden)[real], atol=1e-8, rtol=1e-8
    )


def test_places_that_begin_again_are_as_near_as_those_before():
    model = cloze(languages=2)
    again = torch.tensor([[0, 1, 2, 0, 1, 2]]).expand_as(NUMBERS)
    found = model(NUMBERS, positions=again)["words"]
    expected = by_hand(model, NUMBERS, NUMBERS == 0, again)
    real = NUMBERS != 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-8, rtol=1e-8)
    order = torch.arange(6).expand_as(NUMBERS)
    torch.testing.assert_close(model(NUMBERS, positions=order)["words"], model(NUMBERS)["words"])


def test_layers_before_the_last_go_by_the_row_where_places_begin_again():
    model = cloze(depth=3, layer_preference="relative", languages=2)
    with torch.no_grad():
        model.embeddings.position.weight.zero_()
    again = torch.tensor([[0, 1, 2, 0, 1, 2]]).expand_as(NUMBERS)
    x = model.transformed(NUMBERS)
    assert torch.equal(model.transformed(NUMBERS, positions=again), x)
    backwards = model.transformed(NUMBERS.flip(1)).flip(1)
    assert not torch.allclose(backwards[0], x[0])  # the order counts all the same
    by_place, by_row = (model.inferred(NUMBERS, x, positions) for positions in (again, None))
    assert not torch.allclose(by_place, by_row)


def test_neighbours_come_first_before_anything_is_learned():
    model = Cloze(vocabulary=12, width=8, depth=2, heads=4, longest=32)
    numbers = torch.full((1, 30), 5)
    inferred = model.inferred(numbers, torch.zeros(1, 30, 8), need_weights=True)
    weights = inferred.weights[0, :, 15]
    assert weights.argmax(-1).tolist() == [14, 16, 14, 16]
    assert weights[0, 14] > weights[2, 14] > weights[2, 12] > weights[2, 18]


def test_the_two_readings_of_masked_differ_where_blanks_are():
    padding, places = (cloze(masked=masked) for masked in ("padding", "places"))
    places.load_state_dict(padding.state_dict())
    weights = {
        name: model.inferred(NUMBERS, model.transformed(NUMBERS), need_weights=True).weights
        for name, model in (("padding", padding), ("places", places))
    }
    blank = NUMBERS == MASK
    assert (weights["padding"].transpose(1, 3)[blank] > 0).any()
    assert (weights["places"].transpose(1, 3)[blank] == 0).all()
    assert (weights["places"].transpose(1, 3)[NUMBERS == 0] == 0).all()
    assert torch.equal(padding(NUMBERS)["words"][2], places(NUMBERS)["words"][2])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_padding_changes_nothing_and_a_batch_is_its_rows(estimator):
    model = cloze(estimator=estimator, layer_preference="relative", classes=2)
    whole = model(NUMBERS)
    for row, numbers in enumerate(NUMBERS):
        alone = model(numbers[numbers != 0].unsqueeze(0))
        length = int((numbers != 0).sum())
        torch.testing.assert_close(whole["words"][row, :length], alone["words"][0], atol=1e-8, rtol=0)
        torch.testing.assert_close(whole["classes"][row], alone["classes"][0], atol=1e-8, rtol=0)


def test_places_are_those_asked_for():
    model = cloze(classes=2)
    whole, places = model(NUMBERS), NUMBERS == MASK
    asked = model(NUMBERS, places=places)
    assert asked["words"].shape == (3, 1, 12)
    torch.testing.assert_close(asked["words"][:2, 0], whole["words"][places])
    assert not asked["words"][2].any()
    more = model(NUMBERS, places=NUMBERS > 5)["words"]
    torch.testing.assert_close(more[0, 1], whole["words"][0, 3])
    assert model(NUMBERS, places=NUMBERS < 0)["words"].shape == (3, 0, 12)
    torch.testing.assert_close(asked["classes"], whole["classes"])


def test_causal_places_see_nothing_after_them():
    model = cloze(causal=True, depth=3)
    changed = NUMBERS.clone()
    changed[0, 3:] = 11
    torch.testing.assert_close(model(changed)["words"][0, :3], model(NUMBERS)["words"][0, :3])
    assert not torch.allclose(model(changed)["words"][0, 3], model(NUMBERS)["words"][0, 3])


def test_segments_positions_and_languages_are_read():
    model = cloze(languages=2)
    one = torch.ones_like(NUMBERS)
    plain = model(NUMBERS)["words"]
    for name in ("segments", "positions", "languages"):
        assert not torch.allclose(model(NUMBERS, **{name: one})["words"], plain)
    places = torch.arange(6).expand_as(NUMBERS)
    torch.testing.assert_close(model(NUMBERS, 0 * one, places, 0 * one)["words"], plain)


def test_an_additive_score_is_all_preference():
    model = cloze(score="additive")
    assert model.evidence is None
    inferred = model.inferred(NUMBERS, model.transformed(NUMBERS), need_weights=True, need_certificate=True)
    assert inferred.certificate.gap.abs().max() < 1e-10
    with fenchel.nn.use_estimator(model.inference, "exact"):
        exact = model(NUMBERS)["words"]
    torch.testing.assert_close(exact, model(NUMBERS)["words"])
    with pytest.raises(FenchelError, match="score is 'additive', which is all preference"):
        cloze(score="additive", estimator="exact")


def test_everything_that_attends_is_seen_and_a_part_can_be_exchanged():
    model = cloze(depth=3)
    assert list(attention_layers(model)) == ["layers.0.self_attn", "layers.1.self_attn", "inference"]
    before = model(NUMBERS)["words"]
    model.templates = torch.nn.Sequential(model.templates, torch.nn.Tanh())
    model.preference = fenchel.nn.preference.KeyPadding()
    assert not torch.allclose(model(NUMBERS)["words"], before)


@pytest.mark.parametrize("changes", [{}, {"last": "standard", "classes": 3, "closeness": "sparsemax"}])
def test_a_model_is_built_again_from_its_configuration(changes):
    model = cloze(**changes)
    again = models.build("cloze", **model.configuration()).double().eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(NUMBERS)["words"], model(NUMBERS)["words"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"vocabulary": 0},
        {"width": 9},
        {"width": None},
        {"mlp_width": 0},
        {"depth": 0},
        {"masked": "all"},
        {"masked": "places", "mask": None},
        {"last": "first"},
        {"preference": "near"},
        {"dropout": 1.0},
        {"languages": -1},
        {"alpha": 0.0},
        {"estimator": "third"},
        {"closeness": "near"},
    ],
    ids=str,
)
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(FenchelError, match=next(iter(wrong))):
        Cloze(**{"vocabulary": 12, "heads": 2, **wrong})


def test_rows_that_are_too_long_or_no_numbers_are_refused():
    with pytest.raises(FenchelError, match="at most 8 places"):
        cloze()(torch.ones(1, 9, dtype=torch.int64))
    with pytest.raises(FenchelError, match="numbers"):
        cloze()(torch.ones(1, 4))


# ---- transformers


@pytest.mark.parametrize("classes", [0, 2])
@pytest.mark.parametrize("depth", [1, 3])
def test_it_is_bert_after_conversion_and_comes_back(classes, depth):
    pytest.importorskip("transformers")
    model = cloze(last="standard", preference="uniform", classes=classes, depth=depth).float()
    bert = to_transformers(model)
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]]).expand_as(NUMBERS)
    with torch.no_grad():
        expected = bert(NUMBERS, attention_mask=(NUMBERS != 0).long(), token_type_ids=segments)
        found = model(NUMBERS, segments)
    real = NUMBERS != 0
    logits = expected.prediction_logits if classes else expected.logits
    torch.testing.assert_close(found["words"][real], logits[real], atol=1e-5, rtol=1e-5)
    if classes:
        torch.testing.assert_close(found["classes"], expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    again = from_transformers(bert, mask=MASK)
    assert again.configuration() == model.configuration()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_bert_of_its_own_comes_over():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=12,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        layer_norm_eps=1e-6,
    )
    bert = transformers.BertForMaskedLM(config).double().eval()
    model = from_transformers(bert)
    with torch.no_grad():
        logits = bert(NUMBERS, attention_mask=(NUMBERS != 0).long()).logits
        found = model(NUMBERS)["words"]
    torch.testing.assert_close(found[NUMBERS != 0], logits[NUMBERS != 0], atol=1e-10, rtol=0)
    config.hidden_act = "relu"
    with pytest.raises(FenchelError, match="hidden_act of the model is 'relu'"):
        from_transformers(transformers.BertForMaskedLM(config))
    with pytest.raises(FenchelError, match="expected a BertForMaskedLM"):
        from_transformers(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"last": "paper"},
        {"preference": "relative"},
        {"layer_preference": "relative"},
        {"masked": "places"},
        {"causal": True},
        {"estimator": "exact"},
        {"alpha": 2.0},
        {"closeness": "sparsemax"},
        {"languages": 2},
        {"classes": 6},
        {"score": "additive"},
    ],
    ids=str,
)
def test_what_bert_has_not_is_named(changes):
    model = cloze(**{"last": "standard", "preference": "uniform", **changes})
    with pytest.raises(FenchelError, match=f"{next(iter(changes))} of the model is"):
        to_transformers(model)
