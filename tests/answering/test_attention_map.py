"""Attention maps: weights by hand, exact ones by the problem, certificates, padding, heads, decoders step by step."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from fenchel import Discrete, InferenceProblem
from fenchel.answering import AttentionMap, seen_attention, terminal_map
from fenchel.answering.terminal_map import short_bound
from fenchel.errors import FenchelError, InputError
from fenchel.models import Inference

QUERIES, KEYS = ["der", "Hund", "bellt"], ["a", "dog", "barks", "."]


def asked(heads: int = 2, **given: Any) -> tuple[Inference, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    block = Inference(heads, alpha=1.3, **given)
    tensors = {
        "templates": torch.randn(2, heads, 6, 4, generator=generator),
        "values": torch.randn(2, heads, 6, 4, generator=generator),
        "evidence": torch.randn(2, heads, 5, 4, generator=generator),
        "log_preference": torch.randn(2, 1, 1, 6, generator=generator),
    }
    tensors["log_preference"][1, ..., 4:] = -torch.inf
    return block, tensors


def seen(heads: int = 2, **given: Any) -> tuple[AttentionMap, ...]:
    block, tensors = asked(heads, **given)
    with seen_attention(block) as calls:
        block(**tensors, scale=0.5)
    return calls[0].maps("translation", QUERIES, KEYS, row=1)


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_weights_are_those_of_the_problem(estimator):
    maps = seen(estimator=estimator)
    _, tensors = asked()
    assert [one.title for one in maps] == ["translation, head 1", "translation, head 2"]
    for head, one in enumerate(maps):
        templates = 0.5 * tensors["templates"][1, head].double()
        evidence = tensors["evidence"][1, head, :3].double()
        log_preference = tensors["log_preference"][1, 0].double()
        by_hand = (log_preference + 1.3 * evidence @ templates.mT).softmax(-1)
        torch.testing.assert_close(one.first_order, by_hand[:, :4])
        exact = InferenceProblem(Discrete(templates, log_preference), evidence, 1.3).solve("exact", tol=1e-10)
        distance = (exact.weights[:, :4] - one.exact).abs().sum(-1) / 2
        assert bool((distance <= one.error + 1e-9).all())
        torch.testing.assert_close(one.moved, (one.exact - one.first_order).abs().sum(-1) / 2)
        assert one.estimator == estimator
        assert bool(one.solved.all())
        assert json.loads(json.dumps(one.to_json()))["exact"] == one.exact.tolist()


def test_another_closeness_is_solved_as_such():
    (one,) = seen(1, closeness="sparsemax")
    assert bool((one.first_order == 0).any())
    torch.testing.assert_close(one.exact.sum(-1), torch.ones(3, dtype=torch.float64))


def test_steps_of_a_decoder_are_rows_of_one_map():
    block, tensors = asked(1)
    evidence = tensors.pop("evidence")
    with seen_attention(block) as calls:
        block(**tensors, evidence=evidence)
        with block.steps():
            for step in range(5):
                block(**tensors, evidence=evidence[:, :, [step]])
    whole, stepped = (call.maps("t", QUERIES, KEYS, row=1)[0] for call in calls)
    torch.testing.assert_close(whole.exact, stepped.exact)


def test_a_key_with_weight_has_to_have_a_name():
    block, tensors = asked(1)
    with seen_attention(block) as calls:
        block(**tensors)
    with pytest.raises(InputError, match="keys after the first 4 have weight"):
        calls[0].maps("t", QUERIES, KEYS, row=0)
    with pytest.raises(InputError, match="there are 3 names of 5 queries and 7 of 6 keys"):
        calls[0].maps("t", QUERIES, list("abcdefg"), row=0)


def test_nobody_looks_on_afterwards():
    block, _ = asked()
    with pytest.raises(FenchelError), seen_attention(block):
        block(*torch.ones(3, 1, 1, 1, 1))
    assert block.onlooker is None
    assert "onlooker" not in block.__dict__


def drawn(first_order: list[list[float]], **given: object) -> AttentionMap:
    weights = torch.tensor(first_order, dtype=torch.float64)
    rows = len(first_order)
    values: dict[str, object] = {
        "queries": ("ein", "Wort\x1b[31m"),
        "keys": ("one", "two", "three"),
        "first_order": weights,
        "exact": weights.flip(-1),
        "moved": torch.full((rows,), 0.25, dtype=torch.float64),
        "error": torch.full((rows,), 3.2e-9, dtype=torch.float64),
        "solved": torch.ones(rows, dtype=torch.bool),
        "estimator": "first_order",
    }
    return AttentionMap("a map", **{**values, **given})  # pyright: ignore[reportArgumentType]


def test_the_terminal_shows_shades_names_and_certificates():
    text = terminal_map(drawn([[0.75, 0.24, 0.01], [0.1, 0.45, 0.45]]))
    lines = text.splitlines()
    assert "█ above 0.7" in " ".join(lines)
    assert "first order" in text  # however few keys there are
    row = next(line for line in lines if line.startswith("ein"))
    assert row.split() == ["ein", "██▒▒", "▒▒██", "0.2500", "≤", "4e-9"]
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in lines)


def test_what_is_not_solved_is_said_and_wide_maps_stand_above_each_other():
    narrow = terminal_map(
        drawn([[0.75, 0.24, 0.01]], queries=("ein",), solved=torch.tensor([False])), width=30
    )
    assert narrow.count("██") == 2
    assert "not solved to the tolerance" in narrow
    assert narrow.index("first order") < narrow.index("exact")


@pytest.mark.parametrize(("value", "said"), [(0.0, "0"), (1.01e-9, "2e-9"), (9.5e-5, "1e-4"), (0.5, "0.500")])
def test_bounds_are_never_rounded_down(value, said):
    assert short_bound(value) == said
