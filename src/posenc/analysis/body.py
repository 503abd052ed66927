# SPDX-License-Identifier: Apache-2.0
"""A model from its input vectors on: what turns content and position, once they are together, into representations."""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from posenc.analysis.first_layer import tables, words_of
from posenc.analysis.reading import Codes
from posenc.blocks import Attention, Block
from posenc.checks import checked
from posenc.encodings.absolute import Absolute
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.pretrained.learned_table import has_learned_table, table_module
from posenc.transformer import Transformer

Run = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Body:
    """A model in float64, split where tokens meet positions: run(join(x, at), at), and run may be differentiated twice.

    Attributes:
        name: for people. dim: width of the input vectors; None: a function's, which may take any.
        run: (batch, n, dim) vectors and (n,) positions -> (batch, n, width) representations, or whatever a function
            makes of vectors.
        join: the vectors of the content and the positions -> what `run` gets: codes added, or whatever else the model's
            encoding does to its input.
        codes: what `join` adds, where it adds something that depends on the position alone.
        words: the vectors of the vocabulary, (vocabulary, dim), at the size at which codes are added to them.
        reads_positions: whether moving `at` can change anything.
    """

    name: str
    dim: int | None
    run: Run
    join: Run = field(default=lambda x, at: x)
    codes: Codes | None = None
    words: Tensor | None = None
    reads_positions: bool = False

    def __call__(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """The whole model: (batch, n, dim) content at positions (n,), by default 0 .. n-1."""
        at = torch.arange(x.shape[1]) if at is None else at
        return self.run(self.join(x, at), at)

    def content(self, tokens: Tensor) -> Tensor:
        """The (n, dim) vectors of (n,) tokens.

        Raises:
            InputError: a body that takes vectors only, or a token outside the vocabulary.
        """
        if self.words is None:
            raise InputError(f"{self.name} reads vectors, not tokens: pass (n, dim) vectors in a floating dtype")
        if tokens.dim() != 1 or not 0 <= int(tokens.min()) <= int(tokens.max()) < len(self.words):
            raise InputError(f"tokens {tuple(tokens.shape)}: pass (n,) token ids between 0 and {len(self.words) - 1}")
        return self.words[tokens.long().cpu()]


@checked
def body_of(subject: Any, *, layers: int | None = None, name: str | None = None) -> Body:
    """The body of a model, on a copy of it in float64, on the CPU and in eval mode.

    Args:
        subject: a `posenc.Transformer`, a transformers model, nn.TransformerEncoder, nn.TransformerEncoderLayer,
            nn.MultiheadAttention (its self-attention), any other module or function of (batch, n, dim) vectors in float64.
        layers: only the first ones of a model with several; None: all. name: for people.

    Raises:
        InputError: a number of layers that the model does not have, or a model that reads two texts or does not add its
            learned table to its words.
    """
    if isinstance(subject, Body):
        return subject
    named = name or str(getattr(subject, "__name__", type(subject).__name__))
    if not isinstance(subject, nn.Module):
        if not callable(subject):
            raise InputError(f"model: a {type(subject).__name__} is neither a module nor a function of vectors")
        return Body(named, None, lambda x, at: subject(x))
    model = copy.deepcopy(subject).to("cpu", torch.float64).eval().requires_grad_(False)
    if isinstance(model, Transformer):
        return _of_transformer(model, layers, name or f"{named} ({model.encoding.name})")
    if hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "get_input_embeddings"):
        return _of_pretrained(model, layers, named)
    if layers is not None:
        if not isinstance(model, nn.TransformerEncoder):
            raise InputError(f"layers={layers}: {named} has no layers to choose from; leave it out")
        model.layers = _first(model.layers, layers, named)
    width = next((p.shape[-1] for p in model.parameters() if p.dim() > 1), None)
    if isinstance(model, nn.MultiheadAttention):
        width = model.embed_dim
    return Body(named, width, lambda x, at: _plain(model, x))


