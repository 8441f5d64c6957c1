"""Where do people look? Places are templates, a bias to the centre is the preference, local features are the evidence.

    python examples/gaze.py --data toy
    python examples/gaze.py --data FOLDER/osie --estimators first_order exact --out gaze.json

A model gives a distribution over the 45 x 60 places of an image: ``fenchel.functional.infer`` with the log of the
centre bias as preference, a readout of local features as templates and one learned evidence (DeepGaze's softmax is
first order). Beside it: the model of Itti, Koch and Niebur (1998), a preference that depends on the last fixations, the
other viewers, and controls. Then places in the order in which they are attended: of images, and of search displays
(guided search) until the target is found; and cues as preferences (Posner).

FOLDER holds train.parquet with columns image, fixation_subject, fixation_order, fixation_x and fixation_y, in pixels of
an image twice as wide.
"""

import io
import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn

import fenchel
from data import check_columns, read_splits
from experiment import main
from fenchel.errors import InputError
from fenchel.functional import infer
from images import decoded
from intervals import interval
from saliency import GRID, auc, conspicuity, features, itti_koch, nss, resized
from task import option, several

(H, W), SCALE, LAGS = GRID, 2, 3
PLACES, SPREAD = H * W, 2.0
COLUMNS = ("image", "fixation_subject", "fixation_order", "fixation_x", "fixation_y")
KINDS = ("Q among O", "O among Q", "red among green", "conjunction")
SIZES, SIDE, RADIUS, WALK = (4, 8, 16, 24), 40, 2.5, 8


@dataclass
class Options:
    """What is run."""

    data: str = option("toy", "toy, or a folder with train.parquet of OSIE")
    out: str = option("", "file of the results")
    estimators: list[str] = several(
        "first_order, second_order or exact; several are compared; none: first_order"
    )
    images: int = option(0, "images that are drawn from the data; 0: all")
    test: int = option(150, "of these the images that are held out, at most a third")
    epochs: int = option(8, "passes over the images; half as many for the preference")
    seed: int = option(0, "of the split, the weights and the draws")
    frozen: str = option("", "PACKAGE.MODULE:NAME that maps (3, height, width) to more features (f, h, w)")
    displays: int = option(20, "search displays of each kind and size")


class Seen(NamedTuple):
    """An image with its fixations, in the order of viewers and time."""

    pixels: np.ndarray  # (height, width, 3) in [0, 1]
    places: Tensor  # (k,), row · W + column
    viewer: Tensor  # (k,)
    lags: Tensor  # (k, LAGS), places before in the same viewing; -1: none

    @property
    def counts(self) -> Tensor:
        """How often each place was fixated, (n,)."""
        return self.places.bincount(minlength=PLACES)


def read(data: str) -> list[Seen]:
    """All images of a data set.

    Raises:
        InputError: If the data are missing, or an image or a fixation cannot be used.
    """
    if data == "toy":
        return [seen(row, f"toy, row {number}") for number, row in enumerate(toy())]
    if not Path(data).exists():
        raise InputError(
            f"{data} is missing. OSIE is at https://github.com/NUS-VIP/predicting-human-gaze-beyond-pixels; write it "
            f"to FOLDER/train.parquet with the columns {', '.join(COLUMNS)}, or use --data toy."
        )
    result = read_splits(data, ("train",))
    check_columns(result, COLUMNS, data)
    rows: Any = result["train"].cast_column("image", datasets.Image(decode=False))
    return [seen(row, f"{data}, row {number}") for number, row in enumerate(rows)]


