"""FLOATER's flow against its formula, torchdiffeq and the sinusoid that it can become."""

import pytest
import torch
from torch.testing import assert_close
from torchdiffeq import odeint

import posenc
from posenc import FLOATER, Positions
from posenc.encodings import floater
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.testing.oracles import codes as oracles

CONFIG = TransformerConfig(11, dim=12, num_layers=2, num_heads=3)
GROUPED = TransformerConfig(11, dim=12, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=5)


def made(config=CONFIG, **options) -> FLOATER:
    """In float64, with parameters of unit size and long steps, so that the flow bends."""
    options = {"step": 0.1, "num_layers": config.num_layers} | options
    encoding = FLOATER(
        config.num_heads, head_dim=config.width, dim=config.dim, num_kv_heads=config.num_kv_heads, **options
    )
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoding.double()


def weights(encoding):
    return [
        x.detach() for x in (encoding.first.weight, encoding.first.bias, encoding.second.weight, encoding.second.bias)
    ]


def solved(encoding, ids):
    """The flow at positions: (n, 3, num_layers, width)."""
    return encoding.codes(Positions.from_ids(ids))[1][0].detach()


def kutta(function, t, p, dt):
    """One step of the 3/8 rule, from its Butcher tableau (Hairer, Norsett and Wanner 1993, table II.1.2)."""

    def moved(*terms):
        return [p[c] + dt * sum(a * k[c] for a, k in terms) for c in range(len(p))]

    k1 = function(t, p)
    k2 = function(t + dt / 3, moved((1 / 3, k1)))
    k3 = function(t + 2 * dt / 3, moved((-1 / 3, k1), (1, k2)))
    k4 = function(t + dt, moved((1, k1), (-1, k2), (1, k3)))
    return moved((1 / 8, k1), (3 / 8, k2), (3 / 8, k3), (1 / 8, k4))


def test_the_flow_is_the_papers_entry_by_entry():
    encoding = made(TransformerConfig(11, dim=4, num_layers=2, num_heads=2))
    actual, lists = solved(encoding, torch.arange(4)), [x.tolist() for x in weights(encoding)]
    for part in range(3):
        for layer in range(2):
            p = encoding.initial[part, layer].tolist()
            for position in range(4):
                assert actual[position, part, layer].tolist() == pytest.approx(p, abs=1e-12)
                for substep in range(5):
                    t = 0.1 * position + 0.02 * substep
                    p = kutta(lambda t, p: oracles.slope(t, p, *lists), t, p, 0.02)


def slope_of(encoding):
    weight1, bias1, weight2, bias2 = weights(encoding)

    def slope(t, p):
        timed = torch.cat((p, t.expand(*p.shape[:-1], 1)), -1)
        hidden = (timed @ weight1.T + bias1).relu()
        return torch.cat((hidden, t.expand(*p.shape[:-1], 1)), -1) @ weight2.T + bias2

    return slope


def test_rk4_is_torchdiffeqs():
    # the authors' fork (xuanqing94/torchdiffeq, fixed_grid.RK4 calls rk4_alt_step_func) steps by the 3/8 rule too
    encoding = made()
    slope, times = slope_of(encoding), 0.1 * torch.arange(30, dtype=torch.float64)
    theirs = odeint(slope, encoding.initial.detach(), times, method="rk4", options={"step_size": 0.02})
    ours = solved(encoding, torch.arange(30))
    assert_close(ours, theirs, rtol=1e-10, atol=1e-10)

    def classical(t, p, dt=0.02):
        k1 = slope(t, p)
        k2 = slope(t + dt / 2, p + dt / 2 * k1)
        k3 = slope(t + dt / 2, p + dt / 2 * k2)
        return p + dt / 6 * (k1 + 2 * k2 + 2 * k3 + slope(t + dt, p + dt * k3))

    p = encoding.initial.detach()
    for substep in range(5 * 29):
        p = classical(torch.tensor(0.02 * substep, dtype=torch.float64), p)
    apart = (p - ours[-1]).norm() / ours[-1].norm()
    assert 1e-8 < apart < 1e-4, "the classical rule gives other values, as near as two solutions of the same equation"


