"""Compile the attention kernels for a GPU that need not be there: python compile_for_gpu.py [sm [width ...]]. The interpreter
accepts more than the compiler does. Prints what each takes of shared memory, and fails if it is more than the GPU has."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from posenc.backends import triton_kernels as kernels
from posenc.backends.triton_kernels import TILES

SHARED = {80: 166912, 90: 232448}  # bytes per program
STRIDES = {a + b for a in "qkvo" for b in "bhn"}
TENSORS = {"Q", "K", "V", "DOUT", "OUT", "DQ", "DK", "DV_"}


def compiled(kernel, sm, constants, warps, stages):
    """The kernel for bfloat16 tensors whose addresses and strides are multiples of 16."""
    types = {}
    for name in kernel.arg_names:
        given = "*bf16" if name in TENSORS else "*i32" if name == "ROW" else "*fp32" if name.isupper() else "i32"
        types[name] = "constexpr" if name in constants else "fp32" if name == "scale" else given
    at = kernel.arg_names.index
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name in STRIDES]
    source = ASTSource(
        kernel,
        types,
        {(at(n),): v for n, v in constants.items()},
        {(at(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    return triton.compile(source, GPUTarget("cuda", sm, 32), {"num_warps": warps, "num_stages": stages})


def main(sm: int, widths: list[int]) -> None:
    for width in widths:
        padded = triton.next_power_of_2(width)
        t = TILES[padded]
        sizes = {"D": width, "DV": width, "BLOCK_D": padded, "BLOCK_DV": padded, "HEADS": 8, "GROUPS": 2}
        for vector in (True, False):
            common = sizes | {"CAUSAL": vector, "PRECISION": "ieee", "VECTOR": vector, "PRODUCTS": not vector}
            for kernel, own, warps in (
                (kernels.forward, {"BLOCK_M": t.block_m, "BLOCK_N": t.block_n}, t.warps),
                (kernels.backward_keys, {"BLOCK": t.block, "LEARNED": vector, "ATOMIC": True}, t.backward_warps),
                (kernels.backward_queries, {"BLOCK": t.block, "LEARNED": not vector}, t.backward_warps),
            ):
                shared = compiled(kernel, sm, common | own, warps, t.stages).metadata.shared
                print(kernel.__name__, "vector" if vector else "products", width, shared, flush=True)
                assert shared <= SHARED[sm], f"{shared} bytes of shared memory, sm_{sm} has {SHARED[sm]}"


if __name__ == "__main__":
    sm, *widths = [int(number) for number in sys.argv[1:]] or [90]
    main(sm, widths or [64, 80, 128, 256])
