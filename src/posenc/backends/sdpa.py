"""PyTorch's scaled_dot_product_attention, given position in the cheapest exact form it accepts."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from posenc.backends.problem import Problem
from posenc.backends.reference import Reference
from posenc.bias import Relative, dense_sum, hankel


class SDPA:
    """Serves everything but terms on the values. In order of cost: no mask or is_causal; a strided view of one
    vector for a bias of the distance alone; a dense mask."""

    def refusal(self, problem: Problem) -> str | None:
        return "a term on the values (w_ij) needs the attention probabilities" if problem.values is not None else None

    def plan(self, problem: Problem) -> tuple[str, int, str]:
        batch, heads, queries = problem.q.shape[:3]
        keys, positions, size = problem.k.shape[2], problem.positions, problem.q.element_size()
        cells = batch * heads * queries * keys * size
        if problem.dropout_p > 0 and problem.q.device.type == "cpu":
            why = "dropout makes the CPU's SDPA keep scores and probabilities"
            return why, 3 * cells, "no dropout on the attention weights"
        if _trains_sink(problem):
            return "the gradient of a learned sink needs scores and probabilities", 3 * cells, "a sink without gradient"
        padded = _padded_width(problem)
        widened = 0 if padded is None else padded * sum(x.numel() // x.shape[-1] for x in (problem.q, problem.v)) * size
        if _is_plain(problem):
            return "no bias and contiguous positions: no mask is built", widened, ""
        if _is_toeplitz(problem):
            flipped = problem.q.numel() * size
            vector = heads * (queries + keys - 1) * 4
            how = "a bias of the distance alone, read through a strided view of one vector"
            if not _wants_gradient(problem):
                return how, flipped + vector + widened, ""
            return f"{how}; its gradient makes SDPA keep the probabilities", 2 * cells, "freezing the bias"
        if not problem.bias and problem.sink is None:
            return "a dense bool mask", positions.batch * queries * keys + widened, "contiguous positions need no mask"
        rows = max([positions.batch, *(term.batch for term in problem.bias)])
        tensors = len(problem.bias) + (len(problem.bias) > 1 or not positions.all_visible)  # terms, sum, masked sum
        return "a dense float mask", max(tensors, 1) * rows * heads * queries * keys * max(size, 4) + widened, ""

    def attend(self, problem: Problem) -> Tensor:
        if _trains_sink(problem):
            # SDPA would take its own N x N path, with an extra column that defies export for any length
            return Reference().attend(problem)
        q, k, v = problem.q, problem.k, problem.v
        width = _padded_width(problem)
        if width is not None:
            q, k, v = (pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
            out = self._attend(problem, q, k, v)
            return out[..., : problem.v.shape[-1]]
        return self._attend(problem, q, k, v)

    def _attend(self, problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = problem.positions
        options = {"scale": problem.scale, "dropout_p": problem.dropout_p, "enable_gqa": q.shape[1] != k.shape[1]}
        if _is_plain(problem):
            # one query sees all it is given; SDPA's own causal mask is aligned to the first key, so it needs a square
            causal = not positions.all_visible
            return scaled_dot_product_attention(q, k, v, is_causal=causal, **options)  # type: ignore[arg-type]

        if _is_toeplitz(problem):
            vector = _toeplitz_vector(problem)
            view = hankel(vector, k.shape[2])[None]
            return scaled_dot_product_attention(q.flip(2), k, v, attn_mask=view, **options).flip(2)  # type: ignore[arg-type]

        bias = dense_sum(problem.bias, q.device)
        visible: Tensor | None = None if positions.all_visible else positions.mask()
        if problem.sink is not None:
            bias, visible = _with_sink(problem, bias, visible)
            k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
        blind = None
        if visible is not None:
            # SDPA leaves rows without a visible key undefined: let them see everything, then clear their output
            seen = visible.any(-1, keepdim=True)
            blind, visible = ~seen, visible | ~seen
        mask = visible
        if bias is not None:
            bias = _mask_dtype(bias, q)
            mask = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)  # type: ignore[arg-type]
        return out if blind is None else out.masked_fill(blind, 0.0)


def _padded_width(problem: Problem) -> int | None:
    """The CPU's fused path wants values as wide as queries and keys, and else quietly takes an N x N one: the common
    width to pad them to with zeros, or None if they agree."""
    widths = problem.q.shape[-1], problem.v.shape[-1]
    return max(widths) if problem.q.device.type == "cpu" and widths[0] != widths[1] else None


def _trains_sink(problem: Problem) -> bool:
    return problem.sink is not None and problem.sink.requires_grad and torch.is_grad_enabled()


def _is_plain(problem: Problem) -> bool:
    """No bias, no sink, and a visibility that SDPA knows by itself."""
    positions = problem.positions
    if problem.bias or problem.sink is not None:
        return False
    if positions.all_visible:
        return True
    square = positions.start is not None and positions.start[0] == positions.start[1]
    return square and positions.num_queries == positions.num_keys


def _wants_gradient(problem: Problem) -> bool:
    """Whether a gradient will flow into the bias: the CPU's SDPA then leaves its fused path."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(t, Relative) and t.vector(problem.q.device).requires_grad for t in problem.bias)


def _is_toeplitz(problem: Problem) -> bool:
    """Biases of the distance alone over contiguous positions, on a backend that reads strided masks."""
    positions = problem.positions
    return (
        bool(problem.bias)
        and positions.start is not None
        # a term may have laid the positions out on a grid of its own
        and all(isinstance(term, Relative) and term.positions.start == positions.start for term in problem.bias)
        and problem.sink is None
        and problem.q.device.type == "cpu"
        and not _every_key_hidden(problem)
    )


def _every_key_hidden(problem: Problem) -> bool:
    """Whether the first query sees nothing, which the strided view could not express."""
    positions = problem.positions
    return positions.causal and positions.start is not None and positions.start[0] < positions.start[1]


def _toeplitz_vector(problem: Problem) -> Tensor:
    positions, device = problem.positions, problem.q.device
    assert positions.start is not None
    vector = sum(t.vector(device) for t in problem.bias if isinstance(t, Relative))
    assert isinstance(vector, Tensor)
    if positions.causal:
        longest = positions.start[0] + positions.num_queries - 1 - positions.start[1]
        future = torch.arange(vector.shape[-1], device=device) > longest
        vector = vector.masked_fill(future, -torch.inf)
    return _mask_dtype(vector, problem.q)


def _mask_dtype(mask: Tensor, q: Tensor) -> Tensor:
    """The dtype SDPA wants: on the CPU a half-precision q takes a float32 mask, which keeps large biases exact."""
    keep = q.device.type == "cpu" and q.dtype in (torch.bfloat16, torch.float16)
    return mask.to(torch.float32 if keep else q.dtype)


def _with_sink(problem: Problem, bias: Tensor | None, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The sink as one more column: its score is the logit and everybody sees it (its key and value are zero)."""
    queries, keys = problem.q.shape[2], problem.k.shape[2]
    assert problem.sink is not None
    if bias is None:
        bias = problem.sink.new_zeros(1, 1, queries, keys)
    logits = problem.sink[None, :, None, None].to(bias.dtype)
    heads = (bias.shape[0], problem.q.shape[1], queries)
    bias = torch.cat((bias.expand(*heads, keys), logits.expand(*heads, 1)), -1)
    visible = None if visible is None else pad(visible, (0, 1), value=True)
    return bias, visible
