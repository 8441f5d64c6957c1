"""A Helmholtz machine learns by wake and sleep, and every hidden state is enumerated to say how well.

Binary units in layers, as Dayan et al. and Hinton et al. (1995) have them: generative weights θ make images from causes
α, layer by layer, and recognition weights φ guess causes from images. Awake, the machine guesses causes of an image and
changes θ to make it from them; asleep, it makes an image and changes φ to guess its causes. With 9 hidden units, all
512 states are there to be summed over, so that nothing is estimated:

    log p(d) = -F(Q) + K(Q, P),    F(Q) = E_Q[-log p(d | α)] + K(Q, p(α)),    P = p(α | d)

The last is an inference: templates are the logits of the pixels under each α, the image is the evidence, and the
preference is what α says without it. Bayes' posterior is its first-order answer; ``--estimator`` chooses another.

    python examples/helmholtz.py --data toy --out bars.json
    python examples/helmholtz.py --data $FENCHEL_DATA/parquet/fashion_mnist --middle 64 --top 16 --bounds drawn \
      --seeds 3 --out fashion.json

With ``--bounds drawn`` causes are drawn from Q, for machines that are too large to enumerate. The mean over draws of
log Q(α | d) - log p(α, d) is then an estimate of F, which is above -log p(d); the log of the mean of p(α, d)/Q(α | d)
gives a bound that is nearer.

Toy data are the bars of Hinton et al.: 4 x 4 pixels, upright (two of three) or lying bars, each there one time in five.
The controls are pixels that are independent, and the same generative layers that follow the gradient of log p(d).
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import experiment
from data import check_columns, read_splits
from fenchel import KL, Discrete, InferenceProblem
from fenchel.errors import InputError
from images import stacked
from task import choice, option

Layer = tuple[Tensor, Tensor]  # weights (above, below) and biases (below); of recognition the other way round
BITS = math.log(2)


@dataclass
class HelmholtzOptions(experiment.ExperimentOptions):
    """Data, the machine, and learning."""

    data: str = option(
        "toy", "toy for bars, a folder with train.parquet and test.parquet, or a dataset of the hub"
    )
    seeds: int = option(5, "of each arm: its weights, and what is drawn in training")
    middle: int = option(8, "hidden units of the first layer")
    top: int = option(1, "hidden units of the second; both together at most 16 to enumerate")
    bounds: str = choice("on log p(d): by all states, or by draws of Q", "enumerated", "drawn")
    samples: int = option(100, "of Q for each image of the test, with --bounds drawn")
    steps: int = option(20_000, "of wake and sleep, a batch each")
    exact_steps: int = option(2_000, "of the gradient of log p(d)")
    batch: int = option(64, "images a step")
    rate: float = option(0.3, "of wake and sleep; it falls to 0")
    images: int = option(5_000, "of the data at most; toy data are all 30 there are")
    estimator: str = choice("of p(α | d), compared with Bayes'", "exact", "first_order", "second_order")

    def __post_init__(self) -> None:
        if self.bounds == "enumerated" and self.middle + self.top > 16:
            raise InputError(
                f"there are {self.middle} + {self.top} hidden units; expected 16 at most, to enumerate. Give "
                "--bounds drawn."
            )


def bars() -> tuple[Tensor, Tensor]:
    """The images of bars, (30, 16), and how often each is there."""
    chances: dict[tuple[int, ...], float] = {}
    for upright, *there in product((True, False), *[(0, 1)] * 4):
        image = there * 4 if upright else [bar for bar in there for _ in range(4)]
        chance = (2 / 3 if upright else 1 / 3) * math.prod(0.2 if bar else 0.8 for bar in there)
        chances[tuple(image)] = chances.get(tuple(image), 0.0) + chance
    return torch.tensor(list(chances)).double(), torch.tensor(list(chances.values())).double()


def read_images(o: HelmholtzOptions) -> tuple[Tensor, Tensor]:
    """Images of both splits, (N, pixels), 1 where a pixel is lighter than the middle."""
    splits, result = read_splits(o.data, ("train", "test")), []
    check_columns(splits, ("image",), o.data)
    for name in ("train", "test"):
        rows = splits[name].shuffle(seed=0).take(min(o.images, len(splits[name])))
        pixels = stacked(rows, "image", f"{o.data}, {name}").float().mean(1)
        result.append(pixels.flatten(1).gt(127).double())
    return result[0], result[1]


def log_chance(logits: Tensor, units: Tensor) -> Tensor:
    """The log chance of binary units with these logits, summed over the last axis."""
    return (units * logits + logsigmoid(-logits)).sum(-1)


def delta(layer: Layer, given: Tensor, units: Tensor) -> Layer:
    """The delta rule: what is given times how far units are from their chances, the gradient of their log chance."""
    apart = units - (given @ layer[0] + layer[1]).sigmoid()
    return given.mT @ apart / len(given), apart.mean(0)


class Machine:
    """Generative and recognition weights of pixels, a layer of causes, and causes of these."""

    def __init__(self, pixels: int, o: HelmholtzOptions) -> None:
        sizes = (pixels, o.middle, o.top)
        pairs = [(above, below) for below, above in pairwise(sizes)]
        # Generative layers from the pixels up, the last with nothing above it; recognition likewise, upward.
        shapes = [*pairs, (1, o.top)]
        self.generative = [
            (0.1 * torch.randn(shape).double(), torch.zeros(shape[1]).double()) for shape in shapes
        ]
        self.recognition = [(0.1 * torch.randn(b, a).double(), torch.zeros(a).double()) for a, b in pairs]

    def wake(self, images: Tensor) -> list[Tensor]:
        """A guess of the causes: images, and both layers, drawn upward."""
        states = [images]
        for weights, biases in self.recognition:
            states.append(torch.bernoulli((states[-1] @ weights + biases).sigmoid()))
        return states

    def sleep(self, count: int) -> list[Tensor]:
        """A dream: images, and both layers, drawn downward."""
        states = [torch.zeros(count, 1).double()]
        for weights, biases in reversed(self.generative):
            states.append(torch.bernoulli((states[-1] @ weights + biases).sigmoid()))
        return states[:0:-1]

    def wake_deltas(self, states: list[Tensor]) -> list[Layer]:
        """Of the generative layers, to make what was seen, and guessed, from what is above it."""
        above = [*states[1:], torch.zeros(len(states[0]), 1).double()]
        return [delta(*one) for one in zip(self.generative, above, states, strict=True)]

    def sleep_deltas(self, states: list[Tensor]) -> list[Layer]:
        """Of the recognition layers, to guess what was dreamt from what is below it."""
        return [delta(*one) for one in zip(self.recognition, states, states[1:], strict=False)]

    def log_recognition(self, states: list[Tensor]) -> Tensor:
        """Log Q(α | d)."""
        pairs = zip(self.recognition, states, states[1:], strict=False)
        return sum((log_chance(below @ w + b, above) for (w, b), below, above in pairs), torch.zeros(()))

    def log_prior(self, states: list[Tensor]) -> Tensor:
        """Log p(α) of the two layers of causes."""
        (_, (weights, biases), (_, top)), (middle, above) = self.generative, states
        return log_chance(above @ weights + biases, middle) + log_chance(top, above)

    def drawn_bounds(self, images: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Two bounds on -log p(d) of each image from draws of Q: F, and that of the mean of p(α, d)/Q(α | d)."""
        weights, biases = self.generative[0]
        ratios = []
        for _ in range(samples):
            states = self.wake(images)
            log_joint = log_chance(states[1] @ weights + biases, images) + self.log_prior(states[1:])
            ratios.append(log_joint - self.log_recognition(states))
        result = torch.stack(ratios)
        return -result.mean(0), math.log(samples) - result.logsumexp(0)

    def causes(self) -> list[Tensor]:
        """All states of the two layers, (2^units, units)."""
        middle, top = (len(biases) for _, biases in self.generative[1:])
        every = torch.cartesian_prod(*[torch.arange(2.0).double()] * (middle + top))
        return list(every.split([middle, top], 1))

    def enumerated(self) -> tuple[Tensor, Tensor]:
        """Logits of the pixels under each α, (n, pixels), and log p(α) + log p(no pixel is on | α), (n,)."""
        causes, (weights, biases) = self.causes(), self.generative[0]
        logits = causes[0] @ weights + biases
        return logits, self.log_prior(causes) + logsigmoid(-logits).sum(-1)

    def log_likelihood(self, images: Tensor) -> Tensor:
        """Log p(d): the conjugate of the divergence, at ⟨logits, d⟩."""
        logits, preference = self.enumerated()
        return KL().conjugate(images @ logits.mT, preference)

    def posterior(self, images: Tensor, estimator: str = "first_order") -> Tensor:
        """The weights of an inference, (N, n); of the first order they are p(α | d)."""
        logits, preference = self.enumerated()
        return InferenceProblem(Discrete(logits, preference), images, closeness=KL()).solve(estimator).weights

    def guesses(self, images: Tensor) -> Tensor:
        """Q(α | d) of every state, (N, n)."""
        middle, top = self.causes()
        (weights, biases), (second, more) = self.recognition
        first = log_chance((images @ weights + biases).unsqueeze(1), middle)
        return (first + log_chance(middle @ second + more, top)).exp()

    def free_energy(self, images: Tensor, guesses: Tensor) -> Tensor:
        """F(Q) of each image, for any Q (N, n)."""
        logits, preference = self.enumerated()
        return KL().value(guesses, preference + images @ logits.mT)


