"""Device presets: memory, memory bandwidth and dense peaks from the vendors' data sheets.

Sources (NVIDIA data sheets), FLOP/s in float32 outside tensor cores / TF32 / 16 bit: Tesla P100 PCIe 16GB (732 GB/s,
9.3 / - / 18.7 T, no tensor cores); Tesla V100 PCIe 16/32GB (900 GB/s, 14 / - / 112 T); A100 40GB (1555 GB/s) and
80GB SXM (2039 GB/s), 19.5 / 156 / 312 T; H100 SXM 80GB (3.35 TB/s) and H200 SXM 141GB (4.8 TB/s), 66.9 / 494.7 /
989.4 T, half of what the sheets give with sparsity. bfloat16 came with the A100 at the rate of float16.
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


PRESETS: dict[str, DeviceType] = {
    kind.name: kind
    for kind in (
        DeviceType("P100-16GB", 16 * GIB, 1.0, 732e9, 18.7e12, 9.3e12),
        DeviceType("V100-16GB", 16 * GIB, 1.0, 900e9, 112e12, 14e12),
        DeviceType("V100-32GB", 32 * GIB, 1.0, 900e9, 112e12, 14e12),
        DeviceType("A100-40GB", 40 * GIB, 1.0, 1555e9, 312e12, 19.5e12, 156e12, bf16=True),
        DeviceType("A100-80GB", 80 * GIB, 1.0, 2039e9, 312e12, 19.5e12, 156e12, bf16=True),
        DeviceType("H100-80GB", 80 * GIB, 1.0, 3.35e12, 989.4e12, 66.9e12, 494.7e12, bf16=True),
        DeviceType("H200-141GB", 141 * 10**9, 1.0, 4.8e12, 989.4e12, 66.9e12, 494.7e12, bf16=True),
        DeviceType("cpu", 4 * GIB),
    )
}
