# SPDX-License-Identifier: Apache-2.0
"""Models under analysis: split where tokens meet positions, their tables, small random and trained ones, tokenizers."""

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from posenc.analysis.codes import Codes
from posenc.conformance.fixtures import seeded
from posenc.encoding import Encoding
from posenc.encodings import create
from posenc.encodings.absolute import Absolute
from posenc.encodings.create_encoding import lookup
from posenc.encodings.patterns import read
from posenc.errors import InputError
from posenc.lab.transformer import Attention, Block, Transformer, TransformerConfig
from posenc.positions import Positions
from posenc.pretrained.learned_table import TABLES, has_learned_table, rows_of_table, table_module

BYTES = 256
"""The vocabulary of a model that reads bytes."""
HOST = TransformerConfig(vocab_size=64, dim=32, num_layers=2, num_heads=4, causal=False)
"""The small random model around an encoding that is given by name."""
WORD = re.compile(r"\w+|[^\w\s]")


# ---------------------------------------------------------------- a model from its input vectors on


@dataclass(frozen=True, eq=False)
class VectorModel:
    """A model in float64 as a function of input vectors: run(join(x, at), at), which may be differentiated twice.

    Attributes:
        name: for people. dim: width of the input vectors; None: a function's, which may take any.
        run: (batch, n, dim) vectors and (n,) positions -> (batch, n, width) representations, or whatever a function
            returns.
        join: the vectors of the content and the positions -> what `run` takes: codes added, or whatever else the model's
            encoding does to its input.
        codes: what `join` adds, where it adds something that depends on the position alone.
        words: the vectors of the vocabulary, (vocabulary, dim), at the size at which codes are added to them.
        reads_positions: whether moving `at` can change anything.
    """

    name: str
    dim: int | None
    run: Callable[[Tensor, Tensor], Tensor]
    join: Callable[[Tensor, Tensor], Tensor] = field(default=lambda x, at: x)
    codes: Codes | None = None
    words: Tensor | None = None
    reads_positions: bool = False

    def __call__(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """(batch, n, dim) content at positions (n,), by default 0 .. n-1."""
        at = torch.arange(x.shape[1]) if at is None else at
        return self.run(self.join(x, at), at)

    def content(self, tokens: Tensor) -> Tensor:
        """The (n, dim) vectors of (n,) tokens.

        Raises:
            InputError: a model that takes vectors only, or a token outside the vocabulary.
        """
        if self.words is None:
            raise InputError(f"{self.name} takes vectors, not tokens: pass (n, dim) vectors in a floating dtype")
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < len(self.words):
            raise InputError(f"tokens {tuple(tokens.shape)}: pass (n,) token ids between 0 and {len(self.words) - 1}")
        return self.words[tokens.long().cpu()]

    def checked(
        self, x: Tensor, at: Tensor, run: Callable[[Tensor, Tensor], Tensor] | None = None, dims: Sequence[int] = (3,)
    ) -> Tensor:
        """The result of `run`, by default of the model with its codes, (batch, n, width) or of another of these dims.

        Raises:
            InputError: it has another shape or dtype, is not finite, or differs in a second call.
        """
        run = run or self
        y, again = run(x, at), run(x, at)
        if not isinstance(y, Tensor) or y.dim() not in dims or y.shape[:2] != x.shape[: y.dim()][:2]:
            shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise InputError(
                f"gave {shape} for vectors {tuple(x.shape)}; it must give (batch, n, width)", argument=self.name
            )
        if y.dtype != x.dtype:
            raise InputError(
                f"gave {y.dtype} for {x.dtype}", "let it compute in the dtype of its input", argument=self.name
            )
        if not bool(y.isfinite().all()):
            raise InputError("its representations are not finite", argument=self.name)
        if not torch.equal(y, again):
            raise InputError("gave two different results for the same input", "turn off its noise", argument=self.name)
        return y


def vector_model(subject: Any, *, layers: int | None = None, name: str | None = None) -> VectorModel:
    """A model as a function of input vectors: a copy of it in float64, on the CPU and in eval mode.

    Args:
        subject: a `posenc.Transformer`, a transformers model, or a module or function of (batch, n, dim) vectors in float64.
        layers: only the first ones of a posenc Transformer; None: all. name: for people.

    Raises:
        InputError: a number of layers that the model does not have, or an encoder-decoder model, or one that does not add its
            learned table to its words.
    """
    if isinstance(subject, VectorModel):
        return subject
    named = name or str(getattr(subject, "__name__", type(subject).__name__))
    if not isinstance(subject, nn.Module):
        if not callable(subject):
            raise InputError(
                f"a {type(subject).__name__} is neither a module nor a function of vectors", argument="model"
            )
        return VectorModel(named, None, lambda x, at: subject(x))
    model = copy.deepcopy(subject).to("cpu", torch.float64).eval().requires_grad_(False)
    if isinstance(model, Transformer):
        return _of_transformer(model, layers, name or f"{named} ({model.encoding.name})")
    if layers is not None:
        raise InputError("only layers of a posenc Transformer can be chosen", "leave it out", layers=layers)
    if hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "get_input_embeddings"):
        return _of_pretrained(model, named)
    return VectorModel(named, None, lambda x, at: model(x))


