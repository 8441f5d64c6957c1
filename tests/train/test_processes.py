"""Several processes: two over gloo train as one does, stay equal to each other, and go on after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fenchel.errors import InputError
from fenchel.train import TrainResult
from fenchel.train.checkpoint import Checkpoint
from fenchel.train.workers import _device, joined_workers
from tests.train.small_trainings import images, options, trained, weights

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, signal, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from fenchel.train import run
from fenchel.train.loop import Loop
from tests.train.small_trainings import Recorder, trained

torch.set_num_threads(1)
folder, kill_at, resume = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "resume"

class Watched(Loop):
    def run(self):
        super().run()
        rows = self.workers.rows(torch.full((3 * self.workers.rank, 2), float(self.workers.rank)))
        assert rows.tolist() == [[1.0, 1.0]] * 3, rows
        save_file(self.model.state_dict(), folder / f"rank-{self.workers.rank}.safetensors")

run.Loop = Watched
observer = Recorder(kill_at, lambda: os.kill(os.getpid(), signal.SIGKILL)) if kill_at else None
trained(folder, model="ot-vit", dropout=0.0, checkpoint_seconds=0, observer=observer, resume=resume)
trained(folder / "again", model="vit", epochs=1)  # in the same group of processes
"""


def in_processes(folder: Path, *, kill_at: int = 0, resume: bool = False) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    program = folder / "program.py"
    program.write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
    }
    command = [*launcher, str(program), str(folder), str(kill_at), "resume" if resume else "begin"]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    folder = tmp_path_factory.mktemp("one")
    return folder, trained(folder, model="ot-vit", dropout=0.0)


def close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    # Softmax ignores the keys' bias: its gradient is nothing but rounding, which AdamW scales to full steps.
    names = [name for name in ours if name.startswith("model/") and not name.endswith("in_proj_bias")]
    return all(torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=2e-4) for name in names)


def test_two_processes_train_as_one_though_they_were_killed(tmp_path, one):
    folder, alone = one
    assert in_processes(tmp_path, kill_at=8).returncode != 0
    assert Checkpoint.read(tmp_path).state.step == 7
    done = in_processes(tmp_path, resume=True)
    assert done.returncode == 0, done.stderr
    assert TrainResult.read(tmp_path / "again").finished
    together = TrainResult.read(tmp_path)
    assert together.description["machine"]["processes"] == 2
    assert [session["step"] for session in together.sessions] == [0, 7]
    for ours, theirs in zip(together.epochs, alone.epochs, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
        assert ours["test_loss"] == pytest.approx(theirs["test_loss"], rel=1e-4)
        assert ours["train_accuracy"] == theirs["train_accuracy"]
    assert close(weights(tmp_path), weights(folder))
    ranks = [load_file(tmp_path / f"rank-{rank}.safetensors") for rank in range(2)]
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])


def test_another_seed_is_not_close(tmp_path, one):
    trained(tmp_path, model="ot-vit", dropout=0.0, seed=1)
    assert not close(weights(tmp_path), weights(one[0]))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set. Start several processes with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "two"}, "the environment's WORLD_SIZE is 'two'; expected a whole number"),
    ],
)
def test_an_environment_that_is_incomplete_is_named(monkeypatch, environment, message):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message), joined_workers("cpu"):
        pass


@pytest.mark.parametrize("device", [None, "cuda"])
def test_every_process_says_that_there_are_too_few_devices(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # Devices that there are not cannot be tried out.
    monkeypatch.setattr("fenchel.train.workers.checked", lambda _, name: name)
    environment = {"WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="there are 4 processes on this machine, and 2 CUDA devices"):
        _device(device, 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _device(device, 1) == torch.device("cuda", 1)


def test_a_batch_that_does_not_divide_is_refused():
    from fenchel.train.vision.splits import refuse_unshared

    refuse_unshared(8, 2)
    with pytest.raises(InputError, match="batch size is 6 for 2 processes; it must be a multiple of 4"):
        refuse_unshared(6, 2)


def test_processes_at_different_steps_are_refused(tmp_path):
    from fenchel.train.folder import agreed_state
    from fenchel.train.state import TrainState
    from fenchel.train.workers import Workers

    class Apart(Workers):
        def sum(self, values: torch.Tensor) -> torch.Tensor:
            values[1] = 40
            return values

    workers = Apart(0, 2, torch.device("cpu"))
    agreed_state(TrainState(step=40), workers, tmp_path)
    with pytest.raises(InputError, match=r"different checkpoints in .*: steps \[0, 40\]. The folder must"):
        agreed_state(TrainState(step=0), workers, tmp_path)


def test_shares_of_a_test_add_up():
    from fenchel import models
    from fenchel.train.evaluation import Evaluation
    from fenchel.train.vision import ImageClassification
    from fenchel.train.workers import Workers

    class Shared(Workers):
        def sum(self, values: torch.Tensor) -> torch.Tensor:
            parts.append(values.clone())
            return values

    data, asked = (images(), images(23, seed=1)), options(batch_size=6).resolved()
    model = models.build("vit", image_size=8, width=16, depth=2, heads=2, mlp_width=16)
    device = torch.device("cpu")
    whole = Evaluation(ImageClassification(asked, data, Workers(0, 1, device)))(model, "test")
    parts: list[torch.Tensor] = []
    for rank in range(3):
        Evaluation(ImageClassification(asked, data, Shared(rank, 3, device)))(model, "test")
    *sums, count = torch.stack(parts).sum(0).tolist()
    assert count == 23
    assert [value / 23 for value in sums] == pytest.approx(list(whole.values()))
    assert model.training
