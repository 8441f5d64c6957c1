"""Learning to explore: SNAIL on Bernoulli bandits, against the best that can be done.

A bandit has arms that pay 1 or 0; how often each does is drawn anew, uniformly, and 10 pulls are what there is. The
model (Mishra et al., 2018) reads its pulls and rewards by temporal convolutions and then by causal attention, puts what
each finds beside its input rather than adding it, and learns by policy gradients which arm to pull next, over many
bandits. It is compared with itself without attention and without convolutions, with rules that keep counts of each arm
(greedy in the posterior mean, Thompson's, UCB1), and with the optimum, by dynamic programming over all counts. The
attention is one inference for each pull; the trained model is also played with when its estimator is exact.

    python examples/bandits.py --out bandits.json
    python examples/bandits.py --steps 30 --test 1000 --seeds 1 --estimator exact
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import experiment
from fenchel.nn import MultiheadAttention, use_estimator
from fenchel.nn.preference import Causal
from task import choice, option

Policy = Callable[
    [Tensor, Tensor], Tensor
]  # of pulls (B, t) and rewards (B, t), scores of the arms (B, arms)
FILTERS, READ, EPOCHS, ENTROPY = 16, 16, 6, 0.02  # epochs over each batch of episodes
LEARNERS = ("SNAIL", "without attention", "without convolutions")


@dataclass
class BanditOptions(experiment.ExperimentOptions):
    """Bandits, and training."""

    arms: int = option(5, "of a bandit")
    pulls: int = option(10, "of an episode")
    steps: int = option(300, "of training")
    batch: int = option(256, "bandits a step")
    learning_rate: float = option(1e-2, "the largest")
    test: int = option(100_000, "bandits to test on")
    estimator: str = choice("of all attention", "first_order", "second_order", "exact")


class Convolutions(nn.Module):
    """Gated causal convolutions with dilations 1, 2, 4, ...; together they reach back over a whole episode."""

    def __init__(self, width: int, pulls: int) -> None:
        super().__init__()
        self.dilations = [2**power for power in range(max(1, math.ceil(math.log2(pulls))))]
        inputs = [width + FILTERS * number for number in range(len(self.dilations))]
        self.layers = nn.ModuleList(nn.Linear(2 * size, 2 * FILTERS) for size in inputs)
        self.width = inputs[-1] + FILTERS

    def forward(self, x: Tensor) -> Tensor:
        """(B, t, width) with what each convolution, of what is now and what was, finds beside it."""
        for dilation, layer in zip(self.dilations, self.layers, strict=True):
            past = nn.functional.pad(x, (0, 0, dilation, 0))[:, : x.shape[1]]
            change, gate = layer(torch.cat([past, x], -1)).chunk(2, -1)
            x = torch.cat([x, change.tanh() * gate.sigmoid()], -1)
        return x


class Attending(nn.Module):
    """One head of causal attention, an inference for each pull from those before it."""

    def __init__(self, width: int, estimator: str) -> None:
        super().__init__()
        self.query, self.width = nn.Linear(width, READ), width + READ
        options = {"kdim": width, "vdim": width, "batch_first": True, "preference": Causal()}
        self.attention = MultiheadAttention(READ, 1, estimator=estimator, **options)

    def forward(self, x: Tensor) -> Tensor:
        """(B, t, width) with what is read beside it."""
        return torch.cat([x, self.attention(self.query(x), x, x, need_weights=False)[0]], -1)


class Snail(nn.Module):
    """Scores of the arms, and the value of where one is, after each prefix of an episode."""

    def __init__(self, learner: str, o: BanditOptions) -> None:
        super().__init__()
        self.embed, width, self.arms = nn.Linear(o.arms + 1, READ), READ, o.arms
        self.blocks = nn.Sequential()
        if learner != "without convolutions":
            convolutions = Convolutions(width, o.pulls)
            self.blocks.append(convolutions)
            width = convolutions.width
        if learner != "without attention":
            attending = Attending(width, o.estimator)
            self.blocks.append(attending)
            width = attending.width
        self.answer = nn.Linear(width, o.arms + 1)

    def forward(self, pulls: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, t + 1, arms) and values (B, t + 1); the first are of the beginning."""
        seen = torch.cat([nn.functional.one_hot(pulls, self.arms), rewards.unsqueeze(-1)], -1).float()
        result = self.answer(self.blocks(self.embed(nn.functional.pad(seen, (0, 0, 1, 0)))))
        return result[..., :-1], result[..., -1]


def played(policy: Policy, chances: Tensor, pulls: int) -> tuple[Tensor, Tensor]:
    """Pulls and rewards (B, pulls) on bandits with these chances (B, arms): always the arm of the largest score."""
    chosen, rewards = torch.empty(2, len(chances), 0, dtype=torch.long)
    for _ in range(pulls):
        arm = policy(chosen, rewards).argmax(-1, keepdim=True)
        paid = torch.rand(arm.shape) < chances.gather(1, arm)
        chosen, rewards = torch.cat([chosen, arm], 1), torch.cat([rewards, paid.long()], 1)
    return chosen, rewards


