"""The only file that builds a mesh. One axis, "data": batches are split over it, everything else is copied."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def in_order(devices: Any) -> list[Any]:
    """Sorted by process, so that each process holds one range of a batch's rows.

    `jax.make_mesh` would follow the wiring of a TPU slice, where chips of different hosts alternate, and rows that
    a host has read would take the place of others.
    """
    return sorted(devices, key=lambda device: (device.process_index, device.id))


class Layout:
    """How arrays are placed. Under jit they are global: a sum over a batch is a sum over all devices."""

    def __init__(self, devices: Any = None):
        devices = in_order(jax.devices() if devices is None else devices)
        # Auto, not Explicit: gathering copied prototypes by split labels must work.
        self.mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self.num_devices = len(devices)

    def batch_sharding(self, axis: int = 0) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*([None] * axis), "data"))

    def replicate(self, tree: Any) -> Any:
        """Copies a host value, the same on every process, to all devices."""
        return self._place(tree, self.replicated)

    def split(self, tree: Any, axis: int = 0) -> Any:
        """Splits arrays, the same on every process, along a batch axis that the devices divide."""
        return self._place(tree, self.batch_sharding(axis))

    def _place(self, tree: Any, sharding: NamedSharding) -> Any:
        if sharding.is_fully_addressable:
            return jax.device_put(tree, sharding)

        def place(leaf: Any) -> jax.Array:
            if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
                return jax.device_put(leaf, sharding)
            # device_put would first gather the value from all processes to check that they agree
            host = np.asarray(leaf)
            return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

        return jax.tree.map(place, tree)

    def split_local(self, array: np.ndarray) -> jax.Array:
        """Joins what each process has read of a batch into one global array."""
        return jax.make_array_from_process_local_data(self.batch_sharding(), array)

    def constrain(self, tree: Any) -> Any:
        """Inside jit: keep the leading axis split."""
        return jax.lax.with_sharding_constraint(tree, self.batch_sharding())

    def padded(self, batch_size: int) -> int:
        """The next size that the devices divide; the rows in excess are masked."""
        return -(-batch_size // self.num_devices) * self.num_devices


class DescribedLayout(Layout):
    """On devices that are only described: what would be placed there becomes its shape, type and placement.

    Programs can be lowered and compiled from these, but not run.
    """

    def _place(self, tree: Any, sharding: NamedSharding) -> Any:
        def describe(leaf: Any) -> jax.ShapeDtypeStruct:
            aval = jax.typeof(leaf)
            return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)

        return jax.tree.map(describe, tree)

    def split_local(self, array: np.ndarray) -> Any:
        return self._place(array, self.batch_sharding())
