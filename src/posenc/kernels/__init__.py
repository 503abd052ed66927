"""GPU kernels in Triton, which is imported only when one is called."""

from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None
