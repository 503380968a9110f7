"""Memory and time of the fourteen settings, worked out on paper: the tables of docs/scaling.md, in Markdown.

    python scripts/budget.py [--utilisation 0.3] [--update docs/scaling.md]
    python scripts/budget.py --measure_decode    # CPU milliseconds per ImageNet-sized JPEG, on this machine

Everything here is arithmetic on configs/*.py, the network's shapes and published peak figures; nothing is run.
"""

import argparse
import importlib
import io
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from rose_jax.config import Config
from rose_jax.data.scenario import Scenario, make_scenario
from rose_jax.data.sources import KNOWN
from rose_jax.models.resnet import BLOCKS_PER_STAGE, STEMS
from rose_jax.runtime.files import write_text
from rose_jax.train.schedule import task_schedule

SETTINGS = (
    *(f"cifar100_{start}{tasks}" for start in ("cold", "warm") for tasks in (5, 10, 20)),
    *(f"tiny_{start}{tasks}" for start in ("cold", "warm") for tasks in (5, 10, 20)),
    *("imagenet100_cold10", "imagenet100_warm10"),
)
# Images of a class: train, test. ImageNet's classes have 732 to 1300; 1300 is the upper end.
PER_CLASS = {"cifar100": (500, 100), "tiny": (500, 50), "imagenet100": (1300, 50)}


class Device(NamedTuple):
    """Published figures of one chip; `link` is what a ring all-reduce can send out of a chip."""

    peak: float  # FLOP/s in bfloat16
    memory: float  # bytes
    bandwidth: float  # bytes/s of that memory
    link: float  # bytes/s


class System(NamedTuple):
    device: Device
    devices: int
    vcpus: int  # of the host


# TPU links are 50 GB/s each way, and a chip of a 2x2 or 2x4 slice has two on the ring; NVLink 3: 300 GB/s.
V4 = Device(275e12, 32e9, 1200e9, 100e9)
V5E = Device(197e12, 16e9, 819e9, 100e9)
A100 = Device(312e12, 40e9, 1555e9, 300e9)
SYSTEMS = {"v4-8": System(V4, 4, 240), "v5e-8": System(V5E, 8, 224), "8 x A100": System(A100, 8, 96)}

# Assumptions, not measurements.
UTILISATION = 0.30  # of peak FLOP/s, while computing
COLLECTIVE_SECONDS = 10e-6  # latency of one small all-reduce
DECODE_MS = 6.0  # of a vCPU for one ImageNet JPEG: twice a core's (--measure_decode), as two share a core
STORED_PER_CONVOLUTION = 2  # tensors of its output's size kept for the backward pass: before and after the norm
OPTIMIZER_PASSES = 5  # over the parameters: gradient, momentum and parameter read; the last two written


class Conv(NamedTuple):
    kernel: int
    inputs: int
    outputs: int
    size: int  # of the output, a side

    @property
    def macs(self) -> int:
        return self.kernel**2 * self.inputs * self.elements

    @property
    def elements(self) -> int:
        return self.outputs * self.size**2


class Network(NamedTuple):
    convs: tuple[Conv, ...]

    @property
    def macs(self) -> int:
        return sum(conv.macs for conv in self.convs)

    @property
    def parameters(self) -> int:
        """Kernels, and scale and bias of the norm behind each."""
        return sum(conv.kernel**2 * conv.inputs * conv.outputs + 2 * conv.outputs for conv in self.convs)

    @property
    def statistics(self) -> int:
        return sum(2 * conv.outputs for conv in self.convs)

    @property
    def elements(self) -> int:
        return sum(conv.elements for conv in self.convs)

    @property
    def largest(self) -> int:
        return max(conv.elements for conv in self.convs)


