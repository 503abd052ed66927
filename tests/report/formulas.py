"""Asking the explorer's formulas, which are JavaScript, and comparing what they say with the library."""

import re

import torch
from torch.testing import assert_close

from posenc.report import explorer

SCRIPTS = explorer.SCRIPTS[: explorer.SCRIPTS.index("language")]
"""The formulas' files, in the order in which they are loaded: what comes before the page's own."""

SIZES = [
    ("rerope", {"window": 4}), ("rerope", {"window": 1}), ("leaky_rerope", {"window": 4, "factor": 2.5}),
    ("inverse_leaky", {"window": 3, "factor": 2.0}), ("self_extend", {"window": 4, "group": 3}),
    ("self_extend", {"window": 8, "group": 4}), ("self_extend", {"window": 5, "group": 1}),
    ("jet_long", {"window": 3, "trained": 8, "groups": 3, "least": 1}), ("jet_long", {"window": 4, "trained": 6, "groups": 3, "least": 2}),
    ("dual_chunk", {"chunk": 6, "local": 2}), ("dual_chunk", {"chunk": 4, "local": 2}), ("dual_chunk", {"chunk": 24, "local": 3}),
    ("string", {"shift": 5, "window": 2}), ("string", {"shift": 2, "window": 5}),
    ("lampe", {"window": 3, "used": 7, "length": 20}), ("lampe", {"window": 20, "used": 300, "length": 97}),
    ("streaming", {"sinks": 2, "recent": 3}), ("streaming", {"sinks": 0, "recent": 5}),
    ("lm_infinite", {"sinks": 2, "window": 4}), ("lm_infinite", {"sinks": 0, "window": 4}),
]  # fmt: skip
"""Every position map, at sizes that fit small texts."""

AS_TRAINED = {*re.findall(r'^  "(\w+)/', explorer.asset("explorer/trained.js"), re.MULTILINE)} - {"t5"}
"""Encodings that are drawn with what they learned in small models, and with the sizes of these alone."""


def each(ask, function, cases):
    """What a JavaScript function, written as text, gives for each case: a list of numbers, or what it says in refusing."""
    return ask(
        f"""cases => cases.map(given => {{
            try {{ return Array.from(({function})(given)); }} catch (error) {{ return error.message; }}
        }})""",
        cases,
    )


def same(found, expected, **tolerance):
    """Numbers of the page and the library's; NaN and infinity are equal to themselves."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    found = torch.tensor(found, dtype=torch.float64).view(expected.shape)
    assert_close(found, expected, **{"rtol": 1e-12, "atol": 1e-12, "equal_nan": True} | tolerance)


def says(found, given):
    """A refusal, in a sentence that names one of the options given, or what should have them."""
    assert isinstance(found, str), found
    shared = {"rope_theta": "base", "dim_bar": "dim", "dim": "head_dim"}  # with functions that have names of their own
    assert any(word in found for word in (given["name"], *given, *(shared.get(key, key) for key in given))), found
