"""What autograd, torch.func and checkpoints ask of every encoding: the gradients of a plain pass, or a refusal."""

from functools import partial

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import posenc
from posenc import InputError, Positions, attention
from posenc.encoding import gates_of

EVERY = pytest.mark.parametrize("name", posenc.ENCODINGS)


class Layer(torch.nn.Module):
    """A layer of attention under an encoding, with every site of it."""

    def __init__(self, name, tokens=8, **options):
        super().__init__()
        shape = {"dim": 16, "num_heads": 2, "head_dim": 8, "max_positions": tokens, "causal": True}
        torch.manual_seed(0)
        self.encoding = posenc.create(
            name, **shape | ({"height": 4, "width": tokens // 4} if name == "swin_v2" else {})
        )
        self.query, self.key, self.value = (torch.nn.Linear(16, 16) for _ in range(3))
        self.options = options
        self.double()

    def forward(self, x):
        positions = Positions.arange(x.shape[1], causal=True)
        self.encoding.share([(self.query, self.key)])
        x = self.encoding.embed(x, positions)
        q, k, v = (each(x).unflatten(-1, (2, 8)).transpose(1, 2) for each in (self.query, self.key, self.value))
        return attention(q, k, v, self.encoding, positions, gates=gates_of(self.encoding, x), **self.options)


def example():
    return torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)


def same(found, wanted, message):
    for each, want in zip(found, wanted, strict=True):
        zero = torch.zeros_like(each if want is None else want)
        torch.testing.assert_close(
            zero if each is None else each, zero if want is None else want, rtol=0, atol=1e-9, msg=message
        )


@EVERY
def test_torch_func_gives_the_gradients_of_each_example(name):
    layer, x = Layer(name), example().detach()
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x[None],)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for row in range(2):
        wanted = torch.autograd.grad(loss(parameters, x[row]), list(parameters.values()), allow_unused=True)
        same([each[row] for each in found.values()], wanted, name)


@EVERY
@pytest.mark.parametrize("tokens", [8, 272])  # 272: more numbers than what is computed by formulas for being small
def test_a_batch_of_gradients_is_each_of_them_or_refused(name, tokens):
    layer, x = Layer(name, tokens), torch.randn(2, tokens, 16, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]

    def check():
        out = layer(x)
        given = torch.randn(2, *out.shape, dtype=out.dtype)
        found = torch.autograd.grad(out, leaves, given, retain_graph=True, allow_unused=True, is_grads_batched=True)
        for row, gradient in enumerate(given):
            wanted = torch.autograd.grad(out, leaves, gradient, retain_graph=True, allow_unused=True)
            same([None if each is None else each[row] for each in found], wanted, name)

    try:
        check()
    except InputError:
        with pytest.raises(InputError, match=r"^is_grads_batched=True: the operator of posenc.attention "):
            check()
        layer.options = {"backend": "reference"}  # the remedy
        check()


@EVERY
def test_hooks_of_saved_tensors_and_checkpoints_change_no_gradient(name):
    layer, x = Layer(name), example()
    leaves = [x, *layer.parameters()]

    def gradients(run):
        loss = run(x).square().sum()
        return torch.autograd.grad(loss, leaves, allow_unused=True)

    wanted = gradients(layer)
    for hooks in (partial(saved_tensors_hooks, torch.clone, torch.clone), save_on_cpu):
        with hooks():
            inside = gradients(layer)
            loss = layer(x).square().sum()
        same(inside, wanted, f"{name} {hooks}: forward and backward")
        same(torch.autograd.grad(loss, leaves, allow_unused=True), wanted, f"{name} {hooks}: forward alone")
    same(gradients(partial(checkpoint, layer, use_reentrant=False)), wanted, f"{name} checkpoint")
    checkpoint(layer, x, use_reentrant=True).square().sum().backward()  # which knows backward() alone
    same([leaf.grad for leaf in leaves], wanted, f"{name} reentrant checkpoint")


@EVERY
def test_second_derivatives_of_the_reference_are_right_or_refused(name):
    layer, x = Layer(name, backend="reference"), example()
    step = 1e-6 * torch.randn_like(x)

    def gradient(at):
        leaves = [at, *layer.parameters()]
        return torch.autograd.grad(layer(at).square().sum(), leaves, create_graph=True, allow_unused=True)

    def norm(gradients):
        return sum(each.square().sum() for each in gradients if each is not None)

    there, back = (norm(gradient((x + sign * step).detach().requires_grad_())).item() for sign in (1, -1))
    if name == "floater":
        with pytest.raises(
            InputError, match=r"^second derivatives of FLOATER: .*; take all derivatives by torch\.func$"
        ):
            norm(gradient(x)).backward()
        return
    (found,) = torch.autograd.grad(norm(gradient(x)), x)
    assert float((found * step).sum()) == pytest.approx((there - back) / 2, rel=1e-4)
