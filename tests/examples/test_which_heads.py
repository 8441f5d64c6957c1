"""examples/which_heads.py on a layer whose loss is linear in what its heads give."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

import which_heads
from fenchel.errors import InputError
from fenchel.nn import MultiheadAttention

LOADER = """
import torch
from tests.examples.test_which_heads import Linear, loss

def load(folder):
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(4):
        states = torch.randn(50, 6, 8, generator=generator)
        padding = torch.arange(6) >= torch.randint(3, 7, (50, 1), generator=generator)
        batches.append({"inputs": {"states": states, "padding": padding}, "counted": ~padding, "loss": loss})
    return Linear(), batches
"""


class Linear(nn.Module):
    """One layer of four heads, of which the last gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = MultiheadAttention(8, 4, batch_first=True)
        self.attention.out_proj.weight.data[:, 6:] = 0

    def forward(self, states: Tensor, padding: Tensor) -> Tensor:
        attended = self.attention(states, states, states, key_padding_mask=padding, need_weights=False)[0]
        return attended.masked_fill(padding.unsqueeze(-1), 0)


def loss(output: Tensor) -> Tensor:
    return (output * torch.arange(8.0)).sum((1, 2))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    loader = tmp_path_factory.mktemp("run") / "loader.py"
    loader.write_text(LOADER)
    return which_heads.measure(which_heads.MeasureOptions(loader=str(loader), rows=100), str(loader.parent))


def by_hand(found: dict[str, Any], removed: list[int], part: int) -> Tensor:
    """The loss of each row of a half of the batches without some heads."""
    known: dict[str, Any] = {}
    exec(LOADER, known)  # noqa: S102
    model, batches = known["load"](None)
    for head in removed:
        model.attention.out_proj.weight.data[:, 2 * head - 2 : 2 * head] = 0
    with torch.no_grad():
        return torch.cat([loss(model(**batch["inputs"])) for batch in batches[part::2]])


def test_heads_are_removed_as_by_hand(found: dict[str, Any]) -> None:
    assert found["rows"] == [100, 100]
    whole = by_hand(found, [], 1)
    assert found["loss"] == pytest.approx(float(whole.mean()), abs=1e-4)
    for head in found["heads"]:
        rise = float((by_hand(found, [head["head"]], 1) - whole).mean())
        assert head["zero"] == pytest.approx(rise, abs=1e-4)
        elsewhere = by_hand(found, [head["head"]], 0) - by_hand(found, [], 0)
        assert head["zero_elsewhere"] == pytest.approx(float(elsewhere.mean()), abs=1e-4)
    least = sorted(found["heads"], key=lambda head: head["entropy"])[:2]
    rise = float((by_hand(found, [head["head"] for head in least], 1) - whole).mean())
    assert found["together"]["entropy"][-1] == pytest.approx(rise, abs=1e-3)


def test_the_gradient_of_a_linear_loss_is_the_effect_of_removal(found: dict[str, Any]) -> None:
    whole = by_hand(found, [], 0)
    for head in found["heads"]:
        expected = float((by_hand(found, [head["head"]], 0) - whole).abs().mean())
        assert head["gradient"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    last = found["heads"][-1]
    assert [last[name] for name in ("map_norm", "mean_output_norm", "output_norm", "gradient")] == [0] * 4
    assert all(np.isfinite([head[name] for head in found["heads"] for name in which_heads.OF_AUDIT]))


def test_correlations_are_those_of_scipy_and_orders_are_averaged(
    found: dict[str, Any], tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.integers(5, size=(3, 20)), draw.normal(size=(3, 20))
    expected = [spearmanr(*pair)[0] for pair in zip(x, y, strict=True)]
    assert which_heads.spearman(x, y) == pytest.approx(expected)
    (tmp_path / "run.json").write_text(json.dumps(found))
    files = [str(tmp_path / "run.json")] * 2
    told = which_heads.TableOptions(group=["a", "a"], out=str(tmp_path / "all.json"))
    which_heads.table(told, files)
    made = json.loads((tmp_path / "all.json").read_text())["summary"]["a"]
    zero, gradient = ([head[name] for head in found["heads"]] for name in ("zero", "gradient"))
    assert made["gradient"]["zero"]["rho"] == pytest.approx(spearmanr(zero, gradient)[0])
    assert (
        made["gradient"]["zero"]["low"] <= made["gradient"]["zero"]["rho"] <= made["gradient"]["zero"]["high"]
    )
    random = [rises for name, rises in found["together"].items() if name.startswith("random")]
    assert made["random"]["together"] == pytest.approx(np.mean(random, 0))
    assert len(random) == which_heads.ORDERS
    assert made["layer"]["zero"]["rho"] == 0  # of a constant
    with pytest.raises(InputError, match="2 files and 1 names"):
        which_heads.table(which_heads.TableOptions(group=["a"]), files)


def test_one_batch_is_refused() -> None:
    with pytest.raises(InputError, match="two are needed"):
        which_heads.halves([{}], 100)