def test_the_error_is_that_of_the_fourth_order():
    # without ReLU's kinks the order shows: a large bias keeps every hidden unit active
    encoding, finer = made(substeps=1), made(substeps=2)
    encoding.first.bias.data.fill_(50.0)
    encoding.second.bias.data.copy_(-50 * encoding.second.weight.data[:, :-1].sum(1))
    finer.load_state_dict(encoding.state_dict())
    times = 0.1 * torch.arange(9, dtype=torch.float64)
    exact = odeint(slope_of(encoding), encoding.initial.detach(), times, method="dopri8", rtol=1e-12, atol=1e-13)
    errors = [(solved(each, torch.arange(9)) - exact).abs().max().item() for each in (encoding, finer)]
    assert errors[0] / errors[1] == pytest.approx(2**4, rel=0.25)


def test_sinusoids_are_a_flow():
    # p' = blockdiag(w J) p / step from (0.., 1..): with all hidden units active h is any linear map
    dim, half = 8, 4
    frequencies = posenc.functional.frequency_curve(dim)
    turn = torch.zeros(dim, dim, dtype=torch.float64)
    turn[range(half), range(half, dim)] = frequencies
    turn[range(half, dim), range(half)] = -frequencies
    bias, column = 3.0 * torch.ones(dim, dtype=torch.float64), torch.zeros(dim, 1, dtype=torch.float64)
    weight1 = torch.cat((torch.eye(dim, dtype=torch.float64), column), 1)
    weight2 = torch.cat((turn / 0.01, column), 1)
    layers = weight1, bias, weight2, -(turn / 0.01) @ bias
    initial = torch.cat((torch.zeros(1, half), torch.ones(1, half)), 1).double()
    actual = floater.solved(initial, layers, torch.arange(51), 0.01, 5)[:, 0]
    want = posenc.functional.sinusoidal(torch.arange(51), dim, layout="concat", dtype=torch.float64)
    # the largest local error of a fourth-order step of angle 1/5 is of (1/5)^5 / 5!, 250 steps are taken
    assert (actual - want).abs().max() < 250 * 0.2**5 / 120


def test_a_code_depends_on_no_other_position():
    encoding = made()
    full = solved(encoding, torch.arange(40))
    for ids in (torch.tensor([7]), torch.tensor([39, 0, 7]), torch.arange(12)):
        fresh = made()
        fresh.load_state_dict(encoding.state_dict())
        assert torch.equal(solved(fresh, ids), full[ids])
    mixed = solved(encoding, torch.tensor([7.0, 3.25, 39.0]))
    assert torch.equal(mixed[[0, 2]], full[[7, 39]])
    assert_close(solved(encoding, torch.tensor([3.25]))[0], mixed[1], rtol=0, atol=1e-14)


def test_fractions_lie_on_the_flow():
    encoding, ids = made(), torch.tensor([0.5, 3.25, 7.875], dtype=torch.float64)
    exact = odeint(
        slope_of(encoding), encoding.initial.detach(), torch.cat((torch.zeros(1), 0.1 * ids)), rtol=1e-10, atol=1e-12
    )[1:]
    assert_close(solved(encoding, ids), exact, rtol=0, atol=1e-4)
    assert (solved(encoding, ids.floor().long()) - exact).abs().max() > 1e-2


@pytest.mark.parametrize(
    "ids", [[[0, 1, 5], [2, 2, 70]], [[0.0, 0.5, 2.25], [3.0, 1.75, 4.5]]], ids=["integers", "fractions"]
)
def test_gradients_are_those_of_the_steps(ids):
    initial = torch.randn(2, 3, dtype=torch.float64)
    layers = [torch.randn(shape, dtype=torch.float64) * 0.5 for shape in ((3, 4), (3,), (3, 4), (3,))]
    inputs = [x.requires_grad_() for x in (initial, *layers)]
    assert torch.autograd.gradcheck(lambda *x: floater.flow(*x, torch.tensor(ids), 0.05, 2), inputs, fast_mode=True)


