"""docs/faq.md quotes the library: each message is provoked here, and each that is quoted is provoked."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fenchel
from fenchel.errors import FenchelError, require_packages
from fenchel.nn import MultiheadAttention
from tests.normal import drawn
from tests.pages import page
from tests.tiny_models import tiny_model

pytest.importorskip("transformers")

PAGE = "docs/faq.md"

Provocation = Callable[[Path, pytest.MonkeyPatch], Any]


def quoted() -> list[tuple[str, str]]:
    """The heading and the words of each message."""
    sections = re.split(r"^### ", page(PAGE), flags=re.MULTILINE)[1:]
    block = re.compile(r"```text\n(.*?)\n```", re.DOTALL)
    return [(one.splitlines()[0], words) for one in sections for words in block.findall(one)]


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiheadAttention(8, 2, batch_first=True)
        self.t = torch.nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


def audited(texts: Any = None, model: Any = None, **options: Any) -> Any:
    texts = [{"input_ids": torch.tensor([[1, 2, 3]])}] if texts is None else texts
    return fenchel.audit(model or tiny_model("llama"), None, texts, baseline="none", **options)


def offline(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fenchel.audit("bert-bas-uncased", None, ["some text"])


def without_matplotlib(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(importlib.util, "find_spec", lambda name: None)
    require_packages("report", "matplotlib")


def twice(folder: Path, _: pytest.MonkeyPatch) -> None:
    for _number in range(2):
        audited(space="key", directory=folder / "audit")


def problem(**changes: Any) -> fenchel.InferenceProblem:
    said: dict[str, Any] = {
        "preference": fenchel.Discrete(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])),
        "evidence": torch.tensor([[0.8, -0.2]]),
        **changes,
    }
    return fenchel.InferenceProblem(said.pop("preference"), said.pop("evidence"), **said)


def hard_to_solve(*_: object) -> None:
    templates, evidence = drawn(20, 3, scale=30), drawn(1, 3, seed=1, scale=30)
    problem(preference=fenchel.Discrete(templates), evidence=evidence).solve("exact", tol=1e-12, max_steps=1)


LAYER = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
ENCODER = torch.nn.TransformerEncoder(LAYER, 1, enable_nested_tensor=False).eval()
CAPTURED = "Attention that is not captured"
NOTHING = torch.full((3,), -torch.inf)
GAMMA = fenchel.Gamma(torch.tensor([2.0]), torch.tensor([1.0]))
PROVOKED: list[tuple[str, Provocation]] = [
    ("A model that cannot be found", offline),
    ("A package that is missing", without_matplotlib),
    ("A folder that holds an audit already", twice),
    ("Rotary positions", lambda *_: audited(space="input")),
    (CAPTURED, lambda *_: audited([{"x": torch.zeros(1, 4, 8)}], Mixed().eval(), space="key")),
    (CAPTURED, lambda *_: audited([{"src": torch.zeros(1, 4, 8)}], ENCODER)),
    ("A solve that does not converge", hard_to_solve),
    ("A query with all templates masked", lambda *_: fenchel.Discrete(torch.zeros(3, 2), NOTHING)),
    ("Evidence of the wrong shape", lambda *_: problem(evidence=torch.zeros(1, 3))),
    (
        "A dual point outside of the domain",
        lambda *_: problem(preference=GAMMA, evidence=torch.tensor([[3.0]])).solve("first_order"),
    ),
]


@pytest.mark.parametrize(
    ("heading", "message", "of", "provoke"),
    [
        pytest.param(*said, *provoked, id=f"{said[0]!a} {place}")
        for place, (said, provoked) in enumerate(zip(quoted(), PROVOKED, strict=True))
    ],
)
def test_the_message_is_what_the_library_says(
    heading: str, message: str, of: str, provoke: Provocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert heading == of
    with pytest.raises(FenchelError) as raised:
        provoke(tmp_path, monkeypatch)
    pattern = ".*".join(re.escape(part) for part in message.split("..."))
    assert re.fullmatch(pattern, str(raised.value), flags=re.DOTALL)
