"""What fuzzing starts from: for every target a few inputs that are accepted, and some that once went wrong."""

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from inspect import signature

import torch

from hostile.fuzz_targets import CELL, RUN, TARGETS
from posenc.encodings import ENCODINGS
from posenc.frequencies import SCHEDULES, options_of
from posenc.lab.checkpoint import dumped
from posenc.lab.data import Text
from posenc.lab.train import Training
from posenc.position_maps import MAPS
from posenc.pretrained.methods import METHODS
from posenc.tasks import TASKS

OPTIONS = {
    "encoding": {name: list(cls.arguments()) for name, cls in ENCODINGS.items()},
    "schedule": {name: list(options_of(name)) for name in SCHEDULES},
    "method": {name: list(method.options()) for name, method in METHODS.items()},
    "position_map": {name: list(signature(each).parameters) for name, each in MAPS.items()},
    "task": {name: [field.name for field in fields(task)] for name, task in TASKS.items()},
}
"""Of every small language its names, and the options of each."""
VALUES = ("0", "1", "2", "-1", "2.5", "1e400", "nan", "1000000000000000000", "true", "none", "1,2", "x", "")


CONFIGS = {
    "plain": {"model_type": "llama", "hidden_size": 8, "vocab_size": 16, "num_hidden_layers": 2},
    "10^9 layers": {"model_type": "llama", "num_hidden_layers": 10**9},
    "10^12 heads": {"model_type": "llama", "num_attention_heads": 10**12},
    "negative heads": {"model_type": "llama", "num_attention_heads": -8},
    "layers within": {"model_type": "llava", "text_config": {"num_hidden_layers": 10**7}},
    "positions": {"model_type": "bert", "max_position_embeddings": 10**15},
    "a list for a number": {"model_type": "llama", "hidden_size": [8]},
    "a code of its own": {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}},
}
TEXTS: dict[str, tuple[str, ...]] = {
    "encoding": (
        "rope", "rope:rope_theta=1e4@rerope:window=8+alibi/none", "rope:layout=half+log_n", "t5:buckets=8", "learned",
        "rope@self_extend:window=4:group=2", "none/none/rope", "+" * 1000, "rope+" * 1000 + "rope", "/" * 1000, "@" * 99,
        "rope:" * 99, "rope:rope_theta=nan", "learned:rows=1000000000000", "rope:rope_theta=" + "9" * 5000, "\ud800", "",
    ),
    "schedule": (
        "yarn:factor=4:beta_fast=16", "ntk+resonance", "longrope:short_factor=1,1:long_factor=1,2", "linear:factor=inf",
        "ntk" + "+resonance" * 1000, "explicit:inv_freq=1,0.5,0.25,0.1", "dynamic", "yarn:factor=", "yarn:=4", "+", "",
    ),
    "method": ("ntk:factor=4", "rerope:window=8", "ntk+log_n", "yarn+rerope", "self_extend+dual_chunk", "none", "+", ""),
    "position_map": (
        "rerope:window=8", "self_extend:window=4:group=2", "streaming:sinks=1:recent=4", "string:shift=2:window=2",
        "rerope:window=nan", "rerope:window", "rerope:=", "rerope:window=1,2", "rerope:name=x", "rerope:window=1e400",
    ),
    "task": ("passkey", "key_value:keys=digits", "needle:source=C\\:/essays.txt", "facts:items=nan", "perplexity", ":"),
    "words": ("rope:a=1", "a:b=1,2,", "1e400", "1,2,3", "true", "a:b=\\:", "a:b\\", "1_0", "\u0661", "x" * 200_000, ",", "nan"),
    "kind": ("rotary", "rope", "alibi", "", "\0", "x" * 100_000),
    "target": ("math:sin", "math:sin.__doc__", "math:", ":x", "math", "a b:c", "../x.py:y", "math:__loader__.x", "\0.py:x"),
    "explorer": (
        "length 64", "factor 2.5", "method yarn:beta_fast=16", "encoding rope", "tokens a b", "at 0,1,2,3,4,5", "at ²",
        "factor nan", "method ntk+resonance", "curve x", "length true",
    ),
    "line": ("plain", "\x1b[31mred\x07", "a\nb\r\nc", "x" * 10**5, "\u202e\u2028\x9b", "[bold]x[/]", " " * 10**5, "\udcff"),
}  # fmt: skip