def test_the_operator_keeps_its_promises_to_the_compiler():
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3), (3, 4), (3,), (3, 4), (3,))]
    for ids in (torch.tensor([[0, 3]]), torch.tensor([[0.5, 2.0]], dtype=torch.float64)):
        torch.library.opcheck(floater.flow, (*inputs, ids, 0.05, 2))


# ---------------------------------------------------------------- where the flow enters


@pytest.mark.parametrize("config", [CONFIG, GROUPED], ids=["full", "grouped"])
def test_codes_are_added_to_queries_keys_and_values_of_their_layer(config):
    encoding, heads, width = made(config), config.num_heads, config.width
    q = torch.randn(2, heads, 3, width, dtype=torch.float64)
    k = torch.randn(2, config.kv_heads, 8, width, dtype=torch.float64)
    positions = Positions.arange(3, 5)
    flow = solved(encoding, torch.arange(8))
    for layer in range(2):
        rotated_q, rotated_k = encoding.rotate(q, k, positions, layer)
        added = encoding.values(positions, layer).added
        for h in range(heads):
            assert_close(rotated_q[:, h], q[:, h] + flow[5:, 0, layer, h * width : (h + 1) * width])
        for h in range(config.kv_heads):
            channels = slice(h * width, (h + 1) * width)  # grouped: the first ones
            assert_close(rotated_k[:, h], k[:, h] + flow[:, 1, layer, channels])
            assert_close(added[0, h].detach(), flow[:, 2, layer, channels])


@pytest.mark.parametrize("config", [CONFIG, GROUPED], ids=["full", "grouped"])
def test_it_starts_as_the_sinusoidal_model_and_leaves_it(config):
    torch.manual_seed(1)
    plain = Transformer(config, posenc.Sinusoidal(config.dim)).double()
    model = Transformer(config, posenc.create(
        "floater", dim=config.dim, num_heads=config.num_heads, head_dim=config.width, num_kv_heads=config.num_kv_heads,
        num_layers=2,
    )).double()  # fmt: skip
    model.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randint(11, (4, 20))
    assert torch.equal(model(x), plain(x))
    before = {name: p.detach().clone() for name, p in model.encoding.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()
    assert all((p != before[name]).any() for name, p in model.encoding.named_parameters())
    assert not torch.equal(model(x), plain(x))


def test_one_solution_serves_a_forward_pass(monkeypatch):
    solutions, function = [], floater.flow
    monkeypatch.setattr(floater, "flow", lambda *args: (solutions.append(args), function(*args))[1])
    model, x = Transformer(CONFIG, made()).double(), torch.randint(11, (2, 9))
    for passes in (1, 2):
        model(x).sum().backward()
        assert len(solutions) == passes


@pytest.mark.parametrize("ids", [[0, 3, 9], [0.5, 3.25, 9.0]], ids=["integers", "fractions"])
def test_the_flow_is_not_solved_in_half_precision(ids):
    encoding = made().float()
    want = solved(encoding, ids)
    again = posenc.from_spec(encoding.spec())
    again.load_state_dict(encoding.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = solved(again, ids)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, want)
    assert solved(again.bfloat16(), ids).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FLOATER(2, head_dim=4, dim=8, num_kv_heads=3), "num_kv_heads=3: must divide"),
        (lambda: FLOATER(2, head_dim=4, dim=8, step=0.0), "step=0.0"),
        (lambda: FLOATER(2, head_dim=4, dim=8, init_std=-1.0), "init_std=-1"),
        (lambda: FLOATER(2, head_dim=4, dim=7), "dim=7"),
        (lambda: solved(made(), [-1, 2]), "position -1 is negative"),
        (lambda: solved(made(), [-0.5]), "position -0.5 is negative"),
        (lambda: made().rotate(*torch.zeros(2, 1, 4, 2, 4).double(), Positions.arange(2)), "q with 4 heads of width 4"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(posenc.InputError, match=message):
        call()
