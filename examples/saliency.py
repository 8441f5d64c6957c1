"""Where an image stands out: Itti, Koch and Niebur's model (1998), local features, and metrics of maps by fixations."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from scipy.ndimage import convolve, gaussian_filter, maximum_filter
from torch import Tensor
from torch.nn.functional import interpolate

GRID = 45, 60  # places of an image


def resized(maps: np.ndarray | Tensor, shape: tuple[int, int]) -> Tensor:
    """Maps (c, h, w) in another size, by linear interpolation; means where it is smaller."""
    some = torch.as_tensor(maps).float()[None]
    return interpolate(some, shape, mode="bilinear", antialias=some.shape[-1] > shape[1])[0]


def halved(maps: np.ndarray) -> np.ndarray:
    """Maps (c, h, w) at half of their size."""
    return resized(maps, (-(-maps.shape[-2] // 2), -(-maps.shape[-1] // 2))).numpy()


def gabors(size: int = 9, wave: float = 5.0, sigma: float = 2.2) -> np.ndarray:
    """Even and odd Gabor filters at 0, 45, 90 and 135 degrees, (4, 2, size, size), without a response to a constant."""
    y, x = np.mgrid[:size, :size] - size // 2
    result = []
    for angle in np.arange(4) * math.pi / 4:
        phase = 2 * math.pi / wave * (x * math.cos(angle) + y * math.sin(angle))
        pair = np.stack((np.cos(phase), np.sin(phase))) * np.exp(-(x**2 + y**2) / (2 * sigma**2))
        result.append(pair - pair.mean((-2, -1), keepdims=True))
    return np.stack(result)


def promoted(one: np.ndarray) -> np.ndarray:
    """N(·): a map in [0, 1] times the square of 1 − the mean of its local maxima other than the largest."""
    one = one - one.min()
    if one.max() <= 1e-6:
        return np.zeros_like(one)
    one = one / one.max()
    peaks = one[(one == maximum_filter(one, 3, mode="nearest")) & (one > 0.1)]
    others = (peaks.sum() - 1) / (len(peaks) - 1) if len(peaks) > 1 else 0.0
    return one * (1 - others) ** 2


def conspicuity(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Itti, Koch and Niebur's maps of an image (h, w, 3): of intensity, colour and orientation, (3, h', w') at scale 4.

    Returns:
        Them after N(·), so that their mean is saliency; and signed colours and energies of scale 2, (6, h", w").
    """
    light = pixels.mean(-1)
    r, g, b = np.where(light > light.max() / 10, pixels.transpose(2, 0, 1) / np.maximum(light, 1e-6), 0)
    yellow = ((r + g) / 2 - abs(r - g) / 2 - b).clip(0)
    red, green, blue = ((one - others / 2).clip(0) for one, others in ((r, g + b), (g, r + b), (b, r + g)))
    level, filters, scales = np.stack((light, red - green, blue - yellow)), gabors(), []
    for scale in range(9):
        used = filters if scale >= 2 else filters[:0]
        energies = [np.hypot(*(convolve(level[0], one, mode="nearest") for one in pair)) for pair in used]
        scales.append(np.stack((*level, *energies)))
        level = halved(level)
    coarse = scales[4].shape[-2:]
    totals = np.zeros((7, *coarse))
    for centre, step in product((2, 3, 4), (3, 4)):
        around = resized(scales[centre + step], scales[centre].shape[-2:]).numpy()
        totals += resized(np.stack([*map(promoted, abs(scales[centre] - around))]), coarse).numpy()
    orientation = np.sum([*map(promoted, totals[3:])], 0)
    result = np.stack([promoted(one) for one in (totals[0], totals[1] + totals[2], orientation)])
    return result, scales[2][1:]


def itti_koch(pixels: np.ndarray) -> Tensor:
    """Saliency of each place, (n,), smoothed, and less at the border, beyond which there is none."""
    result = resized(conspicuity(pixels)[0].mean(0)[None], GRID)[0]
    return torch.from_numpy(gaussian_filter(result.numpy(), 1.5, mode="constant")).flatten()


def features(pixels: np.ndarray, frozen: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Intensity, two opponencies and their contrasts at five scales, (n, 30), and what a frozen module says, half."""
    r, g, b = pixels.transpose(2, 0, 1)
    level, result = np.stack(((r + g + b) / 3, r - g, b - (r + g) / 2)), []
    for _ in range(5):
        mean, square = (gaussian_filter(one, (0, 2, 2), mode="nearest") for one in (level, level**2))
        result += [resized(one, GRID) for one in (mean, np.sqrt((square - mean**2).clip(0)))]
        level = halved(mean)
    if frozen is not None:
        with torch.no_grad():
            result.append(resized(frozen(torch.from_numpy(pixels).permute(2, 0, 1)), GRID))
    return torch.cat(result).flatten(1).T.half()


def auc(maps: Tensor, places: Tensor, counts: Tensor) -> Tensor:
    """Area under the curve of each fixation (k,): the share of counted places whose value is less; half of ties."""
    values = maps.gather(-1, places[:, None])
    return (((maps < values).double() + (maps <= values)) / 2) @ counts.double() / counts.sum()


def nss(maps: Tensor, places: Tensor) -> Tensor:
    """Value of each fixation (k,) on a map of mean 0 and standard deviation 1."""
    spread = maps.std(-1, correction=0, keepdim=True)
    scaled = (maps - maps.mean(-1, keepdim=True)) / torch.where(spread > 0, spread, 1)
    return scaled.gather(-1, places[:, None])[:, 0]