class Setting(NamedTuple):
    config: Config
    scenario: Scenario
    network: Network
    image_size: int
    train_per_class: int
    test_per_class: int

    def steps(self, task: int) -> int:
        images = self.train_per_class * self.scenario.sizes[task]
        return task_schedule(self.config.train, task).epochs * max(images // self.config.train.batch_size, 1)

    def flops_per_image(self, task: int) -> int:
        """Forward 1, backward 2, the teacher's forward 1 from the second task on; 2 FLOPs per MAC.

        Warm start with expanded labels trains on four rotations and four mixtures of each image and passes four
        rotations of a second view.
        """
        passes = 3 if task == 0 else 4
        if self.config.loss.expand_labels:
            passes = 8 * passes + 4
        return 2 * self.network.macs * passes

    @property
    def train_flops(self) -> float:
        batch = self.config.train.batch_size
        tasks = range(self.scenario.num_tasks)
        return float(sum(self.steps(t) * batch * self.flops_per_image(t) for t in tasks))

    @property
    def scoring_flops(self) -> float:
        """f_t and f_t-1 over each stage's stream, and f_t over D_t for the prototypes."""
        tasks = range(self.scenario.num_tasks)
        stream = sum(self.scenario.seen(t) * self.test_per_class * (1 if t == 0 else 2) for t in tasks)
        return 2.0 * self.network.macs * (stream + self.scenario.num_classes * self.train_per_class)

    def state_bytes(self) -> dict[str, float]:
        """What every device holds in float32 throughout a later task."""
        dim, classes = self.network.convs[-1].outputs, self.scenario.num_classes
        model = self.network.parameters + self.network.statistics + classes * dim
        return {
            "network": 4 * model,
            "gradient": 4 * self.network.parameters,
            "momentum": 4 * self.network.parameters,
            "teacher": 4 * model,
            "projector": 4 * 5 * dim**2,  # itself, its gradient, Adam's two moments, the teacher's
        }

    def data_bytes(self) -> float:
        """Resident uint8 images, train and test; streamed sets: the batches in flight."""
        image = 3 * self.image_size**2
        if not KNOWN[self.config.data.dataset].in_memory:
            return 2 * self.config.train.batch_size * image
        return (self.train_per_class + self.test_per_class) * self.scenario.num_classes * image

    def activation_bytes(self, batch: float, bytes_per_value: int) -> float:
        """The student's stored tensors, the teacher's two largest in passing, and the float32 images."""
        values = STORED_PER_CONVOLUTION * self.network.elements + 2 * self.network.largest
        if self.config.loss.expand_labels:
            batch = 8 * batch  # the second view keeps nothing for a gradient
        return batch * (values * bytes_per_value + 4 * 3 * self.image_size**2)

    def checkpoint_bytes(self) -> tuple[float, float]:
        """A stage's snapshot, and a checkpoint inside a task."""
        state, projector = self.state_bytes(), 4 * self.network.convs[-1].outputs ** 2
        return state["network"] + projector, state["network"] + state["momentum"] + 3 * projector

    def queue_bytes(self) -> float:
        """RoSE's state: queue of pairs, Gram and cross sums, map, three prototype tables, in float32."""
        dim, capacity = self.network.convs[-1].outputs, self.config.evolution.capacity
        return 4 * (2 * capacity * dim + 3 * dim**2 + 3 * self.scenario.num_classes * dim)


def resnet18(width: int, stem: str, size: int) -> Network:
    """Every convolution of rose_jax.models.resnet, from the same table of stems and blocks."""
    kernel, stride, pool = STEMS[stem]
    size //= stride
    convs = [Conv(kernel, 3, width, size)]
    size, channels = size // 2 if pool else size, width
    for stage, blocks in enumerate(BLOCKS_PER_STAGE):
        for block in range(blocks):
            inputs, channels = channels, width * 2**stage
            size = size // 2 if stage > 0 and block == 0 else size
            convs += [Conv(3, inputs, channels, size), Conv(3, channels, channels, size)]
            if inputs != channels:
                convs.append(Conv(1, inputs, channels, size))
    return Network(tuple(convs))


def load(name: str) -> Setting:
    config = importlib.import_module(f"configs.{name}").get_config()
    spec = KNOWN[config.data.dataset]
    network = resnet18(config.model.width, config.model.stem, spec.image_size)
    scenario = make_scenario(config.scenario, spec.num_classes)
    return Setting(config, scenario, network, spec.image_size, *PER_CLASS[config.data.dataset])


def step_seconds(setting: Setting, task: int, device: Device, devices: int, utilisation: float) -> float:
    """Computing, then the gradients' all-reduce, the norms' small ones, and the update; nothing overlaps."""
    batch, gradients = setting.config.train.batch_size, 4 * setting.network.parameters
    seconds = setting.flops_per_image(task) * batch / (devices * utilisation * device.peak)
    seconds += OPTIMIZER_PASSES * gradients / device.bandwidth
    if devices > 1:
        seconds += 2 * (devices - 1) / devices * gradients / device.link
        # Mean and variance of each norm, forward and backward.
        seconds += 4 * len(setting.network.convs) * COLLECTIVE_SECONDS
    return seconds


def run_seconds(setting: Setting, device: Device, devices: int, utilisation: float) -> float:
    tasks = range(setting.scenario.num_tasks)
    training = sum(setting.steps(t) * step_seconds(setting, t, device, devices, utilisation) for t in tasks)
    return training + setting.scoring_flops / (devices * utilisation * device.peak)


# The tables.


def tables(utilisation: float = UTILISATION) -> dict[str, str]:
    settings = {name: load(name) for name in SETTINGS}
    first_of = {s.config.data.dataset: s for s in settings.values()}
    kinds = {(s.config.data.dataset, s.config.train.batch_size): s for s in settings.values()}
    return {
        "network": markdown(network_rows(first_of)),
        "memory": markdown(memory_rows(kinds)),
        "time": markdown(time_rows(settings, utilisation)),
        "step": markdown(split_rows(kinds, utilisation)),
        "decode": markdown(decode_rows(settings, utilisation)),
    }


def network_rows(by_dataset: dict[str, Setting]) -> Iterator[list[str]]:
    yield ["data set", "image", "stem", "parameters", "GMAC per image", "GFLOP per training image, task 1 / later"]
    for name, s in by_dataset.items():
        flops = " / ".join(f"{s.flops_per_image(task) / 1e9:.2f}" for task in (0, 1))
        image, macs = f"{s.image_size} x {s.image_size}", f"{s.network.macs / 1e9:.3f}"
        yield [name, image, s.config.model.stem, f"{s.network.parameters:,}", macs, flops]


def memory_rows(kinds: dict[tuple[str, int], Setting]) -> Iterator[list[str]]:
    yield [
        *("data set, batch", "state MB", "data MB", "queue MB", "activations GB, 1 device"),
        *("total GB on 1", "on 4", "on 8", "disk MB, stage / in task"),
    ]
    for (dataset, batch), s in kinds.items():
        fixed = sum(s.state_bytes().values()) + s.data_bytes() + s.queue_bytes()

        def both(devices: int, fixed: float, s: Setting = s, batch: int = batch) -> str:
            each = (fixed + s.activation_bytes(batch / devices, size) for size in (4, 2))
            return " / ".join(f"{value / 1e9:.2f}" for value in each)

        megabytes = [f"{v / 1e6:,.0f}" for v in (sum(s.state_bytes().values()), s.data_bytes(), s.queue_bytes())]
        disk = " / ".join(f"{value / 1e6:.0f}" for value in s.checkpoint_bytes())
        yield [f"{dataset}, {batch}", *megabytes, both(1, 0), *(both(n, fixed) for n in (1, 4, 8)), disk]


def time_rows(settings: dict[str, Setting], utilisation: float) -> Iterator[list[str]]:
    columns = [c for name in SYSTEMS for c in (f"one {name.split(' x ')[-1].split('-')[0]}", name)]
    yield ["setting", "steps", "million images", "PFLOP", "scoring %", *columns]
    sums = [0.0] * len(columns)
    for name, s in settings.items():
        steps = sum(s.steps(task) for task in range(s.scenario.num_tasks))
        total = s.train_flops + s.scoring_flops
        seconds = [
            run_seconds(s, system.device, n, utilisation)
            for system in SYSTEMS.values()
            for n in (1, system.devices)
        ]
        images, share = steps * s.config.train.batch_size / 1e6, 100 * s.scoring_flops / total
        yield [
            *(name, f"{steps:,}", f"{images:.2f}", f"{total / 1e15:,.0f}", f"{share:.1f}"),
            *map(duration, seconds),
        ]
        sums = [a + b for a, b in zip(sums, seconds, strict=True)]
    yield ["all, one seed", "", "", "", "", *map(duration, sums)]


def split_rows(kinds: dict[tuple[str, int], Setting], utilisation: float) -> Iterator[list[str]]:
    yield ["data set, batch", *(f"{name}: images per device; ms; of it computing" for name in SYSTEMS)]
    for (dataset, batch), s in kinds.items():
        row = [f"{dataset}, {batch}"]
        for device, devices, _ in SYSTEMS.values():
            whole = step_seconds(s, 1, device, devices, utilisation)
            computing = s.flops_per_image(1) * batch / (devices * utilisation * device.peak)
            row.append(f"{batch // devices}; {1e3 * whole:.1f}; {100 * computing / whole:.0f} %")
        yield row


def decode_rows(settings: dict[str, Setting], utilisation: float) -> Iterator[list[str]]:
    yield ["setting", *(f"{name} ({system.vcpus} vCPU): images/s; vCPUs" for name, system in SYSTEMS.items())]
    for name, s in settings.items():
        if KNOWN[s.config.data.dataset].in_memory:
            continue
        row = [name]
        for device, devices, _ in SYSTEMS.values():
            rate = s.config.train.batch_size / step_seconds(s, 1, device, devices, utilisation)
            row.append(f"{rate:,.0f}; {rate * DECODE_MS / 1e3:.0f}")
        yield row


def duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def markdown(rows: Iterator[list[str]]) -> str:
    header, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *body))


