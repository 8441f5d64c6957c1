"""Deviation against effect: only for the same model and text, head by head."""

from types import SimpleNamespace
from typing import Any

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import AttentionModule, HeadKey
from fenchel.auditing.swap_effects import is_module
from fenchel.errors import InputError
from fenchel.swap import SwapReport, swap
from tests.auditing.small_audits import small_audit, small_model, some_texts
from tests.io.test_windows import word_tokenizer


@pytest.fixture(scope="module")
def audited() -> AuditReport:
    return small_audit(model=small_model(), texts=some_texts(), space="key")


@pytest.fixture(scope="module")
def swapped() -> SwapReport:
    return swap(
        small_model(),
        word_tokenizer(),
        some_texts(),
        per_head=True,
        layers=[2],
        alphas=[0.8, 1.2],
        bootstrap=100,
        max_length=12,
    )


def changed(swapped: SwapReport, **manifest: Any) -> Any:
    return SimpleNamespace(manifest={**swapped.manifest, **manifest}, arms=swapped.arms)


def test_heads_stand_beside_what_changes_when_they_infer_exactly(
    audited: AuditReport, swapped: SwapReport
) -> None:
    effects = audited.beside_swap(swapped).effects
    assert effects is not None
    assert [head.key for head in effects.heads] == [HeadKey("encoder_self", 2, head) for head in (1, 2, 3, 4)]
    for head in effects.heads:
        record = next(r for r in audited.heads if (r["layer"], r["head"]) == head.key[1:])
        assert head.deviations["total_variation"] == record["total_variation_mean"]
        arm = swapped.arm("exact", layer=2, head=head.key.head)
        assert (head.effect, head.low, head.high) == (
            arm["hidden_change"],
            arm["hidden_change_low"],
            arm["hidden_change_high"],
        )
        controls = [swapped.arm("first_order", alpha, layer=2, head=head.key.head) for alpha in (0.8, 1.2)]
        same = sorted(control["hidden_change"] for control in controls)
        assert head.same_by_alpha == tuple(same)
    assert effects.note == ""
    assert effects.to_json()["heads"][0]["head"] == 1
    assert audited.effects is None


def test_the_rank_correlation_is_spearmans(audited: AuditReport, swapped: SwapReport) -> None:
    from scipy.stats import spearmanr

    effects = audited.beside_swap(swapped).effects
    assert effects is not None
    for name in ("total_variation", "mean_error"):
        deviations = [head.deviations[name] for head in effects.heads]
        found: Any = spearmanr(deviations, [head.effect for head in effects.heads])
        assert effects.rank_correlation[name] == pytest.approx(found.statistic)


def test_another_space_is_said(swapped: SwapReport) -> None:
    audited = small_audit(model=small_model(), texts=some_texts(), space="input")
    effects = audited.beside_swap(swapped).effects
    assert effects is not None
    assert "Audit with --space key" in effects.note


@pytest.mark.parametrize(
    ("audit", "manifest", "of_arms", "message"),
    [
        ({}, {"model": "other"}, {}, "model: 'BertModel' in the audit, 'other' in the swap"),
        ({}, {"text_sha256": "ab"}, {}, "text sha256: .* in the swap"),
        ({}, {"revision": "main"}, {}, "revision: None in the audit, 'main' in the swap"),
        ({"alpha": 0.5}, {}, {}, r"alpha: 0\.5 in the audit, 1\.0 in every swap"),
        ({}, {}, {"where": "model"}, r"no head that infers exactly alone.*--per-head"),
        ({"layers": [1]}, {}, {}, "no head is both in the audit and swapped alone"),
    ],
)
def test_a_swap_of_something_else_is_refused(
    swapped: SwapReport,
    audit: dict[str, Any],
    manifest: dict[str, Any],
    of_arms: dict[str, Any],
    message: str,
) -> None:
    arms = [{**arm, **of_arms} for arm in swapped.arms]
    other: Any = SimpleNamespace(manifest={**swapped.manifest, **manifest}, arms=arms)
    with pytest.raises(InputError, match=message):
        small_audit(model=small_model(), **audit).beside_swap(other)


@pytest.mark.parametrize("given", [3, None, "a folder"])
def test_what_is_no_swap_is_refused(audited: AuditReport, given: Any) -> None:
    with pytest.raises(InputError, match=r"swap is .*; expected what fenchel\.swap\.swap returned"):
        audited.beside_swap(given)


@pytest.mark.parametrize(
    ("audited", "swapped", "same"),
    [
        ("layer.0.attention", "layer.0.attention", True),
        ("encoder.layer.0.attention", "bert.encoder.layer.0.attention", True),
        ("encoder.layer.0.attention", "layer.0.attention", True),
        ("decoder.layer.0.attention", "layer.0.attention", False),
        ("layer.0.attention", "decoder.layer.0.attention", False),
        ("decoder.layers.0.attention", "model.decoder.layers.0.attention", True),
        ("layer.10.attention", "layer.0.attention", False),
    ],
)
def test_layers_are_told_by_their_modules(audited: str, swapped: str, same: bool) -> None:
    key = HeadKey("encoder_self", 1, 1)
    modules = {("encoder_self", 1): AttentionModule(audited, 1)}
    assert is_module({"module": swapped}, key, modules) is same  # pyright: ignore[reportArgumentType]
