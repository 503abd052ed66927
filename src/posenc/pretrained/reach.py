# SPDX-License-Identifier: Apache-2.0
"""How long a text may be before a method meets a distance that the model was not trained on."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posenc.errors import InputError
from posenc.frequencies import Frequencies, default
from posenc.pretrained.anatomy import Rope
from posenc.pretrained.methods import Plan

Options = Mapping[str, Any]

STEP = 0.01
"""Share of a length that is no shortfall: `resonance` moves wavelengths by less, to whole tokens."""


BY_FACTOR = ("linear", "ntk", "ntk_fixed", "ntk_mixed", "yarn", "yarn_paper", "yarn_revised")
"""Schedules whose factor is how many times longer texts become. llama3's is not: Llama 3.1 reads 16 times its original
length with a factor of 8, for which it was trained."""


@dataclass(frozen=True)
class Limit:
    """Of a position map, by its options and the tokens whose distances the frequencies serve.

    reach: the longest text in which it makes no distance beyond those. remedy: options with which a length is reached.
    """

    reach: Callable[[Options, float], float]
    remedy: Callable[[Options, float, float], str]


def _always_if(inside: Callable[[Options, float], bool]) -> Callable[[Options, float], float]:
    """Of maps whose distances end somewhere: any length if that is inside, else as without the map."""
    return lambda o, served: math.inf if inside(o, served) else served


def _leaky(o: Options, served: float) -> float:
    return math.ceil((served - o["window"]) * o["factor"] + o["window"])


def _grouped(o: Options, served: float) -> float:
    """Far distances are i // group - j // group + window - window / group, see `position_maps.self_extend`."""
    window, group = o["window"], o["group"]
    shift = window - window // group if window % group == 0 else window - window / group
    return math.ceil(served - shift) * group


def _least_group(o: Options, served: float, target: float) -> str:
    if o["window"] >= served:
        return f"a window well below {served:.0f}"
    group = next(g for g in range(o["group"], math.ceil(target) + 1) if _grouped({**o, "group": g}, served) >= target)
    return f"group={group} or more"


def _scaled(o: Options, served: float) -> float:
    shift = o["window"] - 1 - o["window"] * o["used"] // (o["length"] - 1)
    return math.ceil(math.ceil(served - shift) * (o["length"] - 1) / o["used"])


LIMITS: dict[str, Limit] = {
    "rerope": Limit(_always_if(lambda o, n: o["window"] < n), lambda o, n, t: f"a window below {n:.0f}"),
    "leaky_rerope": Limit(
        lambda o, n: _leaky(o, n) if o["window"] < n else n,
        lambda o, n, t: (
            f"factor={math.ceil((t - o['window']) / (n - o['window']))} or more"
            if o["window"] < n
            else f"a window below {n:.0f}"
        ),
    ),
    "self_extend": Limit(lambda o, n: _grouped(o, n) if o["window"] < n else n, _least_group),
    "dual_chunk": Limit(
        _always_if(lambda o, n: min(2 * (o["chunk"] - o["local"]) - 1, o["chunk"]) < n),
        lambda o, n, t: f"a chunk below {n:.0f}",
    ),
    "string": Limit(lambda o, n: n + o["shift"] - o["window"] if o["shift"] <= n else n, lambda o, n, t: ""),
    "lampe": Limit(_scaled, lambda o, n, t: f"used and window that together are below {n:.0f}, and length={t:.0f}"),
    "streaming": Limit(
        _always_if(lambda o, n: o["sinks"] + o["recent"] <= n), lambda o, n, t: f"sinks + recent of {n:.0f} at most"
    ),
    "lm_infinite": Limit(
        _always_if(lambda o, n: o["window"] <= n), lambda o, n, t: f"a window of {n:.0f} at most"
    ),
}  # fmt: skip
"""By map. `string` has no remedy: it is for texts within the trained length, and gains little beyond."""


def served_by(turned: Frequencies, rope: Rope) -> float:
    """The longest text in which no pair turns farther than in training: as many times the trained tokens as its slowest
    pair is slower. Infinite if even that one came round in training, after which there are no new angles."""
    trained = rope.frequencies() if rope.schedule["name"] == "linear" else default(rope.rotary_dim, rope.rope_theta)
    slowest, now = float(trained.inv_freq[-1]), float(turned.inv_freq[-1])
    if slowest * rope.original_length >= 2 * math.pi or now == 0:
        return math.inf
    return rope.original_length * slowest / now


def reach(chosen: Plan, turned: Frequencies, rope: Rope, loaded_length: int, target: int | None) -> int | None:
    """Tokens that a method serves by construction; None: any number.

    turned: the frequencies that it turns by. rope: the rotation as loaded. loaded_length: tokens the model is good for.

    Raises:
        InputError: options that do not reach the target; names the reach, and what to change.
    """
    served = float(loaded_length) if chosen.schedule is None else served_by(turned, rope)
    found, remedy = served, ""
    wanted = loaded_length + 1 if target is None else target
    if chosen.map is not None:
        limit = LIMITS[chosen.map["name"]]
        found = max(limit.reach(chosen.map, served), served)
        short = found * (1 + STEP) < wanted
        remedy = limit.remedy(chosen.map, served, wanted) if short else ""
    elif chosen.factor is not None and served * (1 + STEP) < wanted and _innermost(chosen) in BY_FACTOR:
        remedy = f"factor={wanted / rope.original_length:g} or more, or leave factor out"
    if remedy:
        raise InputError(
            f"method={chosen.text!r}: reaches {found:.0f} tokens, and "
            f"{'the model reads as many without it' if target is None else f'{target} are wanted'}; give {remedy}"
        )
    return None if found == math.inf else round(found)


def _innermost(chosen: Plan) -> str:
    schedule = chosen.schedule or {}
    while isinstance(schedule.get("of"), Mapping):
        schedule = schedule["of"]
    return str(schedule.get("name"))
