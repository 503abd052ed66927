"""What our attention kernel should reach on a GPU, from their compiled code and the GPU's data sheet; no GPU is needed.

    python benchmarks/gpu_prediction.py            the table of gpu_prediction.md
    python benchmarks/gpu_prediction.py 80 64 80   resources alone, for sm_80 at widths of 64 and 80

Triton compiles for the architecture, and ptxas counts registers, spilled bytes and shared memory. A time is predicted as
an interval: from the slowest pipe of the chip alone (everything overlaps) to the sum of all (nothing does).
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from posenc.backends.triton_kernels import TILES, forward

SHARED = {80: 166912, 90: 232448, 100: 232448}
"""Bytes of shared memory that a program may take, by architecture."""
STRIDES = {a + b for a in "qkv" for b in "bhn"}
TENSORS = {"Q", "K", "V", "OUT", "PRODUCTS_"}
KINDS = ("none", "vector", "products")


class GPU(NamedTuple):
    """Of a data sheet: dense bfloat16 TFLOP/s, TB/s, GHz; and lanes of a multiprocessor and clock."""

    sm: int
    multiprocessors: int
    tflops: float
    bandwidth: float
    clock: float
    alu: int = 128  # float32 operations
    exponentials: int = 16
    loads: int = 32  # words through the L1 cache or shared memory


GPUS = {
    "A100": GPU(80, 108, 312, 2.04, 1.41, alu=64),
    "H100": GPU(90, 132, 989, 3.35, 1.75),
    "H200": GPU(90, 132, 989, 4.8, 1.75),
    "B200": GPU(100, 148, 2250, 8.0, 1.85),
}


class Resources(NamedTuple):
    registers: int
    spilled: int
    shared: int
    serialized: bool
    """Whether ptxas says that it serialises the products of tiles."""


def resources(kernel: Any, sm: int, constants: dict[str, Any], warps: int, stages: int) -> Resources:
    """Of the kernel for bfloat16 tensors whose addresses and strides are multiples of 16."""
    types = {}
    for name in kernel.arg_names:
        table = "*i32" if name in ("ROW", "FAR") else "*fp32" if name.isupper() else "i32"
        given = "*bf16" if name in TENSORS else table
        types[name] = "constexpr" if name in constants else "fp32" if name == "scale" else given
    at = kernel.arg_names.index
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name in STRIDES]
    source = ASTSource(
        kernel,
        types,
        {(at(n),): v for n, v in constants.items()},
        {(at(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    compiled = triton.compile(source, GPUTarget("cuda", sm, 32), {"num_warps": warps, "num_stages": stages})
    report = _assembled(compiled.asm["ptx"])
    registers, spilled = re.search(r"Used (\d+) registers", report), re.search(r"(\d+) bytes spill stores", report)
    assert registers, report
    assert spilled, report
    return Resources(int(registers[1]), int(spilled[1]), compiled.metadata.shared, "serialized" in report)


def _assembled(ptx: str) -> str:
    """What ptxas reports. Triton brings one for each generation of GPUs."""
    target = re.search(r"\.target (\w+)", ptx)
    assert target
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    report = ""
    for assembler in sorted(folder.glob("ptxas*")):
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(ptx)
            file.flush()
            command = [assembler, "-v", f"-arch={target[1]}", file.name, "-o", "/dev/null"]
            done = subprocess.run(command, capture_output=True, text=True)
        report = done.stderr
        if done.returncode == 0:
            return report
    raise RuntimeError(f"no ptxas of Triton's takes this code: {report}")


def launch(sm: int, width: int, kind: str) -> Resources:
    """Of the kernel, causal."""
    padded = triton.next_power_of_2(width)
    block_m, block_n, *tiles = TILES[padded]
    constants = {
        "D": width,
        "DV": width,
        "BLOCK_D": padded,
        "BLOCK_DV": padded,
        "HEADS": 8,
        "GROUPS": 2,
        "CAUSAL": True,
    }
    constants |= {
        "PRECISION": "ieee",
        "VECTOR": kind == "vector",
        "PRODUCTS": kind == "products",
        "LONG": kind != "none",
    }
    return resources(forward, sm, constants | {"BLOCK_M": block_m, "BLOCK_N": block_n}, *tiles)


def clocks(gpu: GPU, width: int, kind: str, near: float) -> dict[str, float]:
    """Clocks of a multiprocessor for one score, by pipe. near: the part of the scores whose bias is read cell by
    cell, rather than once for a tile."""
    matrix = gpu.tflops * 1e3 / gpu.multiprocessors / gpu.clock  # operations a clock
    biased = 0.0 if kind == "none" else near
    reads = {"none": 0.0, "vector": 1.0, "products": 2.0}[kind] * biased  # each with its address
    address = {"none": 0.0, "vector": 2.0, "products": 4.0}[kind] * biased
    return {
        "matrix": 2 * 2 * width / matrix, "alu": (5 + address) / gpu.alu,  # scale, maximum, difference, sum, conversion
        "exp": 1 / gpu.exponentials, "loads": reads / gpu.loads,
    }  # fmt: skip


def predicted(gpu: GPU, width: int, kind: str, near: float) -> tuple[float, float]:
    """Share of the matrix units' peak, (nothing overlaps, everything does)."""
    pipes = clocks(gpu, width, kind, near)
    return pipes["matrix"] / sum(pipes.values()), pipes["matrix"] / max(pipes.values())


def rotary_microseconds(gpu: GPU, tokens: int) -> float:
    """Of queries and keys of Llama 3 8B (40 heads of 128 in bfloat16), each byte read and written once."""
    return 2 * tokens * 40 * 128 * 2 / gpu.bandwidth / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sm", nargs="?", type=int, choices=SHARED, help="resources for this architecture alone")
    parser.add_argument("widths", nargs="*", type=int)
    options = parser.parse_args()
    print("| architecture, width, bias | registers | spilled bytes | shared memory | products serialised |")
    print("| --- | ---: | ---: | ---: | --- |")
    for sm in [options.sm] if options.sm else (90,):
        for width in options.widths or (64, 128):
            for kind in KINDS:
                r = launch(sm, width, kind)
                yes = "yes" if r.serialized else "no"
                print(f"| sm_{sm}, {width}, {kind} | {r.registers} | {r.spilled} | {r.shared} | {yes} |", flush=True)
                assert r.shared <= SHARED[sm], f"{r.shared} bytes of shared memory, sm_{sm} has {SHARED[sm]}"
    if options.sm:
        return 0
    print("\n| GPU | width | bias | TFLOP/s |\n| --- | ---: | --- | ---: |")
    for name, gpu in GPUS.items():
        for width in (64, 128):
            for kind, near, label in (("none", 0.0, "none"), ("vector", 0.03, "T5, 8192 tokens"),
                                      ("vector", 0.0, "ALiBi"), ("vector", 1.0, "KERPLE"), ("products", 0.24, "Shaw, clip 1024, 8192 tokens")):  # fmt: skip
                low, high = predicted(gpu, width, kind, near)
                print(f"| {name} | {width} | {label} | {low * gpu.tflops:.0f} to {high * gpu.tflops:.0f} |")
    print("\n| GPU | rotation of 8192 tokens at full bandwidth |\n| --- | ---: |")
    for name, gpu in GPUS.items():
        print(f"| {name} | {rotary_microseconds(gpu, 8192):.0f} us |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
