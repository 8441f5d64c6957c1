"""A run's folder is opened, or it is said why not."""

from __future__ import annotations

import shutil

import pytest

from fenchel.answering import TrainedRun
from fenchel.errors import InputError
from tests.train.small_trainings import trained
from tests.train.text.small_texts import classified


def test_a_run_is_opened_once(tmp_path):
    classified(tmp_path)
    run = TrainedRun.read(tmp_path, tasks=("text",), device="cpu")
    assert (run.task, run.model.training, run.description["name"]) == ("text", False, "attention-pooling")
    assert TrainedRun.read(run, tasks=("text",)) is run
    assert str(run.device) == "cpu"
    with pytest.raises(InputError, match=r"is the folder of a training without tokenizer\.json"):
        assert run.subwords


def test_another_task_and_what_is_no_training_are_refused(tmp_path):
    trained(tmp_path)
    with pytest.raises(
        InputError,
        match=r"of another kind \(vit, ot-vit\); expected one of attention-pooling or mean-pooling",
    ):
        TrainedRun.read(tmp_path, tasks=("text",))
    with pytest.raises(
        InputError, match=r"holds no trained model .* fenchel train --model attention-pooling"
    ):
        TrainedRun.read(tmp_path / "none", tasks=("text",))
    checkpoint = tmp_path / "checkpoint.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    checkpoint.write_bytes(content)
    with pytest.raises(InputError, match=r"checkpoint\.safetensors"):
        TrainedRun.read(tmp_path, tasks=("images",))