def rules(arms: int) -> dict[str, Policy]:
    """Policies that keep counts; equal scores are told apart by chance."""

    def counts(pulls: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
        pulled = nn.functional.one_hot(pulls, arms).double()
        return pulled.sum(1), (pulled * rewards.unsqueeze(-1)).sum(1)

    def greedy(pulls: Tensor, rewards: Tensor) -> Tensor:
        n, paid = counts(pulls, rewards)
        return (paid + 1) / (n + 2) + 1e-9 * torch.rand(n.shape)

    def thompson(pulls: Tensor, rewards: Tensor) -> Tensor:
        n, paid = counts(pulls, rewards)
        return torch.distributions.Beta(paid + 1, n - paid + 1).sample()

    def ucb1(pulls: Tensor, rewards: Tensor) -> Tensor:
        n, paid = counts(pulls, rewards)
        bound = paid / n + (2 * math.log(max(1, pulls.shape[1])) / n).sqrt()
        return bound.where(n > 0, 1e6) + 1e-6 * torch.rand(n.shape)  # what was never pulled comes first

    return {
        "greedy": greedy,
        "Thompson": thompson,
        "UCB1": ucb1,
        "random": lambda p, _: torch.rand(len(p), arms),
    }


def optimum(arms: int, pulls: int) -> float:
    """The largest expected reward of any policy, by dynamic programming over pulls and payments of each arm."""

    @cache
    def best(known: tuple[tuple[int, int], ...], left: int) -> float:
        """Of the pulls that are left; arms are sorted, as their order says nothing."""
        if not left:
            return 0.0
        values = []
        for arm in set(known):
            (n, paid), others = arm, list(known)
            others.remove(arm)
            chance = (paid + 1) / (n + 2)
            won, lost = (best(tuple(sorted([*others, (n + 1, paid + more)])), left - 1) for more in (1, 0))
            values.append(chance * (1 + won) + (1 - chance) * lost)
        return max(values)

    return best(((0, 0),) * arms, pulls)


def trained(learner: str, seed: int, o: BanditOptions) -> Snail:
    """A model after so many steps of policy gradients, PPO's, each on new bandits."""
    torch.manual_seed(seed)
    model = Snail(learner, o)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, o.learning_rate, total_steps=o.steps, pct_start=0.1
    )

    def sampled(pulls: Tensor, rewards: Tensor) -> Tensor:
        logits = model(pulls, rewards)[0][:, -1]
        return logits - torch.empty_like(logits).exponential_().log()  # its largest is a draw of the softmax

    for step in range(o.steps):
        with torch.no_grad():
            pulls, rewards = played(sampled, torch.rand(o.batch, o.arms), o.pulls)
        to_come, before, gain = rewards.flip(1).cumsum(1).flip(1), None, None
        for _ in range(EPOCHS):
            logits, values = (one[:, :-1] for one in model(pulls, rewards))
            logs = logits.log_softmax(-1)
            chosen = logs.gather(2, pulls.unsqueeze(2)).squeeze(2)
            if before is None or gain is None:
                before, gain = chosen.detach(), (to_come - values).detach()
                gain = (gain - gain.mean(0)) / gain.std()
            ratio = (chosen - before).exp()
            gained = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            entropy = -(logs.exp() * logs).sum(-1).mean()
            missed = (to_come - values).square().mean()
            optimiser.zero_grad()
            (0.1 * missed - gained - ENTROPY * (1 - step / o.steps) * entropy).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def tested(policy: Policy, o: BanditOptions, seed: int) -> float:
    """The mean reward on new bandits, the same for all policies of a seed."""
    chances = torch.rand(o.test, o.arms, generator=torch.Generator().manual_seed(1000 + seed))
    torch.manual_seed(2000 + seed)
    rewards = [played(policy, some, o.pulls)[1] for some in chances.split(10_000)]
    return torch.cat(rewards).sum(1).double().mean().item()


def largest(model: Snail) -> Policy:
    """The logits of a model, which are worked out once for each history that there is."""

    def policy(pulls: Tensor, rewards: Tensor) -> Tensor:
        padded = nn.functional.pad(torch.stack([pulls, rewards], 1), (1, 0))  # as no column may be missing
        histories, which = padded.unique(dim=0, return_inverse=True)
        return model(histories[:, 0, 1:], histories[:, 1, 1:])[0][which, -1]

    return policy


def run(o: BanditOptions, arm: str, seed: int) -> dict[str, float]:
    """Play by a rule, or train a learner and play with it; with SNAIL also when its attention is exact."""
    if arm in (result := rules(o.arms)):
        return {"reward": tested(result[arm], o, seed)}
    model = trained(arm, seed, o)
    answers = {"reward": tested(largest(model), o, seed)}
    if arm == "SNAIL":
        with use_estimator(model, "exact"):
            answers["reward, exact"] = tested(largest(model), o, seed)
    return answers


def compare(o: BanditOptions) -> dict[str, Any]:
    """All of them, and the optimum."""
    best = {"optimum": [{"reward": optimum(o.arms, o.pulls)}]}
    return {"runs": best | experiment.repeated(run, [*rules(o.arms), *LEARNERS], o)}


if __name__ == "__main__":
    experiment.main(BanditOptions, compare)
