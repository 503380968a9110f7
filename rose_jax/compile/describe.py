"""Devices by name: a topology of TPUs that the compiler knows, and what is published of their chips."""

import importlib.util
import os
import re
from typing import Any, NamedTuple

from rose_jax.errors import UserError, unknown


class Chip(NamedTuple):
    """Published figures of what jax calls one device."""

    flops_per_cycle: int  # of its matrix units in bfloat16: 2 x 128 x 128 (v6e: 256 x 256) x their number
    peak: float  # FLOP/s in bfloat16
    memory: float  # bytes

    @property
    def clock(self) -> float:
        """Hz, at which matrix units that are never idle reach the published peak."""
        return self.peak / self.flops_per_cycle


_MXU = 2 * 128 * 128
CHIPS = {  # by jax's device_kind; the two cores of v4's and v5p's chips are one device, as on a TPU VM
    "TPU v4": Chip(8 * _MXU, 275e12, 32 * 2**30),
    "TPU v5 lite": Chip(4 * _MXU, 197e12, 16 * 2**30),
    "TPU v5": Chip(8 * _MXU, 459e12, 95 * 2**30),
    "TPU v5p": Chip(8 * _MXU, 459e12, 95 * 2**30),
    "TPU v6 lite": Chip(16 * _MXU, 918e12, 32 * 2**30),
}
_ONE_HOST = {"v4": "2x2x1", "v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2"}  # the smallest that can be described
_OPTIONS = {"v4": {"chip_config_name": "megacore"}}  # which the others are by themselves, or have one core
_ACCELERATOR_TYPES = {"v4": "v4-8", "v5e": "v5litepod-8", "v5p": "v5p-8", "v6e": "v6e-8"}
EXAMPLES = "v5e:1, v5e:2x4, v4:2x2x1"


class Topology(NamedTuple):
    name: str  # as it was asked for
    devices: list[Any]
    chip: Chip
    compiler: str  # its version: what was compiled by another is compiled again


def describe(name: str) -> Topology:
    """`v5e:1` is one device; `v5e:2x4` all eight of that shape."""
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name)
    if not match:
        raise UserError(f"--topology {name!r} is not of the form KIND:SHAPE, as {EXAMPLES}.")
    kind, shape = match[1], match[2]
    if kind not in _ONE_HOST:
        raise unknown("kind of TPU", kind, _ONE_HOST)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "The TPU compiler is not installed: there is no package libtpu. It runs on any Linux x86 machine, without a "
            "TPU: pip install -e '.[tpu]' in rose_jax's folder, best into an environment of its own."
        )
    # Lest libtpu looks for the TPU of this machine, asks a cloud for it, or locks it against other processes.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", _ACCELERATOR_TYPES[kind])
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    import jax
    import libtpu
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")
    whole = f"{kind}:{_ONE_HOST[kind] if shape == '1' else shape}"
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=whole, **_OPTIONS.get(kind, {}))
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"The compiler cannot describe {name!r}: {str(error).splitlines()[0]}") from None
    devices: list[Any] = list(described.devices)[: 1 if shape == "1" else None]
    device_kind = devices[0].device_kind
    if device_kind not in CHIPS:
        raise UserError(
            f"libtpu {libtpu.__version__} calls the devices of {name!r} {device_kind!r}, of which rose_jax knows no published "
            f"figures (it does of {', '.join(CHIPS)}): add them to CHIPS in {__file__}."
        )
    return Topology(name, devices, CHIPS[device_kind], f"libtpu {libtpu.__version__}, jax {jax.__version__}")