def update(page: str, texts: dict[str, str]) -> str:
    """The page with each table put between its <!-- NAME --> and <!-- end --> lines."""
    for name, text in texts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, found = re.subn(pattern, lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"error: the page has {found} places for the table {name!r}, not one.")
    return page


def measure_decode(count: int = 150) -> str:
    """scikit-learn's two photographs at ImageNet's usual 500 x 375, by the code that the workers run."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    from rose_jax.data import crops, decode

    files = []
    for photo in load_sample_images().images:
        buffer = io.BytesIO()
        Image.fromarray(photo).resize((500, 375)).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    rng, begun = np.random.default_rng(0), time.process_time()
    for k in range(count):
        crops.random_resized_crop(decode.open_rgb(files[k % len(files)], "photo"), 224, rng)
    each = 1e3 * (time.process_time() - begun) / count
    sizes = " and ".join(f"{len(file) // 1000} kB" for file in files)
    return f"{each:.2f} ms of CPU per image (JPEG 500 x 375, {sizes}; random crop to 224)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utilisation", type=float, default=UTILISATION, help="assumed share of peak FLOP/s")
    parser.add_argument("--update", type=Path, help="put the tables into this page instead of printing them")
    parser.add_argument("--measure_decode", action="store_true")
    options = parser.parse_args()
    if not 0 < options.utilisation <= 1:
        parser.error("--utilisation must be in (0, 1]")
    if options.measure_decode:
        print(measure_decode())
    elif options.update:
        write_text(options.update, update(options.update.read_text(), tables(options.utilisation)))
    else:
        for name, text in tables(options.utilisation).items():
            print(f"{name}\n\n{text}\n")


if __name__ == "__main__":
    main()
