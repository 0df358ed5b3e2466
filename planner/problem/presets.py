"""Device presets: memory, memory bandwidth and dense peaks from the vendors' data sheets.

Sources (NVIDIA data sheets), FLOP/s in float32 outside tensor cores / TF32 / 16 bit: Tesla P100 PCIe 16GB (732 GB/s,
9.3 / - / 18.7 T, no tensor cores); Tesla V100 PCIe 16/32GB (900 GB/s, 14 / - / 112 T); A100 40GB (1555 GB/s) and
80GB SXM (2039 GB/s), 19.5 / 156 / 312 T; H100 SXM 80GB (3.35 TB/s) and H200 SXM 141GB (4.8 TB/s), 66.9 / 494.7 /
989.4 T, half of what the sheets give with sparsity. bfloat16 came with the A100 at the rate of float16. Tesla V100
SXM2 (900 GB/s, 15.7 / - / 125 T); A10 (600 GB/s, 31.2 / 62.5 / 125 T); RTX A6000 (768 GB/s, 38.7 / 77.4 / 154.8 T);
GeForce RTX 4090 (1008 GB/s, 82.6 / 82.6 / 165.2 T with float32 sums, Ada architecture white paper); L40S (864 GB/s,
91.6 / 183 / 362.05 T); B200 as an eighth of an HGX B200 (180 GB, 8 TB/s, 75 / 1125 / 2250 T). AMD's data sheet of the
MI300X: 192 GB, 5.3 TB/s, 163.4 / 653.7 / 1307.4 T. Of sparse figures half is taken. Memory is what the name says in
GiB up to 80 GB (the driver shows about that), decimal above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

GIB = 1024**3


@dataclass(frozen=True)
class DeviceType:
    """One kind of device.

    Attributes:
        memory_bytes: bytes that parameters, stashes and buffers may fill.
        speed: layer times are divided by this.
        memory_bandwidth: bytes/s; read or written by the optimizer step, and for analytic costs. None: STEP takes
            no time.
        flops: dense 16-bit peak in FLOP/s, for analytic costs; None where unknown.
        fp32_flops, tf32_flops: the same in float32, without and with rounding to TF32; None where there is none.
        bf16: whether the 16-bit peak is bfloat16's too.
    """

    name: str
    memory_bytes: int
    speed: float = 1.0
    memory_bandwidth: float | None = None
    flops: float | None = None
    fp32_flops: float | None = None
    tf32_flops: float | None = None
    bf16: bool = False

    def peaks(self) -> dict[str, float]:
        """Dense peak in FLOP/s by precision: those of fp32, tf32, fp16 and bf16 that the device has."""
        bf16 = self.flops if self.bf16 else None
        known = {"fp32": self.fp32_flops, "tf32": self.tf32_flops, "fp16": self.flops, "bf16": bf16}
        return {precision: peak for precision, peak in known.items() if peak is not None}


class KindSpeed(NamedTuple):
    """Times on the model's device over those on the kind named: of all layers together, and of single ones.

    A device kind has one speed in every plan and every bound, `mean`; single layers are from `least` to `most` as fast.
    """

    name: str
    mean: float
    least: float
    most: float


PRESETS: dict[str, DeviceType] = {
    kind.name: kind
    for kind in (
        DeviceType("P100-16GB", 16 * GIB, 1.0, 732e9, 18.7e12, 9.3e12),
        DeviceType("V100-16GB", 16 * GIB, 1.0, 900e9, 112e12, 14e12),
        DeviceType("V100-32GB", 32 * GIB, 1.0, 900e9, 112e12, 14e12),
        DeviceType("V100-SXM-16GB", 16 * GIB, 1.0, 900e9, 125e12, 15.7e12),
        DeviceType("V100-SXM-32GB", 32 * GIB, 1.0, 900e9, 125e12, 15.7e12),
        DeviceType("A10-24GB", 24 * GIB, 1.0, 600e9, 125e12, 31.2e12, 62.5e12, bf16=True),
        DeviceType("A6000-48GB", 48 * GIB, 1.0, 768e9, 154.8e12, 38.7e12, 77.4e12, bf16=True),
        DeviceType("RTX-4090-24GB", 24 * GIB, 1.0, 1008e9, 165.2e12, 82.6e12, 82.6e12, bf16=True),
        DeviceType("L40S-48GB", 48 * GIB, 1.0, 864e9, 362.05e12, 91.6e12, 183e12, bf16=True),
        DeviceType("A100-40GB", 40 * GIB, 1.0, 1555e9, 312e12, 19.5e12, 156e12, bf16=True),
        DeviceType("A100-80GB", 80 * GIB, 1.0, 2039e9, 312e12, 19.5e12, 156e12, bf16=True),
        DeviceType("H100-80GB", 80 * GIB, 1.0, 3.35e12, 989.4e12, 66.9e12, 494.7e12, bf16=True),
        DeviceType("H200-141GB", 141 * 10**9, 1.0, 4.8e12, 989.4e12, 66.9e12, 494.7e12, bf16=True),
        DeviceType("B200-180GB", 180 * 10**9, 1.0, 8e12, 2250e12, 75e12, 1125e12, bf16=True),
        DeviceType("MI300X-192GB", 192 * 10**9, 1.0, 5.3e12, 1307.4e12, 163.4e12, 653.7e12, bf16=True),
        DeviceType("cpu", 4 * GIB),
    )
}
