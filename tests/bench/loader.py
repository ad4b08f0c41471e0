"""Whether a run's loader keeps its cores at work: packed JPEGs to batches, against bare loops of that work.

A bare loop holds the same bytes in memory, in as many processes as the loader has workers, decodes them with
torchvision and applies the transforms of torchvision's training recipe, and gives nothing away.
"""

import io
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from figures import Figure
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from daso_bench.datasets.image_files import ImageFiles
from daso_bench.datasets.packed.packed_file import Description, Packed, writing
from daso_bench.datasets.pixels import PixelRules, decode_content
from daso_bench.datasets.sampler import Sampler
from daso_bench.datasets.transforms import IMAGENET_MEAN, IMAGENET_STD, centre_crop, normalise, recipe
from daso_bench.runner.training.batch_order import GlobalOrder
from daso_bench.runner.training.loader import Ahead
from daso_bench.strategies.progress import Progress

IMAGES, HEIGHT, WIDTH, QUALITY = 384, 375, 500, 90
NOISE = 20.0  # standard deviation of the pixels: files of about 100 kB, as ImageNet's are
SIDE, BATCH = 224, 32
WORKERS, PREFETCH = 2, 2
BLOCK, ALTERNATIONS = 8, 9  # batches of a measurement, and how often each thing is measured
SETTLE_S = 0.3  # more than a batch takes
LIMIT = 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class Photographs:
    """JPEGs in a packed file: decoded, cut, flipped and normalised as `files` says."""

    path: Path
    files: ImageFiles

    @cached_property
    def packed(self) -> Packed:
        """The file, opened in the process that reads it."""
        return Packed(self.path)

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """See `datasets.data.Samples`."""
        pixels, labels = self.changed(indices, 0)
        return self.normalise(pixels), labels

    @property
    def shape(self) -> tuple[int, int, int]:
        """See `datasets.data.Compact`."""
        return self.files.shape

    @property
    def target_bytes(self) -> int:
        """See `datasets.data.Compact`."""
        return 0

    @property
    def normalise(self) -> Callable[[Tensor], Tensor]:
        """See `datasets.data.Compact`."""
        return self.files.normalise

    def changed(self, indices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """See `datasets.data.Compact`."""
        images = self.files.changed_pixels(self.pixels(indices), indices, key)
        return images, self.files.labels.index_select(0, indices)

    def pixels(self, indices: Tensor) -> Iterator[Tensor]:
        """Images uint8 [3, H, W]."""
        for index in indices.tolist():
            content = bytearray(self.packed.size_of(index, 1))
            self.packed.read(index, 1, memoryview(content))
            yield decode_content(bytes(content), f"{self.path}: record {index}", self.files.rules)


class Fed:
    """A loader in the steady state of a run: its workers are never waited for to begin."""

    def __init__(self, samples: Photographs) -> None:
        self._sampler = Sampler(len(samples), BATCH, 1, seed=1)
        order = GlobalOrder(self._sampler, 0)
        self._loader = Ahead(samples, order, 2, workers=WORKERS, prefetch=PREFETCH, pin=False)
        self._progress = Progress(10**6, self._sampler.steps_per_epoch)
        self._take(WORKERS * PREFETCH)
        self._loader.on_pause()

    def seconds(self) -> float:
        """Of a block of batches, after those that were made while others were measured."""
        self._loader.on_train_start()
        self._take(WORKERS * (PREFETCH + 1))
        began = time.perf_counter()
        self._take(BLOCK)
        took = time.perf_counter() - began
        self._loader.on_pause()
        time.sleep(SETTLE_S)  # workers complete the batch at hand
        return took

    def close(self) -> None:
        """Ends the workers."""
        self._loader.close()

    def _take(self, batches: int) -> None:
        for _ in range(batches):
            self._loader.next(self._progress)
            self._progress.batch += 1
            if self._progress.batch == self._sampler.steps_per_epoch:
                self._progress.epoch, self._progress.batch = self._progress.epoch + 1, 0


class Bare:
    """As many processes that do `work` with each of their share of `contents`, and nothing else."""

    def __init__(self, work: Callable[[Tensor], object], contents: list[Tensor]) -> None:
        context = multiprocessing.get_context("fork")
        self._lines, self._processes = [], []
        for number in range(WORKERS):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_loop, args=(work, contents[number::WORKERS], theirs), daemon=True
            )
            process.start()
            self._lines.append(ours)
            self._processes.append(process)

    def seconds(self) -> float:
        """Until each has gone through its share of a block."""
        began = time.perf_counter()
        for line in self._lines:
            line.send(BLOCK * BATCH // WORKERS)
        for line in self._lines:
            line.recv()
        return time.perf_counter() - began

    def close(self) -> None:
        """Ends the processes."""
        for line in self._lines:
            line.send(0)
        for process in self._processes:
            process.join()


def loader() -> list[Figure]:
    """Images per second of the loader over those of bare loops, paired and in turn."""
    contents = [photograph(number) for number in range(IMAGES)]
    torch.set_num_threads(1)  # as a rank beside loader workers; more would spin on cores that workers need
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "jpegs.pack"
        pack(path, contents)
        arms: dict[str, Fed | Bare] = {
            "bare": Bare(transformed(), contents),
            "loader": Fed(Photographs(path=path, files=files())),
        }
        for arm in arms.values():
            stack.callback(arm.close)
        took: dict[str, list[float]] = {name: [] for name in arms}
        for turn in range(ALTERNATIONS):
            for name in sorted(arms, reverse=bool(turn % 2)):
                took[name].append(arms[name].seconds())
    return figures_of(took, statistics.mean(map(len, contents)))


def photograph(number: int) -> Tensor:
    """A JPEG file, bytes uint8 [n]: smooth colours and noise."""
    generator = torch.Generator().manual_seed(number)
    smooth = v2.functional.resize(torch.rand(3, 6, 8, generator=generator), [HEIGHT, WIDTH], antialias=True)
    noise = NOISE * torch.randn(3, HEIGHT, WIDTH, generator=generator)
    pixels = (255 * smooth + noise).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=QUALITY)
    return torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)


