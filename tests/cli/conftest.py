"""Tiny random models with their tokenizers in folders, a text for them, and commands run in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fenchel.cli import main
from tests.io.test_windows import word_tokenizer

Command = Callable[..., "Done"]

SMALL = {
    "audit": "--max-length 12 --stride 8 --batch-size 2 --device cpu --baseline none",
    "swap": "--max-length 12 --batch-size 4 --device cpu --bootstrap 100 --alphas 0.8 --estimators exact",
    "reproduce": "--max-length 12 --batch-size 2 --device cpu",
}
"""What makes a run take about a second."""


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

    @property
    def words(self) -> str:
        """What was printed, however its lines are broken."""
        return " ".join(self.out.split())


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FENCHEL_TRACEBACK", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        lines = written.err.splitlines(keepends=True)
        # The estimate of the time depends on the speed of the machine; tests/cli/test_terminal.py has tests of it.
        return Done(
            code, written.out, "".join(line for line in lines if "estimated from the first" not in line)
        )

    return run


def saved(folder: Path, family: str, *, head: bool = False) -> Path:
    from tests.auditing.small_audits import small_model
    from tests.swap.small_swaps import language_model, tokenizer_of

    model = language_model(family) if head else small_model(family)
    model.to(torch.float32).save_pretrained(folder)
    (tokenizer_of(family) if head else word_tokenizer()).save_pretrained(folder)
    return folder


def plain_run(folder: Path, name: str, model: Path, *options: str) -> Path:
    """Where a command on a model and the usual texts has put its results."""
    from tests.auditing.small_audits import some_texts

    (folder / "text.txt").write_text("\n".join(some_texts()))
    arguments = [name, str(model), "--text", str(folder / "text.txt"), "--out", str(folder / "out")]
    assert main([*arguments, *SMALL[name].split(), *options]) == 0
    return folder / "out"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with four heads, and a token a word."""
    return saved(tmp_path_factory.mktemp("model"), "bert")


@pytest.fixture(scope="session")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the head that predicts tokens."""
    return saved(tmp_path_factory.mktemp("masked"), "bert", head=True)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Seven documents."""
    from tests.auditing.small_audits import some_texts

    path = tmp_path / "text.txt"
    path.write_text("\n".join(some_texts()))
    return path


@pytest.fixture
def run(command: Command, model: Path, masked: Path, text: Path, tmp_path: Path) -> Command:
    """A small audit or swap of the model of its kind into a folder."""

    def run(name: str, *options: object, of: Any = None, out: str = "out") -> Done:
        subject = of or {"audit": model, "swap": masked}[name]
        return command(name, subject, "--text", text, "--out", tmp_path / out, *SMALL[name].split(), *options)

    return run
