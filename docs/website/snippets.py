# SPDX-License-Identifier: Apache-2.0
"""Code that uses an encoding, in the sizes of a small model: what its page shows, and a test runs."""

from posenc.encodings import ENCODINGS
from website.pictures import has_grid

SIZES = {
    "dim": ("dim",), "num_heads": ("num_heads",), "head_dim": ("head_dim",), "num_layers": ("num_layers",),
    "max_positions": ("max_positions", "rows", "train_length"), "causal": ("bidirectional",),
    "grid": ("height", "width", "axes"),
}  # fmt: skip
"""What `posenc.create` takes of a model's shape, and the arguments of encodings that it serves."""
VALUES = {
    "dim": "512", "num_heads": "8", "head_dim": "64", "num_layers": "6", "max_positions": "1024", "causal": "True",
    "grid": "(14, 14)",
}  # fmt: skip
NEEDED = {"temperature": "temperature:beta=1.2", "randomized": "randomized:max_length=2048"}


def snippet(name: str) -> str:
    """The encoding made, and one pass through `posenc.attention` with all of its sites."""
    cls = ENCODINGS[name]
    sites, known = cls.own_sites, set(cls.arguments())
    sizes = [size for size, arguments in SIZES.items() if known & set(arguments)]
    if "grid" in sizes:
        sizes = [size for size in sizes if size != "max_positions"]
    shape = "".join(f", {size}={VALUES[size]}" for size in sizes)
    images = has_grid(name)
    count = 14 * 14 if images else 20
    lines = ["import torch", "", "import posenc", ""]
    lines.append(f'encoding = posenc.create("{NEEDED.get(name, name)}"{shape})')
    if images:
        lines.append("positions = posenc.Positions.grid(14, 14)  # an image of 14 x 14 patches")
    else:
        lines.append("positions = posenc.Positions.arange(20, causal=True)  # a text of 20 tokens")
    if "augment" in sites:
        lines.append("positions = encoding.augment(positions, batch=2)  # once in each pass, before everything else")
    if "share" in vars(cls):
        lines += [
            "query, key = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)  # of the model, for each layer",
            "encoding.share([(query, key)] * 6)",
        ]
    if "embed" in sites:
        lines += [
            f"x = torch.randn(2, {count}, 512)  # (batch, seq, dim)",
            "x = encoding.embed(x, positions)  # before the first layer",
            "q = k = v = x.unflatten(-1, (8, 64)).transpose(1, 2)  # a layer's projections, here none",
        ]
    else:
        lines.append(f"q, k, v = torch.randn(3, 2, 8, {count}, 64)  # (batch, heads, seq, head_dim)")
    given = ""
    if "gates" in sites:
        lines += [
            f"x = torch.randn(2, {count}, 512)  # the input of the layer's projections",
            "gates = posenc.encoding.gates_of(encoding, x)  # a cache keeps them with the keys",
        ]
        given = ", gates=gates"
    lines.append(f"out = posenc.attention(q, k, v, encoding, positions{given})")
    return "\n".join(lines) + "\n"
