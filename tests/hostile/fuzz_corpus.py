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


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf(values: list[tuple[bytes, int, bytes]], tensors: bytes = b"", count: int = 0) -> bytes:
    """A GGUF file of a head alone. values: name, type and bytes of each."""
    body = b"".join(string(name) + struct.pack("<I", kind) + data for name, kind, data in values)
    return b"GGUF" + struct.pack("<IQQ", 3, count, len(values)) + body + tensors


def array(of: int, count: int, data: bytes) -> bytes:
    return struct.pack("<IQ", of, count) + data


TENSOR = string(b"a.weight") + struct.pack("<IQQIQ", 2, 2, 2, 0, 0)
GGUFS = {
    "plain": gguf([(b"general.name", 8, string(b"tiny")), (b"n", 4, b"\1\0\0\0")], TENSOR, 1) + bytes(64),
    "array": gguf([(b"list", 9, array(4, 2, bytes(8))), (b"words", 9, array(8, 2, string(b"a") + string(b"b")))]),
    "empty": b"",
    "magic alone": b"GGUF",
    "string of 2^60 bytes": gguf([(b"n", 8, struct.pack("<Q", 2**60))]),
    "array of 2^60 numbers": gguf([(b"n", 9, array(0, 2**60, bytes(8)))]),
    "array of 2^60 strings": gguf([(b"n", 9, array(8, 2**60, string(b"a")))]),
    "arrays in arrays": gguf([(b"n", 9, array(9, 1, b"") * 50 + bytes(12))]),
    "2^60 values": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(100),
    "2^63 tensors": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0) + bytes(100),
    "alignment 0": gguf([(b"general.alignment", 4, bytes(4))], TENSOR, 1) + bytes(64),
    "dimensions that overflow": gguf([], string(b"a") + struct.pack("<IQQIQ", 2, 2**33, 2**33, 0, 0), 1) + bytes(64),
    "a billion dimensions": gguf([], string(b"a") + struct.pack("<I", 10**9), 1) + bytes(64),
    "offset beyond the end": gguf([], string(b"a") + struct.pack("<IQIQ", 1, 4, 0, 2**62), 1) + bytes(64),
    "the same name twice": gguf([(b"n", 4, bytes(4)), (b"n", 4, bytes(4))]),
    "version 0": b"GGUF" + bytes(40),
    "version 2^16": b"GGUF" + struct.pack("<I", 2**16) + bytes(40),
}
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
INDEXES = ("a.safetensors", "../../etc/passwd", "/etc/passwd", "..", "", "a\\b", "C:\\x", "a\0b", None, 3, ["a"])
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
}  # fmt: skip

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
    if name == "gguf":
        return list(GGUFS.values())
    if name == "config":
        odd = (
            b"",
            b"[]",
            b"null",
            b"{" * 10**5,
            b'{"a":' * 10**5,
            b'{"hidden_size": NaN}',
            b'{"n_layer": 1e999}',
            b"\xff",
        )
        return [*(json.dumps(config).encode() for config in CONFIGS.values()), *odd]
    if name in KEPT:
        return list(records(name))
    if name == "checkpoint":
        return list(checkpoints())
    if name == "index":
        return [*(json.dumps({"weight_map": {"w": shard}}).encode() for shard in INDEXES), b"{}", b'{"weight_map": []}']
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


assert set(TARGETS) == set(TEXTS) | {"gguf", "config", "index", "checkpoint", *KEPT}