def pack(path: Path, contents: list[Tensor]) -> None:
    """Write the JPEGs as records."""
    description = Description(
        name="photographs",
        classes=1000,
        shape=(3, HEIGHT, WIDTH),
        encoding="jpeg",
        made="by tests/bench/loader.py",
    )
    with writing(path, description) as writer:
        for content in contents:
            writer.add(content.numpy().tobytes(), 0)


def files() -> ImageFiles:
    """What a training run makes of photographs."""
    return ImageFiles(
        root="",
        shape=(3, SIDE, SIDE),
        paths=[""] * IMAGES,
        labels=torch.zeros(IMAGES, dtype=torch.int64),
        rules=PixelRules(),
        transform=partial(centre_crop, resize=256, crop=SIDE),
        normalise=partial(normalise, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        change=recipe("resized_crop_flip", (SIDE, SIDE)),
    )


def decoded(content: Tensor) -> Tensor:
    """uint8 [3, H, W], by torchvision."""
    pixels = decode_jpeg(content, mode=ImageReadMode.RGB)
    assert isinstance(pixels, Tensor), "of one file"
    return pixels


def transformed() -> Callable[[Tensor], Tensor]:
    """Decoding, and the transforms of torchvision's training recipe for ResNet-50."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    return lambda content: transform(decoded(content))


def _loop(work: Callable[[Tensor], object], contents: list[Tensor], line: Connection) -> None:
    torch.set_num_threads(1)
    place = 0
    while images := line.recv():
        for _ in range(images):
            work(contents[place])
            place = (place + 1) % len(contents)
        line.send(None)


def figures_of(took: dict[str, list[float]], file_bytes: float) -> list[Figure]:
    """The ratio of rates and the rates, from the seconds of blocks that took turns."""
    ratios = [bare / ours for ours, bare in zip(took["loader"], took["bare"], strict=True)]
    detail = (
        "images/s: packed JPEGs to normalised batches, over torchvision decoding and the same transform; "
        f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} pairs"
    )
    ratio = Figure("loader_over_bare", statistics.median(ratios), LIMIT, detail, at_least=True)
    words = f"images/s, {WORKERS} processes; {WIDTH} x {HEIGHT}, {file_bytes / 1000:.0f} kB on average"
    rates = {name: BLOCK * BATCH / statistics.median(times) for name, times in took.items()}
    return [ratio, *(Figure(f"{name}_images_per_s", rate, None, words) for name, rate in rates.items())]
