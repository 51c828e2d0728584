"""Why a GPU runs below its top clock: NVML's clocks-event reasons.

Bits from ``nvml.h`` (nvmlClocksEventReason*). Reaching the power limit is how a small card works under full
load, the same for every configuration; heat, a hardware slowdown or a power brake are disturbances.
"""

from __future__ import annotations

REASONS: dict[str, int] = {
    "idle": 0x1,
    "application_clocks": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Short names of the reasons and their bits."""

DISTURBANCES = ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake")
"""Reasons that make a measurement unlike the next one on the same card."""

_DISTURBANCE_BITS = sum(REASONS[name] for name in DISTURBANCES)


def decode_reasons(bits: int) -> tuple[str, ...]:
    """Names of the reasons in a bit set; a bit without a name becomes ``0x200`` and the like."""
    named = tuple(name for name, bit in REASONS.items() if bits & bit)
    rest = bits & ~sum(REASONS.values())
    unnamed = tuple(f"0x{1 << i:x}" for i in range(rest.bit_length()) if rest >> i & 1)
    return named + unnamed


def is_disturbed(bits: int) -> bool:
    """True when the clocks are held down by heat, a hardware slowdown or a power brake."""
    return bool(bits & _DISTURBANCE_BITS)