def by_wake_and_sleep(images: Tensor, chances: Tensor, o: HelmholtzOptions) -> Machine:
    """A machine after so many steps of both."""
    machine = Machine(images.shape[1], o)
    for step in range(o.steps):
        rate = o.rate * (1 - step / o.steps)
        awake = machine.wake(images[torch.multinomial(chances, o.batch, replacement=True)])
        changes = machine.wake_deltas(awake) + machine.sleep_deltas(machine.sleep(o.batch))
        for layer, change in zip(machine.generative + machine.recognition, changes, strict=True):
            for parameter, one in zip(layer, change, strict=True):
                parameter += rate * one
    return machine


def by_gradient(images: Tensor, chances: Tensor, o: HelmholtzOptions) -> Machine:
    """A machine whose generative layers follow the gradient of log p(d), by enumeration; the others are as drawn."""
    machine = Machine(images.shape[1], o)
    parameters = [one.requires_grad_() for layer in machine.generative for one in layer]
    optimiser = torch.optim.Adam(parameters, 0.02)
    for _ in range(o.exact_steps):
        batch = images[torch.multinomial(chances, o.batch, replacement=True)]
        optimiser.zero_grad()
        (-machine.log_likelihood(batch).mean()).backward()
        optimiser.step()
    for one in parameters:
        one.requires_grad_(False)
    return machine


