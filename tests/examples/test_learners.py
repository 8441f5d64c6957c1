"""The scripts that learn: bandits, the Helmholtz machine, distillation and glimpses; what they compute is true."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bandits
import distil
import experiment
import gaze
import glimpse
import helmholtz
from fenchel import KL
from fenchel.catalogue import ENTRIES
from tests.cli.conftest import saved
from tests.pages import ROOT, page


def test_rules_earn_what_is_known_of_them() -> None:
    assert bandits.optimum(5, 10) == pytest.approx(6.66, abs=0.005)
    o = bandits.BanditOptions(test=20_000)
    found = {name: bandits.tested(rule, o, 0) for name, rule in bandits.rules(5).items()}
    for name, reward in (("greedy", 6.63), ("Thompson", 5.84), ("UCB1", 5.68), ("random", 5.0)):
        assert found[name] == pytest.approx(reward, abs=0.06)


def test_bandits_are_learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two arms, three pulls: better than by chance, and recorded."""
    out = tmp_path / "out.json"
    given = "--arms 2 --pulls 4 --steps 30 --batch 64 --test 4000 --seeds 2 --out"
    monkeypatch.setattr(bandits, "LEARNERS", ("SNAIL",))
    monkeypatch.setattr(sys, "argv", ["bandits.py", *given.split(), str(out)])
    experiment.main(bandits.BanditOptions, bandits.compare)
    found = json.loads(out.read_text())
    assert found["command"].startswith("python examples/bandits.py --arms 2")
    assert found["commit"]
    assert all("reward, exact" in one for one in found["runs"]["SNAIL"])
    rewards = {arm: [one["reward"] for one in runs] for arm, runs in found["runs"].items()}
    assert len(rewards["SNAIL"]) == 2
    assert min(rewards["SNAIL"]) > max(rewards["random"]) + 0.05
    assert max(rewards["SNAIL"]) < rewards["optimum"][0] + 0.05


def one_log_joint(one: helmholtz.Machine, states: list[Tensor]) -> Tensor:
    """Log p(d, α), from Bernoulli distributions."""
    total = torch.zeros(len(states[0])).double()
    for (weights, biases), units, above in zip(one.generative, states, [*states[1:], None], strict=True):
        logits = biases.expand(len(units), -1) if above is None else above @ weights + biases
        total = total + torch.distributions.Bernoulli(logits=logits).log_prob(units).sum(-1)
    return total


def test_log_p_is_minus_free_energy_plus_divergence_for_any_guesses() -> None:
    torch.manual_seed(0)
    one = helmholtz.Machine(4, helmholtz.HelmholtzOptions(middle=3, top=2))
    for layers in (one.generative, one.recognition):
        layers[:] = [(torch.randn_like(w), torch.randn_like(b)) for w, b in layers]
    images = torch.cartesian_prod(*[torch.arange(2.0).double()] * 4)
    logs, posterior = one.log_likelihood(images), one.posterior(images)
    assert logs.exp().sum().item() == pytest.approx(1, abs=1e-12)
    causes = one.causes()
    joint = torch.stack([one_log_joint(one, [image.expand(len(causes[0]), -1), *causes]) for image in images])
    assert torch.allclose(posterior, joint.softmax(-1), atol=1e-12)
    assert torch.allclose(logs, joint.logsumexp(-1), atol=1e-12)
    guesses = one.guesses(images)
    assert torch.allclose(guesses.sum(-1), torch.ones(16).double())
    for any_guess in (guesses, torch.rand(16, 32).double().softmax(-1), posterior):
        missed = KL().value(any_guess, posterior.log())
        assert torch.allclose(logs, missed - one.free_energy(images, any_guess), atol=1e-10)
    assert (KL().value(one.posterior(images, "exact"), posterior.log()) > 1e-4).any()


def test_a_helmholtz_machine_learns_bars() -> None:
    o = helmholtz.HelmholtzOptions(seeds=1, steps=1500, exact_steps=150)
    (alone,), (slept,), (followed,) = helmholtz.compare(o)["runs"].values()
    assert slept["F"] - slept["K(Q, P)"] == pytest.approx(slept["-log p(d)"], abs=1e-9)
    assert followed["K(data, model)"] < alone["K(data, model)"]
    assert slept["K(data, model)"] < alone["K(data, model)"]
    o = helmholtz.HelmholtzOptions(seeds=1, steps=300, bounds="drawn", middle=12, top=6)
    (alone,), (learned,) = helmholtz.compare(o)["runs"].values()
    assert learned["nearer bound"] < learned["F"] < alone["-log p(d)"] + 1


@pytest.mark.parametrize("head", [False, True])
def test_a_student_follows(tmp_path: Path, *, head: bool) -> None:
    folder = saved(tmp_path / "model", "bert", head=head)
    told: dict[str, Any] = {"sentences": 48, "pairs": 20, "epochs": 6, "batch": 12, "learning_rate": 5e-3}
    o = distil.DistilOptions(model=str(folder), **told)
    task = distil.Distillation(o)
    assert task.with_head == head
    random = task.student(copied=False)
    assert random.config.num_hidden_layers == (task.teacher.config.num_hidden_layers + 1) // 2
    loss = task.head_loss if head else task.sentence_loss

    def lost() -> float:
        torch.manual_seed(0)
        return loss(random, list(range(12))).item()

    before = lost()
    task.trained(random)
    assert lost() < before
    assert task.tested(task.teacher).keys() == {"loss" if head else "Spearman"}
    plain = task.embedded(random, task.train[:4])
    o.estimator = "exact"
    assert not torch.allclose(plain, task.embedded(random, task.train[:4]), atol=1e-5)


def test_watchers_learn_and_places_are_those_of_their_arm(tmp_path: Path) -> None:
    picture = str(tmp_path / "paths.png")
    told: dict[str, Any] = {"images": 400, "test": 200, "canvas": 28, "scales": 1, "epochs": 8, "width": 64}
    found = glimpse.compare(glimpse.GlimpseOptions(**told, seeds=1, picture=picture))["runs"]
    assert found["learned"][0]["right"] > found["random"][0]["right"] + 20
    assert found["fixed"][0]["right"] > 80
    assert (tmp_path / "paths.png").stat().st_size > 1000


def test_the_index_for_lecturers_names_what_there_is() -> None:
    text = page("docs/lecturers.md")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    names = {name for *_, cell in rows for name in re.findall(r"`([\w-]+)`", cell)}
    assert len(names) > 20
    assert names <= set(ENTRIES)
    for command in re.findall(r"(\w+\.py[^`\n]*)", text):
        script, *words = command.split()
        source = "".join((ROOT / "examples" / file).read_text() for file in (script, "task.py"))
        options = {word[2:] for word in words if word.startswith("--")} - {"help"}
        assert all(f"    {option}: " in source for option in options)


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, said in (
        ("--images 5", r"images is 5; expected at least 15\. Give a larger --images\."),
        ("--frozen no.such:name", r"frozen is 'no.such:name': .*\. Give .*"),
        ("--fast", r"there is no option --fast\. x\.py --help lists all\."),
        ("--out none/a.json", r"there is no folder for --out none/a\.json\. Make none\."),
    ):
        monkeypatch.setattr(sys, "argv", ["x.py", *given.split()])
        with pytest.raises(SystemExit, match=rf"^x\.py: {said}$"):
            experiment.main(gaze.Options, gaze.study)
