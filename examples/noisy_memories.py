"""Whom to believe, and in what? Mixture attention against softmax attention where memories are noisy in part.

There are 8 things of 8 traits. The memory of each knows half of its traits well (noise 0.1), the others badly (noise
1), and says which; a question has seen one thing, with noise 0.2, and asks for its value. A memory should be believed
in what it knows well: where it knows little, a question that differs tells nothing against it. The likelihood of a
question q under a memory has terms ⟨m, q⟩, as softmax attention has, and ⟨s, q²⟩/2, which takes back what uncertain
traits cost: a memory that is a Gaussian has both. Both arms make keys from traits and noise by a network, softmax
attention by a wider one, so that it has no fewer parameters. The control cannot see the noise. Printed are the
questions answered right, with 95 % intervals over seeds, and how far the log odds of the memory that is meant follow a
small change in what it knows well and badly.

    python examples/noisy_memories.py [steps] [seeds, from 2] [results.json]
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from experiment import run_positional
from fenchel.nn import MixtureAttention, MultiheadAttention
from intervals import shown

THINGS, TRAITS, VALUES, SEEN, WELL, BADLY = 8, 8, 8, 0.2, 0.1, 1.0
ARMS = {"softmax": 70, "mixture": 64, "mixture, blind": 64}  # hidden units of the network that makes keys


def draw(count: int, stream: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Questions (count, 8, 8), one a thing; what is remembered and its noise, alike; values (count, 8)."""
    things, seen, made = torch.randn(3, count, THINGS, TRAITS, generator=stream).unbind()
    ranks = torch.rand(count, THINGS, TRAITS, generator=stream).argsort(-1).argsort(-1)
    noise = torch.where(ranks < TRAITS // 2, WELL, BADLY)
    values = torch.randint(VALUES, (count, THINGS), generator=stream)
    return things + SEEN * seen, things + noise * made, noise, values


class Recaller(nn.Module):
    """Keys from memories, one head of attention, and a classifier of values."""

    def __init__(self, arm: str) -> None:
        super().__init__()
        hidden, width, self.blind = ARMS[arm], 3 * TRAITS, arm.endswith("blind")
        self.key = nn.Sequential(nn.Linear(2 * TRAITS, hidden), nn.GELU(), nn.Linear(hidden, width))
        sizes = {"kdim": width, "vdim": TRAITS, "batch_first": True, "alpha": 8.0}
        if arm == "softmax":
            self.attention = MultiheadAttention(TRAITS, 1, **sizes)
        else:
            self.attention = MixtureAttention(TRAITS, 1, **sizes, initial_variance=1.0)
        self.embed, self.classify = nn.Embedding(VALUES, TRAITS), nn.Linear(TRAITS, VALUES)

    def forward(self, questions: Tensor, remembered: Tensor, noise: Tensor, values: Tensor) -> list[Tensor]:
        """Logits (B, 8, 8), and the weights of questions on memories (B, 8, 8)."""
        keys = self.key(torch.cat([remembered, torch.zeros_like(noise) if self.blind else noise], -1))
        read, weights = self.attention(questions, keys, self.embed(values))
        return [self.classify(read), weights]


def trained(arm: str, seed: int, steps: int) -> Recaller:
    """A model after so many steps."""
    torch.manual_seed(seed)
    model, stream = Recaller(arm), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=steps)
    for _ in range(steps):
        given = draw(64, stream)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(*given)[0].flatten(0, 1), given[3].flatten()).backward()
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def tested(model: Recaller) -> dict[str, float]:
    """Per cent right on new sets, and how far log odds follow."""
    questions, remembered, noise, values = draw(1000, torch.Generator().manual_seed(10**6))
    logits, weights = model(questions, remembered, noise, values)
    result: dict[str, float] = {"parameters": sum(p.numel() for p in model.parameters())}
    result |= {"right": 100 * (logits.argmax(-1) == values).double().mean().item()}
    change = 0.1 * torch.randn(remembered.shape, generator=torch.Generator().manual_seed(0))
    for name, level in (("well", WELL), ("badly", BADLY)):
        _, moved = model(questions, remembered + change * (noise == level), noise, values)
        before, after = (w.diagonal(dim1=1, dim2=2).clamp(1e-6, 1 - 1e-6).logit() for w in (weights, moved))
        result |= {f"follows_{name}": (after - before).abs().mean().item()}
    return result


def main(steps: int = 3000, seeds: int = 5, out: str = "") -> None:
    """Train every arm with every seed."""
    runs = {arm: [tested(trained(arm, seed, steps)) for seed in range(seeds)] for arm in ARMS}
    print(f"{steps} steps, {seeds} seeds")
    for arm, found in runs.items():
        keys = ("right", "follows_well", "follows_badly")
        right, well, badly = (shown([one[key] for one in found]) for key in keys)
        print(f"{arm:15}{right} % right, follows {well} and {badly}; {found[0]['parameters']} parameters")
    for arm in ("softmax", "mixture, blind"):
        pairs = zip(runs["mixture"], runs[arm], strict=True)
        gain = shown([one["right"] - other["right"] for one, other in pairs])
        print(f"mixture - {arm}: {gain} points (paired by seed)")
    if out:
        Path(out).write_text(json.dumps({"steps": steps, "seeds": seeds, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    run_positional(main, __doc__, steps=1, seeds=2)