def _of_transformer(model: Transformer, layers: int | None, name: str) -> VectorModel:
    encoding = model.encoding
    if layers is not None and not 1 <= layers <= len(model.blocks):
        raise InputError(f"{name} has 1 to {len(model.blocks)}", layers=layers)
    blocks = [block for block in model.blocks[:layers] if isinstance(block, Block)]
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = "reference"  # the only one that is differentiable twice under every encoding

    def positions_at(x: Tensor, at: Tensor) -> Positions:
        return encoding.augment(Positions.from_ids(at, packed=False).with_causal(model.config.causal), len(x))

    def join(x: Tensor, at: Tensor) -> Tensor:
        return encoding.embed(x, positions_at(x, at), 0)

    def run(x: Tensor, at: Tensor) -> Tensor:
        here = encoding.at(positions_at(x, at))
        encoding.share([(block.attention.query, block.attention.key) for block in blocks])
        for layer, block in enumerate(blocks):
            x = here.embed(x, layer) if layer else x
            x = block(x, here, layer, None)
        return model.norm(x)

    first = encoding.acting_in(0).part
    codes = None
    if isinstance(first, Absolute) and first.merge == "add":
        codes = Codes(first.name, lambda at: first.codes(Positions.from_ids(at))[0], limit=first.max_positions)
    return VectorModel(name, model.config.dim, run, join, codes, word_vectors(model), reads_positions=True)


def _of_pretrained(model: Any, name: str) -> VectorModel:
    check_single_text(model)
    inner = model.base_model
    if getattr(inner, "_supports_sdpa", False):  # the others have only one differentiable attention
        inner.set_attn_implementation("sdpa")
    codes, takes_ids = None, "position_ids" in inspect.signature(inner.forward).parameters
    if has_learned_table(inner):
        words, table = tables(inner)
        nn.init.zeros_(table_module(inner).weight)
        codes, takes_ids = Codes(f"the table of {name}", lambda at: table[at.long()], limit=len(table)), False
    else:
        words = word_vectors(inner)

    def run(x: Tensor, at: Tensor) -> Tensor:
        options = {"position_ids": at[None].expand(len(x), -1)} if takes_ids else {}
        # without a mask, positions that do not rise by ones are read as several packed sequences
        options["attention_mask"] = torch.ones(x.shape[:2], dtype=torch.long)
        with sdpa_kernel(SDPBackend.MATH), _Float64():  # fused attention has no second derivative
            return inner(inputs_embeds=x, use_cache=False, **options)[0]

    if codes is None:
        return VectorModel(name, words.shape[1], run, words=words, reads_positions=takes_ids)
    return VectorModel(name, words.shape[1], run, lambda x, at: x + codes(at), codes, words, reads_positions=True)