SETTINGS = (
    "seeds: 2\nencodings: [none, rope]\nlearning_rate: 1e-3\n", "command: compare\ndata: 'a\tb'\nout: there\n",
    'data = "\\u00e9"\nseeds = 2\nfactors = [1, 2]\n', "packed: yes\ncheckpoint_every: .nan\ntrack: [tensorboard]\n",
    "checkpoint_every: 1000000000000000000\n", "checkpoint_every = -inf\ntrack = []", "track: [.nan, -1]\n", "gpus_per_cell: -.inf",
    'data: "\\ud800\\0"\n', "seeds: &a 1\ndim: *a\n", "data: |\n  two\n  lines\n", "seeds: 1\nseeds: 2\n", "data: !!str 3\n",
    "seeds = " + "9" * 5000, "[seeds]\nx = 1\n", "", "a: " + "[" * 2000, "\ufeffseeds: 1\n", "data = 2020-01-01\n", "? x\n: y\n",
)  # fmt: skip
KEPT = {
    "cell": {
        "run": {"id": RUN.id, "encoding": RUN.encoding, "seed": RUN.seed},
        "arms": [{"name": "learned", "trained": True, "paired": {"1": [2.5, 3]}, "by_position": [[2.5], [3.5]],
                  "tokens_per_second": 9.5, "also": {}}],
        "losses": [3.5, 3, 2.5], "parameters": 99, "position_parameters": 32, "training_seconds": 0.5,
        "tokens_per_second": 8.0, "memory_bytes": 512,
    },
    "measured": {
        "cell": asdict(CELL), "seconds": 0.5, "fed": 64, "peak_bytes": None,
        "outcomes": [{"tokens": 64, "needle": 0.5, "loss": 2.5, "accuracy": 0.5, "exact": 0, "generated": "x",
                      "score": 1.0, "blocks": [None, 2.5]}] * 2,
    },
}  # fmt: skip
"""A record of each kind, without its checksum."""


def records(name: str) -> Iterator[bytes]:
    """A record, and that record with one odd value in place of each of its own."""
    right = json.dumps(KEPT[name])
    yield from (
        right.encode(),
        b'{"sha256": "' + b"0" * 64 + b'", ' + right[1:].encode(),
        b"",
        b"{}",
        b"[1]",
        b'{"a":' * 10**4,
    )
    for key, value in KEPT[name].items():
        for odd in ("null", "[]", "{}", "NaN", "1e999", "1" + "0" * 400, "9" * 5000, '"\\ud800"', "-1", "true"):
            yield right.replace(f'"{key}": {json.dumps(value)}', f'"{key}": {odd}').encode()


def checkpoints() -> Iterator[bytes]:
    """A checkpoint after two steps, and what it could have become."""
    training = Training(RUN, Text.of(torch.arange(64) % 7))
    training.advance()
    training.advance()
    state = training.state()
    right = dumped(RUN, state, 0.5)
    yield from (right, right[:100], b"", b"PK\3\4", b"\x80\4", struct.pack("<Q", 2**60) + right[8:], right[:-1] + b"\1")
    yield dumped(replace(RUN, seed=1), state, 0.5)
    yield dumped(RUN, state, float(10**300))
    yield dumped(RUN, {}, 0.5)
    for name, value in state.items():
        yield dumped(RUN, {key: each for key, each in state.items() if key != name}, 0.5)
        odd = [[], [0.5] * 9, torch.zeros(2)]
        if torch.is_tensor(value):
            odd = [torch.zeros(3), torch.zeros(0), torch.zeros_like(value), value * float("nan"), value.to(torch.int8)]
        yield from (dumped(RUN, {**state, name: each}, 0.5) for each in odd)


def seeds(name: str) -> list[bytes]:
    """What a target starts from."""
    if name in KEPT:
        return list(records(name))
    if name == "checkpoint":
        return list(checkpoints())
    if name == "settings":
        return [text.encode() for text in SETTINGS]
    return [text.encode("utf-8", errors="surrogatepass") for text in (*TEXTS[name], *every_option(name))]


def every_option(language: str) -> Iterator[str]:
    """Every name of a small language, and each of its options with every value."""
    for name, options in OPTIONS.get(language, {}).items():
        yield name
        yield from (f"{name}:{option}={value}" for option in options for value in VALUES)


def mutated(name: str, count: int, seed: int = 0) -> Iterator[bytes]:
    """The seeds, and `count` inputs made of them by cutting, doubling, mixing and changing bytes; always the same ones."""
    draws, found = random.Random(f"{name} {seed}"), seeds(name)
    yield from found
    short = [each for each in found if len(each) < 2000]
    for _ in range(count):
        data = bytearray(draws.choice(short))
        for _ in range(draws.randint(1, 3)):
            other, at = draws.choice(short), draws.randint(0, len(data))
            match draws.randrange(5):
                case 0:
                    data[at : at + draws.randint(1, 8)] = b""
                case 1:
                    data[at:at] = draws.choice(
                        (b":", b"+", b"@", b"=", b",", b"/", b"-", b"\\", b"\0", b"9" * 20, b"nan")
                    )
                case 2:
                    data[at:] = other[draws.randint(0, len(other)) :]
                case 3 if at < len(data):
                    data[at] = draws.randrange(256)
                case _:
                    data[at:at] = data[max(0, at - 12) : at]
        yield bytes(data)


assert set(TARGETS) == set(TEXTS) | {"settings", "checkpoint", *KEPT}