def measured(machine: Machine, images: Tensor, chances: Tensor, o: HelmholtzOptions) -> dict[str, float]:
    """In bits: -log p(d), what recognition misses, K(Q, P), and K(p, P) for an inference by the estimator."""
    if o.bounds == "drawn":
        bounds = dict(zip(("F", "nearer bound"), machine.drawn_bounds(images, o.samples), strict=True))
        return {name: float((chances * one).sum() / BITS) for name, one in bounds.items()}
    logs, posterior, guesses = (
        machine.log_likelihood(images),
        machine.posterior(images),
        machine.guesses(images),
    )
    other = machine.posterior(images, o.estimator)
    result = {
        "-log p(d)": -logs,
        "F": machine.free_energy(images, guesses),
        "K(Q, P)": KL().value(guesses, posterior.log()),
        f"K({o.estimator}, P)": KL().value(other, posterior.log()),
    }
    return {name: float((chances * one).sum() / BITS) for name, one in result.items()}


def known(o: HelmholtzOptions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and their chances, to learn from and to test on; of bars the test is all there is."""
    if o.data == "toy":
        return *bars(), *bars()
    images, new = read_images(o)
    even, evenly = (torch.full((len(one),), 1 / len(one)).double() for one in (images, new))
    return images, even, new, evenly


def run(o: HelmholtzOptions, arm: str, seed: int) -> dict[str, float]:
    """Learn in one way; of bars, say too how far the model is from their true distribution."""
    images, chances, new, weights = known(o)
    torch.manual_seed(seed)
    if arm == "independent pixels":
        share = (chances @ images).clamp(0.5 / len(images), 1 - 0.5 / len(images))
        result = {"-log p(d)": -float(weights @ log_chance(share.logit(), new)) / BITS}
    elif arm == "gradient":
        logs = by_gradient(images, chances, o).log_likelihood(new)
        result = {"-log p(d)": -float(weights @ logs) / BITS}
    else:
        result = measured(by_wake_and_sleep(images, chances, o), new, weights, o)
    if o.data == "toy" and "-log p(d)" in result:
        result["K(data, model)"] = result["-log p(d)"] - float(torch.special.entr(weights).sum()) / BITS
    return result


def compare(o: HelmholtzOptions) -> dict[str, Any]:
    """Learn in every way with every seed."""
    alone = experiment.repeated(run, ["independent pixels"], replace(o, seeds=1, processes=1))
    learned = ["wake and sleep"] if o.bounds == "drawn" else ["wake and sleep", "gradient"]
    runs = alone | experiment.repeated(run, learned, o)
    return {"unit": "bits an image", "runs": runs}


if __name__ == "__main__":
    experiment.main(HelmholtzOptions, compare)