class _Float64(TorchFunctionMode):
    """Float64 where a model computes in float32 whatever its input is, as norms and softmax of transformers' do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func is Tensor.float else func
        args = [torch.float64 if one is torch.float32 else one for one in args]
        return func(*args, **{k: torch.float64 if one is torch.float32 else one for k, one in (kwargs or {}).items()})


# ---------------------------------------------------------------- what a model adds: words and codes


@torch.no_grad()
def tables(model: nn.Module, length: int | None = None) -> tuple[Tensor, Tensor]:
    """The token vectors (vocabulary, dim) and position codes (length, dim) that a model adds, in float64, at the scale
    at which it adds them. length: None is all of a learned table, or 512.

    Raises:
        InputError: a model that does not add a position code to its input, or a length beyond its table.
    """
    if isinstance(model, Transformer):
        encoding = copy.deepcopy(model.encoding).to("cpu", torch.float64)
        check_adds(encoding, model.config.dim)
        at = Positions.arange(encoding.max_positions or 512 if length is None else length)
        return word_vectors(model), encoding.embed(
            torch.zeros(1, at.num_queries, model.config.dim, dtype=torch.float64), at
        )[0]
    check_has_table(model)
    words = word_vectors(model)
    codes = rows_of_table(model).detach().to("cpu", torch.float64, copy=True)
    if length is not None and length > len(codes):
        raise InputError(f"the model's table has {len(codes)} positions", length=length)
    if words.shape[1] != codes.shape[1]:
        raise InputError(
            f"its token vectors are {words.shape[1]} wide, its codes {codes.shape[1]}: it does not add them",
            argument="model",
        )
    return words, codes[:length]


@torch.no_grad()
def word_vectors(model: Any) -> Tensor:
    """The vectors of a model's vocabulary, (vocabulary, dim), in float64, at the size at which codes are added to them."""
    if isinstance(model, Transformer):
        return model.embedding.weight.to("cpu", torch.float64) * model.config.dim**0.5
    embedding = model.get_input_embeddings()
    every = torch.arange(embedding.num_embeddings, device=embedding.weight.device)
    vectors: Tensor = embedding(every)  # some embeddings scale
    return vectors.to("cpu", torch.float64)


def check_tokens(tokens: Tensor, model: Any, texts: int) -> None:
    """Raise InputError for tokens that a model cannot read, or for fewer than so many sequences of two tokens."""
    if tokens.dim() != 2 or tokens.is_floating_point() or len(tokens) < texts or tokens.shape[1] < 2:
        raise InputError(
            f"{tuple(tokens.shape)} of {tokens.dtype}",
            f"pass integers, (batch, length), at least {texts} sequences of 2",
            argument="tokens",
        )
    ours = isinstance(model, Transformer)
    vocabulary = model.config.vocab_size if ours else model.get_input_embeddings().num_embeddings
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise InputError(f"ids {low} to {high}; the model's vocabulary is 0 to {vocabulary - 1}", argument="tokens")
    if not ours and has_learned_table(model) and tokens.shape[1] > (rows := len(rows_of_table(model))):
        raise InputError(
            f"sequences of {tokens.shape[1]}; the model's table has {rows} positions: cut them", argument="tokens"
        )


