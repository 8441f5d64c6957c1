"""The key whose weight moves most: against the weights themselves, and as the columns of the files of queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel import Discrete, InferenceProblem
from fenchel.auditing.measure import measure
from tests.auditing.small_audits import small_audit, small_model
from tests.auditing.test_measure import call
from tests.io.test_windows import word_tokenizer
from tests.tiny_models import tiny_images, tiny_model


@pytest.mark.parametrize("memory_budget", [1, 10**9])
@pytest.mark.parametrize("preference", ["padding", "causal"])
def test_it_is_the_largest_difference_of_the_weights(preference: str, memory_budget: int) -> None:
    attended = call(preference)
    found = measure(attended, space="key", tol=1e-11, memory_budget=memory_budget, moves=True).moves
    assert found is not None
    n = attended.key.shape[2]
    assert attended.log_preference is not None
    log_u = attended.log_preference.expand(2, 4, n, n)
    for b in range(2):
        counted = attended.counted[b]
        for h in range(4):
            u = Discrete(attended.key[b, h] * attended.scaling, log_u[b, h, counted])
            problem = InferenceProblem(u, attended.query[b, h, counted])
            change = problem.solve("exact", tol=1e-12).weights - problem.solve("first_order").weights
            moved = change.gather(-1, found.positions[b, h, counted].unsqueeze(-1)).squeeze(-1)
            # Of two keys what one loses the other gains.
            torch.testing.assert_close(moved.abs(), change.abs().amax(-1), rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(found.changes[b, h, counted].double(), moved, rtol=1e-6, atol=1e-9)


def test_it_is_not_looked_for_where_nobody_asks() -> None:
    assert measure(call(), space="key").moves is None


def rows_of(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(folder / "queries-00000.parquet").to_pylist()


def test_kept_queries_name_their_token_and_the_key(tmp_path: Path) -> None:
    small_audit(["w5 w6 w5", "w7"], directory=tmp_path, keep_queries=True)
    rows = rows_of(tmp_path)
    words = {1: ("[CLS]", "w5", "w6", "w5", "[SEP]"), 2: ("[CLS]", "w7", "[SEP]")}
    for row in rows:
        document = words[row["document"]]
        assert row["token_text"] == document[row["position"] - 1]
        assert row["moved_text"] == document[row["moved_position"] - 1]
        assert 0 < abs(row["moved_weight"]) <= row["total_variation"] * (1 + 1e-5)
    assert len({row["moved_position"] for row in rows}) > 1
    assert {row["moved_weight"] > 0 for row in rows} == {True, False}


def test_keys_of_cross_attention_are_tokens_of_the_encoder(tmp_path: Path) -> None:
    texts = tmp_path / "pairs.jsonl"
    texts.write_text('{"text": "w1 w2 w3 w4", "target": "w9 w8"}\n')
    given: dict[str, Any] = {"target_column": "target", "stride": None, "directory": tmp_path / "out"}
    small_audit(texts, model=small_model("t5"), keep_queries=True, **given)
    rows = rows_of(tmp_path / "out")
    sides = {
        kind: (
            {row["token_text"] for row in rows if row["kind"] == kind},
            {row["moved_text"] for row in rows if row["kind"] == kind},
        )
        for kind in ("encoder_self", "decoder_self", "cross")
    }
    encoder, decoder = {"[CLS]", "w1", "w2", "w3", "w4", "[SEP]"}, {"[PAD]", "[CLS]", "w9", "w8", "[SEP]"}
    assert sides["encoder_self"][0] == encoder
    assert sides["encoder_self"][1] <= encoder
    assert sides["decoder_self"][0] == sides["cross"][0] <= decoder
    assert sides["decoder_self"][1] <= decoder
    assert sides["cross"][1] <= encoder


def test_what_is_no_text_has_none(tmp_path: Path) -> None:
    from fenchel.auditing.run import audit

    audit(tiny_model("vit"), None, [tiny_images()], directory=tmp_path / "images", keep_queries=True)
    assert {(row["token"], row["token_text"], row["moved_text"]) for row in rows_of(tmp_path / "images")} == {
        (-1, None, None)
    }
    ids = {"input_ids": torch.tensor([[2, 9, 3]])}
    audit(small_model(), None, [ids], directory=tmp_path / "ids", keep_queries=True)
    assert {(row["token"], row["token_text"]) for row in rows_of(tmp_path / "ids")} == {
        (2, None),
        (9, None),
        (3, None),
    }
    assert word_tokenizer().decode([9]) == "w5"