def _of_transformer(model: Transformer, layers: int | None, name: str) -> Body:
    encoding, words = model.encoding, words_of(model)
    blocks = [block for block in _first(model.blocks, layers, name) if isinstance(block, Block)]
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = "reference"  # the only one that is differentiable twice under every encoding

    def placed(x: Tensor, at: Tensor) -> Positions:
        return encoding.augment(Positions.from_ids(at).with_causal(model.config.causal), len(x))

    def join(x: Tensor, at: Tensor) -> Tensor:
        return encoding.embed(x, placed(x, at), 0)

    def run(x: Tensor, at: Tensor) -> Tensor:
        positions = placed(x, at)
        encoding.share([(block.attention.query, block.attention.key) for block in blocks])
        for layer, block in enumerate(blocks):
            x = encoding.embed(x, positions, layer) if layer else x
            x = block(x, encoding, positions, layer, None)
        return model.norm(x)

    first, _ = encoding.at(0)
    codes = None
    if isinstance(first, Absolute) and first.merge == "add":
        codes = Codes(first.name, lambda at: first.codes(Positions.from_ids(at))[0], limit=first.max_positions)
    return Body(name, model.config.dim, run, join, codes, words, reads_positions=True)


def _of_pretrained(model: Any, layers: int | None, name: str) -> Body:
    check_reads_one(model)
    inner = model.base_model
    if getattr(inner, "_supports_sdpa", False):  # the others have no derivative of their own to offer
        inner.set_attn_implementation("sdpa")
    if layers is not None:
        owner, stack = _stack(inner, name)
        kept = _first(getattr(owner, stack), layers, name)
        setattr(owner, stack, kept)
    codes, told = None, "position_ids" in inspect.signature(inner.forward).parameters
    if has_learned_table(inner):
        words, table = tables(inner)
        nn.init.zeros_(table_module(inner).weight)
        codes, told = Codes(f"the table of {name}", lambda at: table[at.long()], limit=len(table)), False
    else:
        words = words_of(inner)

    def run(x: Tensor, at: Tensor) -> Tensor:
        where = {"position_ids": at[None].expand(len(x), -1)} if told else {}
        # without a mask, positions that do not rise by ones are taken for several packed texts
        where["attention_mask"] = torch.ones(x.shape[:2], dtype=torch.long)
        with _exactly():
            return inner(inputs_embeds=x, use_cache=False, **where)[0]

    if codes is None:
        return Body(name, words.shape[1], run, words=words, reads_positions=told)
    return Body(name, words.shape[1], run, lambda x, at: x + codes(at), codes, words, reads_positions=True)


def check_reads_one(model: Any) -> None:
    """Refuse a transformers model that reads two texts.

    Raises:
        InputError: it has an encoder and a decoder.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError(
            f"model: {type(model).__name__} reads two texts, with an encoder and a decoder; pass model.get_encoder()"
        )


class _InFloat64(TorchFunctionMode):
    """In float64 what a model computes in float32 whatever it is given, as norms and softmax of transformers' do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func is Tensor.float else func
        args = [torch.float64 if one is torch.float32 else one for one in args]
        return func(*args, **{k: torch.float64 if one is torch.float32 else one for k, one in (kwargs or {}).items()})


@contextmanager
def _exactly() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH), _InFloat64():  # fused attention has no second derivative
        yield


def _stack(inner: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that owns a model's layers, and under which name."""
    config: Any = inner.config
    for path, module in inner.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:  # ALBERT has one for all
            owner, _, own = path.rpartition(".")
            return inner.get_submodule(owner), own
    raise InputError(f"layers: {name} has no list of layers to choose from; leave it out")


def _first(stack: nn.ModuleList, layers: int | None, name: str) -> nn.ModuleList:
    if layers is None:
        return stack
    if not 1 <= layers <= len(stack):
        raise InputError(f"layers={layers}: {name} has 1 to {len(stack)}")
    return stack[:layers]


def _plain(model: nn.Module, x: Tensor) -> Tensor:
    """(batch, n, dim) through a module that is not told positions."""
    own = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    attention = next((m for m in model.modules() if isinstance(m, nn.MultiheadAttention)), None)
    turned = isinstance(model, own) and attention is not None and not attention.batch_first
    x = x.transpose(0, 1) if turned else x
    with _exactly():
        y = model(x, x, x, need_weights=False) if isinstance(model, nn.MultiheadAttention) else model(x)
    y = y[0] if isinstance(y, tuple) else y
    return y.transpose(0, 1) if turned else y