@torch.no_grad()
def check_adds(encoding: Encoding, dim: int) -> None:
    """Raise InputError for an encoding whose first layer does anything but add (or concatenate) a code to its input, of
    width dim, saying how position enters instead."""
    encoding, layer = encoding.acting_in(0)[:2]
    name, sites = encoding.known_as, encoding.sites()
    others = [site for site in sites if site not in ("embed", "augment")]
    if others:
        raise InputError(
            f"position enters by {', '.join(others)}, not as a code added to the tokens",
            "take a model with sinusoidal or learned codes",
            argument=name,
        )
    if "embed" not in sites:
        raise InputError(
            "it adds no position code to the tokens", "take one with sinusoidal or learned codes", argument=name
        )
    at = Positions.arange(min(8, encoding.max_positions or 8))
    tokens = torch.randn(2, 1, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.cat((tokens, tokens.sum(0, keepdim=True))).expand(-1, at.num_queries, -1)
    without = encoding.embed(tokens, at, layer) - encoding.embed(torch.zeros_like(tokens), at, layer)
    alike = torch.allclose(without, without[:, :1].expand_as(without), atol=1e-9)
    if not alike or not torch.allclose(without[0] + without[1], without[2], atol=1e-9):
        raise InputError(
            "it changes the tokens' vectors by position, other than by a sum",
            "take one with sinusoidal or learned codes, merge='add' or 'concat'",
            argument=name,
        )


def check_has_table(model: nn.Module) -> None:
    """Raise InputError for a model without a learned table at its input."""
    if not hasattr(model, "config") or not hasattr(model, "base_model"):
        raise InputError("pass a posenc Transformer or a transformers model", model=model)
    if not has_learned_table(model):
        raise InputError(
            f"model of type {model.config.model_type!r}: it adds no learned code to the tokens; take one of "  # type: ignore[union-attr]
            f"{', '.join(sorted(TABLES))}"
        )


def check_single_text(model: Any) -> None:
    """Raise InputError for a transformers model with an encoder and a decoder."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError(
            f"{type(model).__name__} has an encoder and a decoder", "pass model.get_encoder()", argument="model"
        )


# ---------------------------------------------------------------- small models


def random_model(
    encoding: str, *, config: TransformerConfig = HOST, max_positions: int = 64, seed: int = 0
) -> Transformer:
    """A small random model with an encoding, in float64: an encoder, or a decoder where the encoding allows no other. The
    model has the same weights under every encoding; the encoding's are N(0, 0.5^2), since zeros would hide it."""
    causal_only = any(term.map or lookup(term.name, may_import=True).causal_only for term in read(encoding).terms)
    config = replace(config, causal=config.causal or causal_only)
    with seeded(seed):
        made = create(
            encoding, dim=config.dim, num_heads=config.num_heads, num_layers=config.num_layers, causal=config.causal,
            max_positions=max_positions,
        )  # fmt: skip
    with seeded(seed):
        model = Transformer(config, made)
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def trained_model(encoding: str, steps: int = 120, seed: int = 0) -> tuple[Transformer, Tensor]:
    """The small decoder of `posenc compare` (two layers, four heads, bytes of Python's language reference, 128 a text)
    trained under an encoding, in eval mode, and the held-out text, (n,) uint8. The same arguments give the same weights,
    at once when they are asked for again; else in ten seconds or so on two cores.

    Raises:
        InputError: an encoding that does not exist or cannot train.
    """
    model, text = _trained(encoding, steps, seed)
    return copy.deepcopy(model), text.clone()  # the caller may change them


@lru_cache(maxsize=8)
def _trained(encoding: str, steps: int, seed: int) -> tuple[Transformer, Tensor]:
    from posenc.lab.data import load
    from posenc.lab.experiment import Run
    from posenc.lab.text import Settings
    from posenc.lab.train import train

    corpus = load("pydoc")
    with seeded(seed):
        model, _ = train(Run(encoding, seed, Settings(steps=steps), corpus.digest), corpus.train)
    return model, corpus.test.tokens


# ---------------------------------------------------------------- sequences


def split_words(text: str) -> tuple[list[str], list[int]]:
    """Words and signs as tokens, numbered in order of appearance. Raises InputError where there are none."""
    tokens = WORD.findall(text)
    if not tokens:
        raise InputError("has no words", text=text)
    numbers = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return tokens, [numbers[token] for token in tokens]


def tokenized(tokenizer: Any, text: str) -> tuple[list[str], list[int]]:
    """Tokens and ids of a text, by a transformers tokenizer or a function that gives both."""
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        # not verbose: a text may be longer than the model reads at once, and is cut later
        ids = [int(i) for i in tokenizer(text, verbose=False)["input_ids"]]
        return list(tokenizer.convert_ids_to_tokens(ids)), ids
    if callable(tokenizer):
        tokens, ids = tokenizer(text)
        return list(tokens), [int(i) for i in ids]
    raise InputError("pass the one that the model was trained with", tokenizer=tokenizer)
