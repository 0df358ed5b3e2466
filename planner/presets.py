"""Device presets: memory, memory bandwidth and dense 16-bit peak from the vendors' data sheets.

Sources (NVIDIA data sheets): Tesla P100 PCIe 16GB (732 GB/s, 18.7 TFLOP/s half precision); Tesla V100 PCIe
16/32GB (900 GB/s, 112 TFLOP/s tensor); A100 40GB (1555 GB/s) and 80GB SXM (2039 GB/s), 312 TFLOP/s bf16 tensor;
H100 SXM 80GB (3.35 TB/s, 989.4 TFLOP/s bf16 dense); H200 SXM 141GB (4.8 TB/s, 989.4 TFLOP/s bf16 dense).
Memory is what the name says in GiB up to 80 GB (the driver shows about that), 141 GB decimal for the H200.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True)
class DeviceType:
    """One kind of device.

    Attributes:
        memory_bytes: bytes that parameters, stashes and buffers may fill.
        speed: layer times are divided by this.
        memory_bandwidth: bytes/s read or written by the optimizer step; None: STEP takes no time.
        flops: dense 16-bit peak in FLOP/s, for analytic costs; None where unknown.
    """

    name: str
    memory_bytes: int
    speed: float = 1.0
    memory_bandwidth: float | None = None
    flops: float | None = None


PRESETS: dict[str, DeviceType] = {
    kind.name: kind
    for kind in (
        DeviceType("P100-16GB", 16 * GIB, 1.0, 732e9, 18.7e12),
        DeviceType("V100-16GB", 16 * GIB, 1.0, 900e9, 112e12),
        DeviceType("V100-32GB", 32 * GIB, 1.0, 900e9, 112e12),
        DeviceType("A100-40GB", 40 * GIB, 1.0, 1555e9, 312e12),
        DeviceType("A100-80GB", 80 * GIB, 1.0, 2039e9, 312e12),
        DeviceType("H100-80GB", 80 * GIB, 1.0, 3.35e12, 989.4e12),
        DeviceType("H200-141GB", 141 * 10**9, 1.0, 4.8e12, 989.4e12),
        DeviceType("cpu", 4 * GIB),
    )
}
