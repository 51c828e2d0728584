"""The life cycle that every telemetry device shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Sample = Mapping[str, float | None]
"""Values of one look at a device by field name; None where the device refuses a value, never 0."""


class DeviceError(Exception):
    """A device cannot be opened or sampled at the moment; the message is one sentence."""


class Device(Protocol):
    """Something that is looked at a few times a second while a probe runs.

    A device is opened, sampled and closed by one thread. Its fields appear in the telemetry as
    ``NAME.FIELD``, e.g. ``gpu0.power_w``.
    """

    @property
    def name(self) -> str:
        """Short name, unique among the devices of a recorder: ``gpu0``, ``engine``, ``host``."""
        ...

    @property
    def counters(self) -> frozenset[str]:
        """Fields that only grow, of which the growth over a probe is what matters."""
        ...

    def open(self) -> None:
        """Get hold of the device.

        Raises:
            DeviceError: it is not there.
        """
        ...

    def sample(self) -> Sample:
        """Look at it once. Must come back within a few seconds.

        Raises:
            DeviceError: it cannot be looked at now.
        """
        ...

    def close(self) -> None:
        """Let go of it. Safe to call twice, and without a successful ``open``."""
        ...
