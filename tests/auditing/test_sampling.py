"""A sample of each window's queries: who is drawn, what is measured of them, and what is refused."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import SiglipConfig

from fenchel.auditing import measure as measuring
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import METRICS
from fenchel.auditing.manifest import sample_words
from fenchel.auditing.measure import sample_size, sampled_queries
from fenchel.auditing.report import terminal_table
from fenchel.auditing.report.findings import summary_sentence
from fenchel.auditing.report.html import command
from fenchel.auditing.run import audit
from fenchel.auditing.solution import solutions_of
from fenchel.comparing import compare
from fenchel.comparing.report import terminal_table as comparing_table
from fenchel.drawing import short
from fenchel.errors import InputError
from tests.auditing.small_audits import PLACE, rows_of, small_audit, small_model
from tests.pages import shown
from tests.tiny_models import tiny_model

LONG: dict[str, Any] = {"max_length": 20, "stride": 18}


def drawn(
    size: int, seed: int, counted: torch.Tensor, documents: tuple[int, ...], kind: str = "encoder_self"
) -> Any:
    """What is drawn of a batch with these counted positions."""
    batch: Any = SimpleNamespace(documents=documents, windows=(1,) * len(documents))
    call: Any = SimpleNamespace(counted=counted, site=SimpleNamespace(kind=kind))
    return sampled_queries(call, batch, size, seed=seed)


def test_every_query_is_as_likely_as_any_other() -> None:
    counted = torch.ones(1, 12, dtype=torch.bool)
    counted[0, [0, 7]] = False
    times, alone = torch.zeros(12), torch.zeros(12)
    for seed in range(2000):
        found = drawn(3, seed, counted, (4,))
        chosen = torch.zeros(12).index_fill(0, found.index[0][found.there[0]], 1)
        assert int(chosen.sum()) == 3
        times += chosen
        alone += chosen * chosen[5]
    assert times[[0, 7]].tolist() == [0, 0]
    others = [place for place in range(12) if place not in (0, 5, 7)]
    # 600 of 2,000 times, and in 2 of 9 pairs with another: five standard deviations either way.
    assert (times[[5, *others]] - 600).abs().max() < 5 * (2000 * 0.3 * 0.7) ** 0.5
    assert (alone[others] / times[5] - 2 / 9).abs().max() < 5 * (2 / 9 * 7 / 9 / 600) ** 0.5


def test_a_window_is_drawn_alike_wherever_it_stands() -> None:
    counted = torch.ones(3, 40, dtype=torch.bool)
    together = drawn(5, 1, counted, (1, 2, 3))
    alone = drawn(5, 1, counted[:1, :30], (2,))
    # Among fewer positions the same ones are taken, and others in the place of those that are not there.
    assert set(together.index[1][together.index[1] < 30].tolist()) <= set(alone.index[0].tolist())
    assert together.index[1].tolist() == drawn(5, 1, counted[:1], (2,)).index[0].tolist()
    assert together.index[0].tolist() != drawn(5, 2, counted[:1], (1,)).index[0].tolist()
    assert together.index[0].tolist() != drawn(5, 1, counted[:1], (1,), "cross").index[0].tolist()
    larger = drawn(9, 1, counted, (1, 2, 3))
    assert all(
        set(few) < set(many) for few, many in zip(together.index.tolist(), larger.index.tolist(), strict=True)
    )


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, AuditReport]]:
    """A folder with an audit of all queries of a causal model and one of some, which no test changes; their reports."""
    folder, options = tmp_path_factory.mktemp("audits"), {**LONG, "tol": 1e-9, "model": small_model("gpt2")}
    every = small_audit(directory=folder / "all", queries="all", **options)
    some = small_audit(directory=folder / "some", queries=5, baseline="twin", **options)
    return folder, {"all": every, "some": some}


def test_sampled_queries_have_the_values_of_a_full_audit_and_stand_for_those_of_their_window(
    audits: tuple[Path, dict[str, AuditReport]],
) -> None:
    report = audits[1]["some"]
    every, some = (rows_of(audits[0] / name) for name in ("all", "some"))
    of_place = {tuple(row[name] for name in PLACE): row for row in every}
    whole, drawn_of = (
        Counter(tuple(row[name] for name in PLACE[:-1]) for row in rows) for rows in (every, some)
    )
    assert 0 < len(some) == sum(record["queries"] for record in report.heads) < len(every)
    for row in some:
        same = of_place[tuple(row[name] for name in PLACE)]
        names = ("token", "leaves", "reaches", "class")
        assert [row[name] for name in names] == [same[name] for name in names]
        for metric in METRICS:
            assert row[metric] == pytest.approx(same[metric], rel=1e-5), metric
        window = tuple(row[name] for name in PLACE[:-1])
        assert drawn_of[window] == min(5, whole[window])
        assert row["weight"] == pytest.approx(whole[window] / drawn_of[window])
    for record in report.heads:
        own = [row for row in some if (row["layer"], row["head"]) == (record["layer"], record["head"])]
        weights = [row["weight"] for row in own]
        assert record["population"] == report.manifest["tokens"] == pytest.approx(sum(weights))
        for metric in METRICS:
            mean = np.average([row[metric] for row in own], weights=weights)
            assert record[f"{metric}_mean"] == pytest.approx(mean, rel=1e-6)
    sampled = {tuple(row[name] for name in PLACE) for row in some}
    for key, examples in report.far_queries.items():
        assert {(*key, one.document, one.window, one.position) for one in examples} <= sampled
    # All layers and heads, and the twin's, answer the same queries.
    twin: Any = report.twin
    assert {tuple(row[name] for name in PLACE) for row in twin.table.rows().to_dicts()} == sampled
    assert {place[3:] for place in sampled} == {place[3:] for place in sampled if place[1:3] == (2, 3)}


@pytest.mark.parametrize("space", ["input", "key"])
def test_only_the_sampled_rows_are_solved(monkeypatch: pytest.MonkeyPatch, space: Any) -> None:
    solved: list[int] = []

    def count(problem: Any, *arguments: Any, **options: Any) -> Any:
        solved.append(problem.queries.shape[:3].numel())
        return solutions_of(problem, *arguments, **options)

    monkeypatch.setattr(measuring, "solutions_of", count)
    model = tiny_model("gpt2", n_positions=2048)
    heads = 4
    ids = torch.arange(2048).reshape(1, -1) % 50
    report = audit(model, None, [{"input_ids": ids}], queries=16, layers=[1], space=space)
    assert solved == [16 * heads]
    assert {record["queries"] for record in report.heads} == {16}
    assert {record["population"] for record in report.heads} == {2048}


def test_a_sample_larger_than_the_queries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="queries is 12, but the longest window has 12"):
        small_audit(max_length=12, queries=12, directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_size_of_a_sample_by_default_follows_from_sizes(tmp_path: Path) -> None:
    texts = [" ".join(f"w{(7 * place + number) % 60}" for place in range(70)) for number in range(3)]
    found = small_audit(texts, max_length=60, stride=58, directory=tmp_path)
    size: Any = sample_size("auto", small_model(), length=60)
    assert found.manifest["queries"] == size
    assert found.statistics.sampled
    assert sample_size("all", small_model(), length=60) is None
    assert sample_size("auto", small_model(), length=None) is None
    assert sample_size("auto", small_model(), length=60, max_tokens=10**12) == 1
    width = {"hidden_size": small_model().config.hidden_size}
    nested = SimpleNamespace(config=SiglipConfig(text_config=width))
    assert sample_size("auto", cast(Any, nested), length=60) == size
    assert "queries='all'" in command(small_audit(texts[:1], queries="all").manifest)


def test_reports_say_what_was_sampled(audits: tuple[Path, dict[str, AuditReport]], tmp_path: Path) -> None:
    folder, report = audits[0], audits[1]["some"]
    comparison = compare(folder / "all", folder / "some", directory=tmp_path)
    error = report.statistics.of("decoder_self", 1)["total_variation_se"]
    assert f"±{short(error)}" in shown(terminal_table(report))
    assert "±" not in shown(terminal_table(small_audit(["w1 w2"])))
    pages = [(folder / "some" / "report.html").read_text(), (tmp_path / "compare.html").read_text()]
    tables = [shown(terminal_table(report)), shown(comparing_table(comparison))]
    for text in (*tables, summary_sentence(report), *pages):
        assert str(sample_words(5)) in " ".join(text.split())
    assert "of each window" not in (folder / "all" / "report.html").read_text()
    assert "--queries 5" in command({**report.manifest, "texts": "a.txt", "model": "demo", "revision": None})
