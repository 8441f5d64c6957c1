"""A tiny random model with its tokenizer in a folder, a text for it, and the command run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fenchel.cli import main
from tests.io.test_windows import word_tokenizer

Command = Callable[..., "Done"]


class Done(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on standard error."""
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.strip()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FENCHEL_TRACEBACK", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        return Done(code, written.out, written.err)

    return run


def saved(folder: Path, family: str, **options: Any) -> Path:
    from tests.auditing.small_audits import small_model

    model = small_model(family).to(torch.float32)
    model.save_pretrained(folder)
    word_tokenizer(**options).save_pretrained(folder)
    return folder


def plain_run(folder: Path, name: str, model: Path, *options: str) -> Path:
    """Where a command on a model and the usual texts has put its results."""
    from fenchel.cli import main
    from tests.auditing.small_audits import some_texts

    (folder / "text.txt").write_text("\n".join(some_texts()))
    arguments = [name, str(model), "--text", str(folder / "text.txt"), "--out", str(folder / "out")]
    assert main([*arguments, *options]) == 0
    return folder / "out"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with four heads, and a token a word."""
    return saved(tmp_path_factory.mktemp("model"), "bert")


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 of two layers on each side."""
    return saved(tmp_path_factory.mktemp("translator"), "t5")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Seven documents."""
    from tests.auditing.small_audits import some_texts

    path = tmp_path / "text.txt"
    path.write_text("\n".join(some_texts()))
    return path
