"""Relative attention against templates that are written out, query by query."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fenchel
from fenchel import functional as F
from fenchel.functional import relative
from fenchel.functional.relative import distance_index, of_pairs, to_rows

BATCH, HEADS, M, N, DIM = 2, 3, 4, 6, 5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def call(by: str = "distance", queries: int = M) -> dict[str, Any]:
    """Tensors of a call, all of which want gradients."""
    rows = queries + N - 1 if by == "distance" else 7
    index = {
        "distance": None,
        "shared": torch.randint(7, (queries, N), generator=torch.Generator().manual_seed(1)),
        "batch": torch.randint(7, (BATCH, queries, N), generator=torch.Generator().manual_seed(2)),
    }[by]
    return {
        "query": drawn(BATCH, HEADS, queries, DIM).requires_grad_(),
        "key": drawn(BATCH, HEADS, N, DIM, seed=1).requires_grad_(),
        "value": drawn(BATCH, HEADS, N, 2, seed=2).requires_grad_(),
        "relative": drawn(1 if by == "distance" else BATCH, HEADS, rows, DIM, seed=3).requires_grad_(),
        "index": index,
        "log_preference": drawn(HEADS, queries, N, seed=4).requires_grad_(),
        "alpha": drawn(HEADS, 1, seed=5).exp().requires_grad_(),
    }


def templates(given: dict[str, Any], scale: float | Tensor = DIM**-0.5) -> Tensor:
    """(B, H, m, n, d), one pair after another."""
    m = given["query"].shape[2]
    relative, index = given["relative"].expand(BATCH, HEADS, -1, -1), given["index"]

    def row(b: int, i: int, j: int) -> int:
        return j - i + m - 1 if index is None else int(index[i, j] if index.dim() == 2 else index[b, i, j])

    pairs = [
        torch.stack(
            [
                torch.stack([given["key"][b, :, j] + relative[b, :, row(b, i, j)] for j in range(N)], 1)
                for i in range(m)
            ],
            1,
        )
        for b in range(BATCH)
    ]
    return torch.stack(pairs) * scale


def written_out(given: dict[str, Any], log_u: Tensor, relative_value: Tensor | None = None) -> Tensor:
    scores = torch.einsum("bhid,bhijd->bhij", given["query"], templates(given))
    weights = (given["alpha"].unsqueeze(-1) * scores + log_u).softmax(-1)
    output = weights @ given["value"]
    if relative_value is None:
        return output
    index = (
        distance_index(given["query"].shape[2], N, log_u.device) if given["index"] is None else given["index"]
    )
    return output + torch.einsum("bhij,hijd->bhid", weights, relative_value[0][:, index])


def gradients(output: Tensor, given: dict[str, Any]) -> dict[str, Tensor]:
    wanted = {name: one for name, one in given.items() if isinstance(one, Tensor) and one.requires_grad}
    found = torch.autograd.grad(
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum(), [*wanted.values()]
    )
    return dict(zip(wanted, found, strict=True))


@pytest.mark.parametrize("queries", [1, M])
@pytest.mark.parametrize("by", ["distance", "shared", "batch"])
def test_first_order_is_the_softmax_of_scores_with_templates_written_out(by, queries):
    given = call(by, queries)
    found, expected = F.relative_attention(**given), written_out(given, given["log_preference"])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, given), gradients(expected, given))


def test_values_may_have_vectors_of_pairs_too():
    given = call("shared")
    given["relative_value"] = drawn(1, HEADS, 7, 2, seed=8).requires_grad_()
    found = F.relative_attention(**given)
    expected = written_out(given, given["log_preference"], given["relative_value"])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, given), gradients(expected, given))


def test_masks_scales_and_few_heads_of_keys():
    given = call()
    mask = distance_index(M, N, given["key"].device) <= M + 1
    mask[2] = False
    given["log_preference"] = mask
    found = F.relative_attention(**given)
    log_u = torch.zeros(M, N, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    expected = written_out(given, log_u).nan_to_num(0)
    torch.testing.assert_close(found, expected)
    assert not found[:, :, 2].any()
    tripled = {**given, "query": given["query"] * 3 * DIM**-0.5, "scale": torch.tensor(1 / 3)}
    torch.testing.assert_close(F.relative_attention(**tripled), expected)
    one = {**given, "key": given["key"][:, :1], "value": given["value"][:, :1], "enable_gqa": True}
    every = {**given, **{name: one[name].expand(-1, HEADS, -1, -1) for name in ("key", "value")}}
    for estimator in ("first_order", "exact"):
        torch.testing.assert_close(
            F.relative_attention(**one, estimator=estimator),
            F.relative_attention(**every, estimator=estimator),
        )


def problems(given: dict[str, Any], closeness: Any = None) -> list[tuple[int, int, int, Any, Tensor]]:
    """Every query as a problem of the core, with templates of its own."""
    every, log_u = templates(given), given["log_preference"]
    found = []
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (BATCH, HEADS, M))).tolist():
        options = {} if closeness is None else {"closeness": closeness}
        problem = fenchel.InferenceProblem(
            fenchel.Discrete(every[b, h, i], log_u[h, i]),
            given["query"][b, h, i : i + 1],
            alpha=float(given["alpha"][h, 0]),
            **options,
        )
        found.append((b, h, i, problem, given["value"][b, h]))
    return found


@pytest.mark.parametrize("closeness", [None, fenchel.Tsallis(1.5)])
@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_every_estimator_infers_each_query_with_its_own_templates(estimator, closeness):
    given = {name: one.detach() if isinstance(one, Tensor) else one for name, one in call().items()}
    options = {**given, "estimator": estimator, "closeness": closeness}
    output, certificate = F.relative_attention_with_certificate(**options)
    torch.testing.assert_close(F.relative_attention(**options), output)
    weights = F.relative_attention_weights(**{name: one for name, one in options.items() if name != "value"})
    torch.testing.assert_close(weights @ given["value"], output)
    for b, h, i, problem, value in problems(given, closeness):
        solved = problem.solve(estimator, **({"tol": 1e-10} if estimator == "exact" else {}))
        torch.testing.assert_close(weights[b, h, i], solved.weights[0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(output[b, h, i], (solved.weights @ value)[0], rtol=1e-6, atol=1e-8)
        if estimator != "exact":
            torch.testing.assert_close(certificate.gap[b, h, i], solved.gap[0], rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(
                certificate.mean_error[b, h, i], solved.mean_error[0], rtol=1e-6, atol=1e-9
            )
        else:
            assert certificate.gap[b, h, i] < 1e-12


@pytest.mark.parametrize("estimator", ["second_order", "exact"])
def test_gradients_of_what_is_solved_are_those_of_differences(estimator):
    given = call("shared")
    output = F.relative_attention(**given, estimator=estimator)
    found = gradients(output, given)
    weight = torch.linspace(-1, 1, output.numel()).view_as(output)
    step = 1e-5
    for name in ("query", "relative", "alpha", "log_preference"):
        along = drawn(*given[name].shape, seed=11)
        both = [
            (
                F.relative_attention(
                    **{**given, name: given[name] + sign * step * along}, estimator=estimator
                )
                * weight
            ).sum()
            for sign in (1, -1)
        ]
        assert float((found[name] * along).sum().detach()) == pytest.approx(
            float((both[0] - both[1]).detach()) / (2 * step), rel=1e-5
        )


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_the_gap_is_the_certificates_and_has_gradients(estimator):
    given = call()
    without = {name: one for name, one in given.items() if name != "value"}
    found = F.relative_gap(**without, estimator=estimator)
    _, certificate = F.relative_attention_with_certificate(**given, estimator=estimator)
    torch.testing.assert_close(found.detach(), certificate.gap)
    own = gradients(found, without)
    weight = torch.linspace(-1, 1, found.numel()).view_as(found)
    along = drawn(*given["relative"].shape, seed=12)
    both = [
        (
            F.relative_gap(
                **{**without, "relative": given["relative"] + sign * 1e-5 * along}, estimator=estimator
            )
            * weight
        ).sum()
        for sign in (1, -1)
    ]
    assert float((own["relative"] * along).sum().detach()) == pytest.approx(
        float((both[0] - both[1]).detach()) / 2e-5, rel=1e-5
    )


def test_blocks_of_queries_change_nothing(monkeypatch):
    given = call("batch")
    whole = F.relative_attention(**given, estimator="exact")
    monkeypatch.setattr(relative, "BLOCK_ENTRIES", 1)
    torch.testing.assert_close(F.relative_attention(**given, estimator="exact"), whole, rtol=1e-7, atol=1e-9)


def test_first_order_never_writes_templates_out(monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("templates were written out")

    monkeypatch.setattr("fenchel.functional.relative._by_query", refuse)
    given = call()
    assert F.relative_attention(**given).shape == (BATCH, HEADS, M, 2)
    assert F.relative_attention_with_certificate(**given)[1].gap.shape == (BATCH, HEADS, M)


def test_dropout_is_of_weights():
    given = call()
    torch.manual_seed(0)
    dropped = torch.stack([F.relative_attention(**given, dropout_p=0.5) for _ in range(400)])
    torch.testing.assert_close(dropped.mean(0), F.relative_attention(**given), rtol=0.5, atol=0.3)
    assert dropped.std(0).min() > 0


def test_a_query_with_nothing_to_ask_of_is_certain():
    given = call()
    given["query"] = torch.zeros_like(given["query"])
    _, certificate = F.relative_attention_with_certificate(**given)
    assert not certificate.gap.any()


def test_rows_are_read_and_added_up_as_an_index_says():
    by_row = drawn(2, M, M + N - 1)
    index = distance_index(M, N, by_row.device)
    torch.testing.assert_close(of_pairs(by_row, None, N), of_pairs(by_row, index, N))
    of_pair = drawn(2, M, N)
    torch.testing.assert_close(to_rows(of_pair, None, M + N - 1), to_rows(of_pair, index, M + N - 1))
    # Each is the other's transpose.
    torch.testing.assert_close(
        (of_pairs(by_row, None, N) * of_pair).sum(), (by_row * to_rows(of_pair, None, M + N - 1)).sum()
    )
