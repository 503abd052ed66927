# SPDX-License-Identifier: Apache-2.0
"""`posenc.extend`: by a method that is named, or by the one that measurements choose."""

from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from posenc.errors import check_integers, check_numbers
from posenc.pretrained.extend import Extension
from posenc.pretrained.extend import extend as extend_by
from posenc.pretrained.learned_table import TableExtension
from posenc.spec import check_options

if TYPE_CHECKING:
    from posenc.lab.evals.auto import Selection

CHOSEN: Final = "auto"
"""The method that measures others and takes one."""


@overload
def extend(
    model: Any,
    method: Literal["auto"],
    *,
    factor: float | None = None,
    target_length: int | None = None,
    **options: Any,
) -> "Selection": ...


@overload
def extend(
    model: Any, method: str, *, factor: float | None = None, target_length: int | None = None, **options: Any
) -> Extension | TableExtension: ...


def extend(
    model: Any, method: str, *, factor: float | None = None, target_length: int | None = None, **options: Any
) -> "Extension | TableExtension | Selection":
    """Extend the context window of a transformers causal language model, in place; `restore` undoes it.

    model: Llama and similar models, see `FAMILIES` in posenc/pretrained/families.py, under a PEFT wrapper or not. method: see
    `posenc.pretrained.methods.METHODS`, as "yarn", "ntk+log_n" or "rerope:window=2048+softmax_n". factor: the new length
    over the one the model had before any scaling; or target_length, in tokens; both None: the factor that a schedule's own
    text states ("yarn:factor=4"). Methods that do not depend on the new length need neither. options: of the method's
    parts, as in `extend(model, "rerope", window=2048)`.

    "auto" tries methods on documents for some minutes and takes the best that it can distinguish, or none where nothing beats
    truncation: `extend(model, "auto", target_length=32768, tokenizer=tokenizer, text=book, minutes=10)`. The options are those of
    `posenc.lab.evals.auto.select`, whose `Selection` it returns.

    BERT, GPT-2 and other models with a learned table take "hierarchical" (option alpha) and "interpolate", see
    `learned_table.plan_table`.

    A model that is extended already is extended anew from what it was, never twice. If anything fails, the model stays as
    it was. max_position_embeddings becomes the new length, and rope_parameters what plain transformers needs for the same
    frequencies, so that save_pretrained keeps them; unless how the model was loaded ("dynamic", "linear") forbids it, which
    `load` handles.

    Raises:
        InputError: a model, method, option or length that is not supported, with the reason; options that do not reach
            the new length, with how far they do.
    """
    if method != CHOSEN:
        return extend_by(model, method, factor=factor, target_length=target_length, **options)
    check_numbers(factor=factor)
    check_integers(1, target_length=target_length)
    from posenc.lab.evals.auto import select

    names = signature(select).parameters.keys() - {"model", "factor", "target_length"}
    check_options(CHOSEN, options, names, select)
    return select(model, factor=factor, target_length=target_length, **options)
