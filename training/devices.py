"""Devices: which strategy, precision and compilation a run gets on the hardware there is."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence

import tensorflow as tf

from beam_pipeline.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What a run computes on.

    Attributes:
      devices: names such as "GPU:0"; ["CPU:0"] without a GPU.
      capabilities: compute capability of each GPU, (major, minor), or None where unknown.
      workers: processes of the cluster.
    """

    devices: tuple[str, ...]
    capabilities: tuple[tuple[int, int] | None, ...] = ()
    workers: int = 1

    @property
    def has_gpu(self) -> bool:
        """Whether any device is a GPU."""
        return any(device.startswith("GPU") for device in self.devices)


def find_hardware(wanted: Sequence[str] = ()) -> Hardware:
    """The devices to use: those `wanted`, else every GPU, else the CPU.

    Raises:
      UsageError: a wanted device is not there; those that are, are listed.
    """
    gpus = tf.config.list_physical_devices("GPU")
    present = [f"GPU:{number}" for number in range(len(gpus))]
    present += [f"CPU:{number}" for number in range(len(tf.config.list_logical_devices("CPU")))]
    names = tuple(name.upper() for name in wanted)
    for name in names:
        if name not in present:
            raise UsageError(f"device {name!r} is not here; there are {', '.join(present)}")
    if len(set(names)) != len(names):
        raise UsageError(f"a device is named twice: {', '.join(names)}")
    names = names or tuple(present[: len(gpus)]) or ("CPU:0",)
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    capabilities = tuple(
        details[int(name.split(":")[1])].get("compute_capability")
        for name in names
        if name.startswith("GPU")
    )
    return Hardware(names, capabilities, cluster_workers())


def cluster_workers() -> int:
    """Processes in the cluster that TF_CONFIG describes; 1 without it.

    Raises:
      UsageError: TF_CONFIG is not what TensorFlow expects.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return 1
    try:
        cluster = json.loads(text).get("cluster", {})
        return sum(len(cluster.get(job, ())) for job in ("chief", "worker")) or 1
    except (ValueError, AttributeError) as error:
        raise UsageError(
            "TF_CONFIG must be JSON such as "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            f'"task": {{"type": "worker", "index": 0}}}}; got {text!r}'
        ) from error


def choose_precision(requested: str, hardware: Hardware) -> str:
    """The Keras precision policy.

    "auto" is bfloat16 where every GPU computes with it (capability 8.0 on: no loss
    scaling needed), float16 on older ones with tensor cores (7.0 on), else float32.
    """
    if requested != "auto":
        return requested
    if not hardware.has_gpu or None in hardware.capabilities:
        return "float32"
    oldest = min(capability for capability in hardware.capabilities if capability)
    if oldest >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if oldest >= (7, 0) else "float32"


def choose_xla(requested: str, hardware: Hardware) -> bool:
    """Whether the step is compiled with XLA; "auto": on a GPU (on a CPU it costs time)."""
    return hardware.has_gpu if requested == "auto" else requested == "on"


def set_up(wanted: Sequence[str] = ()) -> tuple[Hardware, tf.distribute.Strategy]:
    """Finds the devices and makes the strategy of a run.

    One device gets TensorFlow's default strategy (or, when it was asked for by name, one
    for that device), several a MirroredStrategy, several processes (TF_CONFIG) a
    MultiWorkerMirroredStrategy, which must come before anything that TensorFlow computes.

    Raises:
      UsageError: a wanted device is not there, or the cluster cannot be formed.
    """
    if cluster_workers() > 1:
        if wanted:
            raise UsageError("devices cannot be chosen when TF_CONFIG describes several workers")
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        except (RuntimeError, ValueError, tf.errors.OpError) as error:
            raise UsageError(f"cannot form the cluster of TF_CONFIG: {error}") from error
        return find_hardware(), strategy
    hardware = find_hardware(wanted)
    if len(hardware.devices) > 1:
        return hardware, tf.distribute.MirroredStrategy(list(hardware.devices))
    if wanted:
        return hardware, tf.distribute.OneDeviceStrategy(hardware.devices[0])
    return hardware, tf.distribute.get_strategy()


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes."""
    resolver = strategy.cluster_resolver
    return (
        resolver is None
        or resolver.task_type in (None, "chief")
        or (
            resolver.task_type == "worker"
            and resolver.task_id == 0
            and "chief" not in resolver.cluster_spec().jobs
        )
    )