def seen(row: Mapping[str, Any], place: str) -> Seen:
    """A checked row."""
    with Image.open(io.BytesIO(row["image"]["bytes"])) as opened:
        if (frames := getattr(opened, "n_frames", 1)) > 1:
            raise InputError(f"{place}: the image has {frames} frames; expected one. Choose a frame.")
    pixels = decoded(row["image"], place).float().div(255).expand(3, -1, -1).permute(1, 2, 0).numpy()
    height, width = pixels.shape[:2]
    if min(height, width) < 64:
        raise InputError(f"{place}: the image is {width} x {height}; expected 64 x 64 at least. Remove it.")
    if np.ptp(pixels.reshape(-1, 3), axis=0).max() == 0:
        raise InputError(f"{place}: the image has one colour, so no place stands out. Remove it.")
    x, y = (np.array(row[name], dtype=float) / SCALE for name in COLUMNS[3:])
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
    if not len(x) or outside.any():
        what = (
            f"fixation {int(outside.argmax())} is outside of the image" if len(x) else "there is no fixation"
        )
        raise InputError(f"{place}: {what}, {SCALE * width} x {SCALE * height}. Remove it.")
    order = np.lexsort((row["fixation_order"], row["fixation_subject"]))
    places = torch.from_numpy((y * H // height * W + x * W // width).astype(int)[order])
    viewer = torch.tensor(row["fixation_subject"])[torch.from_numpy(order)]
    lags = torch.full((len(places), LAGS), -1)
    for lag in range(1, LAGS + 1):
        lags[lag:, lag - 1] = torch.where(viewer[lag:] == viewer[:-lag], places[:-lag], -1)
    return Seen(pixels, places, viewer, lags)


def toy(count: int = 45) -> Iterator[dict[str, Any]]:
    """Noise with bright discs, which five viewers look at one after the other, more often those near the centre."""
    draw = np.random.default_rng(0)
    rows, columns = np.mgrid[:96, :128]
    for _ in range(count):
        pixels = draw.normal(110, 12, (96, 128, 3))
        middles = draw.uniform((12, 12), (84, 116), (6, 2))
        for (y, x), colour in zip(middles, draw.uniform(0, 255, (6, 3)), strict=True):
            pixels[np.hypot(rows - y, columns - x) < 7] = colour
        near = np.exp(-(((middles - (48, 64)) / (30, 40)) ** 2).sum(1))
        looked = [draw.choice(6, 4, replace=False, p=near / near.sum()) for _ in range(5)]
        places = (np.concatenate([middles[one] for one in looked]) + draw.normal(0, 2, (20, 2))) * SCALE
        stored = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stored, "PNG")
        options = (*np.indices((5, 4)).reshape(2, -1), *places.T[::-1])
        yield {"image": {"bytes": stored.getvalue()}} | dict(
            zip(COLUMNS[1:], map(list, options), strict=True)
        )


class Gaze(nn.Module):
    """A distribution over places, by one inference.

    Args:
        count: How many features a place has.
        centre: Log-preference of each place, (n,).
        estimator: Of the inference.
        hidden: Width of the readout; 0: features are templates.
    """

    def __init__(self, count: int, centre: Tensor, estimator: str, hidden: int = 32) -> None:
        super().__init__()
        self.estimator, self.centre = estimator, centre
        width = hidden // 2 or count
        layers = nn.Linear(count, hidden or 1), nn.GELU(), nn.Linear(hidden or 1, width), nn.Tanh()
        self.readout = nn.Sequential(*layers) if hidden else nn.Identity()
        self.evidence = nn.Parameter(torch.randn(width) / width if hidden else torch.zeros(width))
        self.past = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, LAGS + 1))
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor, lags: Tensor | None = None, centre: Tensor | None = None) -> Tensor:
        """Log-weights (B, m, n) of features (B, n, f), after fixations at the places ``lags`` (B, m, LAGS); m is 1."""
        preference = self.centre if centre is None else centre
        preference = preference + (0 if lags is None else self.history(lags)[:, None])
        templates = self.readout(features)[:, None]
        query = self.evidence.expand(len(features), 1, 1 if lags is None else lags.shape[1], -1)
        alpha = 1.0 if lags is None else self.log_alpha.exp()
        options = {"log_preference": preference, "alpha": alpha, "scale": 1.0, "estimator": self.estimator}
        return infer(query, templates, **options).weights[:, 0].clamp_min(1e-30).log()

    def history(self, lags: Tensor) -> Tensor:
        """Log-preference (B, m, n): a learned function of the displacement from each of the last places, added up."""
        y, x = torch.meshgrid(torch.arange(1.0 - H, H), torch.arange(1.0 - W, W), indexing="ij")
        away = torch.hypot(x, y)
        near = [torch.exp(-away / reach) for reach in (1, 3, 10)]
        table = torch.stack((x / W, y / H, abs(x) / W, abs(y) / H, away.log1p() / 4, *near), -1)
        table = self.past(table).flatten(0, 1)  # (displacements, LAGS + 1)
        known = torch.where(lags < 0, 0, lags)
        start = torch.full_like(known[..., :1], H // 2 * W + W // 2)  # before the first fixation
        known = torch.cat((known, start), -1)
        corner = (H - 1 - known // W) * (2 * W - 1) + W - 1 - known % W
        steps = (torch.arange(H)[:, None] * (2 * W - 1) + torch.arange(W)).flatten()
        there = torch.cat((lags >= 0, lags[..., :1] < 0), -1)[..., None]
        total = torch.zeros(*lags.shape[:-1], PLACES)
        for number in range(LAGS + 1):
            result = table[:, number].take(corner[..., number, None] + steps)
            total = total + result * there[..., number, :]
        return total


def fit(
    model: Gaze, inputs: Sequence[Tensor], images: Sequence[Seen], options: Options, *, past: bool
) -> Gaze:
    """Maximum likelihood of the fixations: of all at once, or (past) of eight an image after those before them."""
    draw, size = torch.Generator().manual_seed(options.seed), 8
    learned = (
        [*model.past.parameters(), model.log_alpha] if past else [*model.readout.parameters(), model.evidence]
    )
    optimiser = torch.optim.Adam(learned, 5e-3)
    epochs = -(-options.epochs // 2) if past else options.epochs
    steps = epochs * math.ceil(len(images) / size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=draw).split(size):
            some = [images[one] for one in chosen.tolist()]
            read = torch.stack([inputs[one] for one in chosen.tolist()]).float()
            if past:
                picked = [torch.randint(len(one.places), (8,), generator=draw) for one in some]
                places = torch.stack([one.places[at] for one, at in zip(some, picked, strict=True)])
                chances = model(
                    read, torch.stack([one.lags[at] for one, at in zip(some, picked, strict=True)])
                )
                loss = -chances.gather(-1, places[..., None]).mean()
            else:
                counts = torch.stack([one.counts for one in some])
                loss = -(model(read)[:, 0] * counts).sum() / counts.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def smoothed(counts: Tensor) -> Tensor:
    """A density of counts (..., n) over places."""
    blurred = gaussian_filter(counts.double().view(-1, H, W).numpy(), (0, SPREAD, SPREAD), mode="nearest")
    result = torch.from_numpy(blurred).flatten(1).view(counts.shape)
    return result / result.sum(-1, keepdim=True)


def centre_bias(images: Sequence[Seen]) -> Tensor:
    """Log-density (n,) of the fixations of images, and a hundredth of a uniform one."""
    counts = torch.stack([one.counts for one in images]).sum(0)
    return (0.99 * smoothed(counts) + 0.01 / PLACES).log().float()


def other_viewers(one: Seen, centre: Tensor) -> Tensor:
    """The gold standard: log-density of the fixations of all viewers but the one who looks, (k, n)."""
    viewers, mine = one.viewer.unique(return_inverse=True)
    counts = torch.zeros(len(viewers), PLACES).index_put((mine, one.places), torch.ones(()), accumulate=True)
    density = smoothed(counts.sum(0) - counts)
    return (0.85 * density + 0.15 * centre.double().exp()).log()[mine]


def scores(maps: Tensor, one: Seen, others: Tensor, centre: Tensor | None) -> dict[str, float]:
    """Means over the fixations of an image.

    Args:
        maps: Of each fixation, or of all: log-densities, or any values where ``centre`` is None; (k or 1, n).
        one: The image.
        others: How often each place was fixated in other images, (n,).
        centre: Log-density that information is gained over.
    """
    maps = maps.double().expand(len(one.places), -1)
    result = {"auc": auc(maps, one.places, torch.ones(PLACES)), "shuffled_auc": auc(maps, one.places, others)}
    result["nss"] = nss(maps if centre is None else maps.exp(), one.places)
    if centre is not None:
        result["bits"] = (maps.gather(-1, one.places[:, None])[:, 0] - centre[one.places]) / math.log(2)
    return {name: float(values.mean()) for name, values in result.items()}


def attended(templates: Tensor, evidence: Tensor, count: int, near: Tensor, how: str) -> list[int]:
    """Places in the order in which they are attended: each inhibits what is near, in the preference (return).

    Args:
        templates: Of the places, (n, d).
        evidence: What is looked for, (d,).
        count: How many are attended at most.
        near: What each place inhibits, (n, n) bool.
        how: ``winner`` takes all, by the closeness ``Hard``; or the estimator of the weights that draw a place.
    """
    free, result = torch.ones(len(templates), dtype=torch.bool), []
    options: dict[str, Any] = {"closeness": fenchel.Hard()} if how == "winner" else {"estimator": how}
    query, key = evidence.view(1, 1, 1, -1), templates[None, None]
    while free.any() and len(result) < count:
        weights = infer(query, key, log_preference=free, scale=1.0, **options).weights.flatten()
        result.append(int(weights.argmax() if how == "winner" else torch.multinomial(weights, 1)))
        free = free & ~near[result[-1]]
    return result


def walks(model: Gaze, inputs: Sequence[Tensor], saliency: Sequence[Tensor], images: Sequence[Seen]) -> Any:
    """The first places that are attended in each image: what other viewers make of them, and how far apart they are."""
    grid = torch.cartesian_prod(torch.arange(H), torch.arange(W)).float()
    near, one = torch.cdist(grid, grid) <= RADIUS, torch.ones(1)
    result: dict[str, list[dict[str, float]]] = {}
    for read, salient, image in zip(inputs, saliency, images, strict=True):
        mine = image.viewer == image.viewer[0]
        density = smoothed(image.places[~mine].bincount(minlength=PLACES)[None])
        logits, lags, sampled = model(read[None].float())[0, 0], torch.full((1, 1, LAGS), -1), []
        for _ in range(WALK):
            weights = model(read[None].float(), lags)[0, 0].exp()
            sampled.append(int(torch.multinomial(weights, 1)))
            lags = torch.cat((torch.tensor([[[sampled[-1]]]]), lags[..., :-1]), -1)
        paths = {
            "viewer": image.places[mine][:WALK].tolist(),
            "centre bias, drawn": torch.multinomial(model.centre.exp(), WALK).tolist(),
            "Itti-Koch, winner": attended(salient[:, None], one, WALK, near, "winner"),
            "readout, winner": attended(logits[:, None], one, WALK, near, "winner"),
            "readout, drawn": attended(logits[:, None], one, WALK, near, "first_order"),
            "history, drawn": sampled,
        }
        for name, path in paths.items():
            apart = (grid[path][1:] - grid[path][:-1]).norm(dim=1).mean()
            seen_at = nss(density.expand(len(path), -1), torch.tensor(path)).mean()
            result.setdefault(name, []).append({"nss": float(seen_at), "step": float(apart) / W})
    return {name: summary(rows) for name, rows in result.items()}


def display(kind: str, size: int, draw: np.random.Generator) -> Tensor:
    """Templates of the items of a search display, the target first, (size, 7): saliency, two opponencies, energies."""
    picture = Image.new("RGB", (6 * SIDE, 4 * SIDE), (170, 170, 170))
    pen, middles = ImageDraw.Draw(picture), []
    for number, spot in enumerate(draw.choice(24, size, replace=False)):
        x, y = np.array((spot % 6, spot // 6)) * SIDE + SIDE // 2 + draw.integers(-5, 6, 2)
        middles.append((y, x))
        if kind.endswith(("O", "Q")):
            pen.ellipse((x - 9, y - 9, x + 9, y + 9), outline=(40, 40, 40), width=3)
            if (kind[0] == "Q") == (number == 0):
                pen.line((x, y + 3, x, y + 15), fill=(40, 40, 40), width=3)
        else:
            other = number > 0 and (kind != "conjunction" or number % 2 == 0)
            wide, high = (10, 3) if kind == "conjunction" and number % 2 else (3, 10)
            colour = (60, 150, 60) if other else (190, 60, 60)
            pen.rectangle((x - wide, y - high, x + wide, y + high), fill=colour)
    salient, raw = conspicuity(np.asarray(picture) / 255)
    maps = torch.cat([resized(one, (4 * SIDE, 6 * SIDE)) for one in (salient.mean(0)[None], raw)])
    return torch.stack([maps[:, y - 12 : y + 13, x - 12 : x + 13].mean((1, 2)) for y, x in middles])


def search(options: Options) -> dict[str, Any]:
    """Items attended until the target is found, by kind of display, guidance and number of items."""
    draw, result = np.random.default_rng(options.seed), {}
    for kind in KINDS:
        known = torch.stack([display(kind, 8, draw) for _ in range(20)])
        mean, spread = known.mean((0, 1)), known.flatten(0, 1).std(0).clamp_min(1e-3)
        wanted = (known[:, 0].mean(0) - known[:, 1:].mean((0, 1))) / spread
        bottom, top = 2 * torch.eye(7)[0], 2 * wanted / wanted[1:].norm()
        guided = torch.cat((bottom[:1], top[1:]))
        arms = {
            "bottom-up": (bottom, "winner"),
            "guided": (guided, "winner"),
            "guided, noise": (guided, "first_order"),
            "guided, noise, exact": (guided, "exact"),
            "random": (0 * top, "first_order"),
        }
        counts: dict[str, list[list[int]]] = {name: [] for name in arms}
        for size in SIZES:
            shown = [(display(kind, size, draw) - mean) / spread for _ in range(options.displays)]
            for name, (evidence, how) in arms.items():
                orders = (attended(items, evidence, size, torch.eye(size).bool(), how) for items in shown)
                counts[name].append([order.index(0) + 1 for order in orders])
        for name, columns in counts.items():
            rows = [dict(zip(map(str, SIZES), row, strict=True)) for row in zip(*columns, strict=True)]
            slopes = [np.polyfit(SIZES, [*row.values()], 1)[0] for row in rows]
            rows = [row | {"slope": float(slope)} for row, slope in zip(rows, slopes, strict=True)]
            result[f"{kind}: {name}"] = summary(rows)
    return result


def cueing(estimator: str, trials: int = 2000, strength: float = 1.5) -> dict[str, Any]:
    """The weight of the place of a target after a cue that is right in four of five trials, none, or a wrong one."""
    noise, result = torch.randn(1, 1, trials, 2, generator=torch.Generator().manual_seed(0)), {}
    evidence = noise + strength * torch.tensor([1.0, 0.0])
    for name, chance in {"valid": 0.8, "neutral": 0.5, "invalid": 0.2}.items():
        cue = torch.tensor([chance, 1 - chance]).log()
        options = {"log_preference": cue, "scale": 1.0, "estimator": estimator}
        weights = infer(evidence, torch.eye(2)[None, None], **options).weights[0, 0, :, 0]
        result[name] = interval(weights.tolist())[:2]
    return result


def summary(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Mean and half of the 95 % interval of each column."""
    return {name: interval([row[name] for row in rows])[:2] for name in rows[0]}


def study(options: Options) -> dict[str, Any]:
    """All results.

    Raises:
        InputError: If the data cannot be used.
    """
    torch.manual_seed(options.seed)
    frozen = None
    if options.frozen:
        try:
            frozen = pkgutil.resolve_name(options.frozen)
        except (ImportError, AttributeError, ValueError) as error:
            raise InputError(f"frozen is {options.frozen!r}: {error}. Give PACKAGE.MODULE:NAME.") from error
    images = read(options.data)
    if 0 < options.images < 15:
        raise InputError(f"images is {options.images}; expected at least 15. Give a larger --images.")
    if len(images) < 15:
        raise InputError(f"{options.data} gives {len(images)} images; expected at least 15. Give more.")
    draw = torch.Generator().manual_seed(options.seed)
    order = torch.randperm(len(images), generator=draw)[: options.images or len(images)].tolist()
    count = min(options.test, len(order) // 3)
    parts = {"train": [images[one] for one in order[count:]], "test": [images[one] for one in order[:count]]}
    train, test = parts.values()
    centre = centre_bias(train)
    inputs = {name: [features(one.pixels, frozen) for one in some] for name, some in parts.items()}
    known = torch.stack(inputs["train"][:100]).float()
    mean, spread = known.mean((0, 1)), known.std((0, 1)) + 1e-6
    inputs = {name: [((one - mean) / spread).half() for one in some] for name, some in inputs.items()}
    salient = {name: [itti_koch(one.pixels) for one in some[:count]] for name, some in parts.items()}
    lone = {name: [one[:, None] / 0.1 for one in some] for name, some in salient.items()}
    fitted = fit(Gaze(1, centre, "first_order", 0), lone["train"], train[:count], options, past=False)
    models: dict[str, Gaze] = {}
    for name in options.estimators or ["first_order"]:
        torch.manual_seed(options.seed)
        models[name] = Gaze(known.shape[-1], centre, name)
        fit(models[name], inputs["train"], train, options, past=False)
    first = fit(models[next(iter(models))], inputs["train"], train, options, past=True)

    def said(model: Gaze, at: int, **more: Tensor) -> Tensor:
        return model(inputs["test"][at][None].float(), **more)[0]

    arms: dict[str, Callable[[int], Tensor]] = {
        "centre bias": lambda at: centre[None],
        "Itti-Koch": lambda at: salient["test"][at][None],
        "Itti-Koch and centre": lambda at: fitted(lone["test"][at][None])[0],
        "other viewers": lambda at: other_viewers(test[at], centre),
        "readout of another image": lambda at: said(first, at - 1),
        "readout, uniform preference": lambda at: said(first, at, centre=0 * centre),
    }
    arms |= {f"readout, {name}": partial(said, model) for name, model in models.items()}
    arms[f"history, {first.estimator}"] = lambda at: said(first, at, lags=test[at].lags[None])
    total = torch.stack([one.counts for one in (*train, *test)]).sum(0)
    result: dict[str, Any] = {}
    with torch.no_grad():
        for name, maps in arms.items():
            base = centre if name != "Itti-Koch" else None
            rows = [scores(maps(at), one, total - one.counts, base) for at, one in enumerate(test)]
            result[name] = summary(rows)
        paths = walks(first, inputs["test"][:50], salient["test"][:50], test[:50])
    sizes = {"train": len(train), "test": len(test), "fixations": int(total.sum())}
    gold = result["other viewers"]["bits"][0]
    shares = {name: one["bits"][0] / gold for name, one in result.items() if "bits" in one}
    parts = {"search": search(options), "cues": {name: cueing(name) for name in ("first_order", "exact")}}
    return {"images": sizes, "models": result, "shares": shares, "paths": paths} | parts


def printed(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown: a table of each part."""
    for part, columns in {"models": ("auc", "shuffled_auc", "nss", "bits"), "paths": ("nss", "step")}.items():
        yield from (f"| {part} | {' | '.join(columns)} |".replace("_", " "), f"|---|{'---|' * len(columns)}")
        yield from (row_of(name, [one.get(key) for key in columns]) for name, one in found[part].items())
        yield ""
    arms = [name.removeprefix(f"{KINDS[0]}: ") for name in found["search"] if name.startswith(KINDS[0])]
    yield from (f"| items attended per item shown | {' | '.join(arms)} |", f"|---|{'---|' * len(arms)}")
    for kind in KINDS:
        yield row_of(kind, [found["search"][f"{kind}: {arm}"]["slope"] for arm in arms])
    yield ""
    explained = (f"{name.replace('_', ' ')} {share:.1%}" for name, share in found["shares"].items())
    yield from (f"Explained share of the other viewers' bits: {', '.join(explained)}.", "")
    yield from ("| cues | valid | neutral | invalid |", "|---|---|---|---|")
    yield from (row_of(name, [*one.values()]) for name, one in found["cues"].items())


def row_of(name: str, cells: Sequence[Any]) -> str:
    """A row of a table."""
    shown = ["–" if not one else "{:.3f} ± {:.3f}".format(*one) for one in cells]
    return f"| {name.replace('_', ' ')} | {' | '.join(shown)} |".replace(" -", " \u2212")


if __name__ == "__main__":
    main(Options, study, printed)
