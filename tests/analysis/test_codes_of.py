"""Whatever has codes gives them, as the formulas say; whatever has none, or gives bad ones, is refused with a reason."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import posenc
from posenc.analysis import codes_of, unique
from posenc.analysis.codes import SHAPE
from posenc.encodings import ENCODINGS, ALiBi, Learned, Rotary, Sinusoidal, create
from posenc.errors import InputError
from posenc.functional import alibi_slopes, sinusoidal
from posenc.positions import Positions
from posenc.testing.oracles.rotations import frequencies as ladder
from references import minilm

AT = torch.arange(20)
REFUSED = {
    "none", "cope", "shape", "cape", "randomized", "softmax_n", "sink", "log_n", "temperature", "step_temperature",
    "window", "chunks", "prefix_kv", "fox", "selective_rope", "mamba3_rope", "carope", "wall", "path", "stick_breaking", "projected_relative", "dape", "selective_attention", "rove", "pose",
    "repo", "tapa", "grape_ap",
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_has_codes_or_says_why_not(name):
    if name in REFUSED:
        with pytest.raises(InputError, match=rf"^{name}: .* no (distance has a )?code"):
            codes_of(name)
        return
    codes = codes_of(name)
    values = codes(AT)
    assert values.shape[0] == len(AT)
    assert values.dtype == torch.float64
    assert codes.name == name
    starts_at_nothing = name in ("multiplicative", "beit")
    assert bool((values == values[0]).all()) == starts_at_nothing


@pytest.mark.parametrize(
    "text",
    [
        "sinusoidal", "sinusoidal:layout=concat:amplitude=3", "sinusoidal:curve=power", "rope", "rope:layout=interleaved",
        "rope:rotary_dim=32", "p_rope", "decoupled_rope", "m_rope", "mixed_rope", "axial_rope", "pope", "rope+alibi",
        "rope+log_n", "shape+sinusoidal", "rope/none",
    ],
)  # fmt: skip
def test_known_waves_are_those_of_the_codes(text):
    codes = codes_of(text)
    values = codes(torch.arange(100))
    assert codes.waves is not None
    moved = values[:-7] @ codes.waves.matrix(7, values.shape[1]).T
    assert torch.allclose(moved, values[7:], atol=1e-12, rtol=0)


def test_waves_are_not_claimed_where_positions_or_lengths_bend_them():
    for text in (
        "randomized+sinusoidal",
        "cape:centre=True+rope",
        "xpos",
        "axial_rope:centred=True",
        "sinusoidal+learned",
    ):
        assert codes_of(text).waves is None


def test_rotation_is_read_off_a_query_of_ones():
    angle = 3 * ladder(64)
    expected = torch.cat((angle.cos() - angle.sin(), angle.cos() + angle.sin()))
    assert torch.allclose(codes_of("rope")(torch.tensor([3]))[0], expected, atol=1e-12)


def test_xpos_codes_do_not_depend_on_what_else_is_asked_for():
    codes = codes_of("xpos")
    assert torch.equal(codes(torch.arange(100))[:5], codes(torch.arange(5)))


def test_biases_belong_to_a_distance():
    codes = codes_of("alibi", num_heads=8)
    assert codes.of == "distance"
    assert torch.allclose(codes(AT), -AT[:, None] * alibi_slopes(8), atol=1e-12)


def test_a_sum_is_read_at_its_first_site():
    assert codes_of(Rotary(16) + ALiBi(4)).of == "position"


def test_layers_that_take_turns_are_read_in_the_first():
    assert codes_of("rope/none")(AT).shape == (20, 64)
    with pytest.raises(InputError, match=r"in layer 0 it acts on nothing"):
        codes_of("none/rope")


def test_sums_at_the_input_add_their_codes():
    torch.manual_seed(0)
    learned = Learned(20, dim=8)
    together = codes_of(Sinusoidal(8) + learned)
    assert torch.allclose(together(AT), codes_of("sinusoidal", dim=8)(AT) + learned.table.detach(), atol=1e-6)
    assert together.limit == 20
    with pytest.raises(InputError, match=r"analyse them one by one"):
        codes_of(Sinusoidal(8) + Sinusoidal(8, merge="multiply"))


def test_a_position_map_has_codes_of_mapped_distances():
    codes = codes_of("rope@rerope:window=16")
    values, plain = codes(torch.arange(40)), codes_of("rope")(torch.arange(40))
    assert codes.of == "distance"
    assert torch.equal(values[:16], plain[:16])
    assert torch.allclose(values[16:], plain[16].expand(24, -1))
    with pytest.raises(InputError, match=r"more than the distance"):
        codes_of("rope@self_extend:window=16:group=4")
    with pytest.raises(InputError, match=r"hides keys at distance 10;"):
        codes_of("rope@lm_infinite:window=10:sinks=0")(AT)


def test_a_users_input_encoding_is_read_by_what_it_adds():
    class Own(posenc.Encoding):
        def __init__(self, merge="add"):
            super().__init__()
            self.dim, self.merge = 4, merge

        def embed(self, x, positions, layer=0):
            code = sinusoidal(positions.q, self.dim)
            return x + code if self.merge == "add" else x * code

    assert torch.allclose(codes_of(Own())(AT), sinusoidal(AT, 4).double(), atol=1e-6)
    with pytest.raises(InputError, match=r"not added to the input"):
        codes_of(Own("multiply"))(AT)


@pytest.mark.parametrize("kind", ["tensor", "embedding", "array", "parameter"])
def test_tables(kind):
    weight = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    table = {"tensor": weight, "array": weight.numpy(), "parameter": nn.Parameter(weight)}.get(kind)
    codes = codes_of(nn.Embedding.from_pretrained(weight) if table is None else table)
    assert torch.equal(codes(AT), weight.double())
    assert codes.limit == 20


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_functions_may_give_low_precision_arrays_or_lists(dtype):
    low = codes_of(lambda at: sinusoidal(at, 8).to(dtype))(AT)
    assert torch.equal(low, sinusoidal(AT, 8).to(dtype).double())
    assert codes_of(lambda at: np.cos(at.numpy())[:, None])(AT).shape == (20, 1)
    assert codes_of(lambda at: [[float(k)] for k in at])(AT)[3] == 3


@pytest.mark.parametrize("stop", [SystemExit, RecursionError, KeyError])
def test_what_a_function_raises_is_reported_in_one_line(stop):
    def mine(at):
        raise stop("one\nand two")

    with pytest.raises(InputError, match=rf"^mine: failed for 3 positions: {stop.__name__}: \W*one( |\\n)and two"):
        codes_of(mine)(torch.arange(3))
    with pytest.raises(InputError, match=r"failed for 5 positions: IndexError"):
        codes_of(nn.Sequential(nn.Embedding(4, 8)))(torch.arange(5))


# ---------------------------------------------------------------- models

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}


def small(config):
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(config).eval()


def test_models_with_a_learned_table():
    bert = small(transformers.BertConfig(**SMALL, max_position_embeddings=64))
    assert torch.equal(codes_of(bert)(AT), bert.embeddings.position_embeddings.weight[:20].double())
    roberta = small(transformers.RobertaConfig(**SMALL, max_position_embeddings=66, pad_token_id=1))
    assert codes_of(roberta).limit == 64
    assert torch.equal(codes_of(roberta)(AT), roberta.embeddings.position_embeddings.weight[2:22].double())
    opt = small(transformers.OPTConfig(hidden_size=32, num_hidden_layers=1, ffn_dim=32, num_attention_heads=2,
                                       vocab_size=50, max_position_embeddings=64, word_embed_proj_dim=32))  # fmt: skip
    assert codes_of(opt).limit == 64
    assert codes_of(opt).name == "opt"
    with pytest.raises(InputError, match=r"0 .. 63 only"):
        codes_of(opt)(torch.tensor([64]))
    with pytest.raises(InputError, match=r"bert: a table has rows for integer positions"):
        codes_of(bert)(torch.tensor([0.5]))


def test_models_that_rotate_as_they_are_now():
    llama = small(transformers.LlamaConfig(**SMALL, max_position_embeddings=64))
    plain = codes_of(llama)
    assert torch.allclose(plain(AT), codes_of("rope", head_dim=16)(AT))
    posenc.extend(llama, "linear", factor=4)
    assert torch.allclose(codes_of(llama)(4 * AT), plain(AT))
    posenc.restore(llama)
    assert torch.equal(codes_of(llama)(AT), plain(AT))


def test_a_model_under_a_position_map_has_codes_of_mapped_distances():
    llama = small(transformers.LlamaConfig(**SMALL, max_position_embeddings=64))
    plain = codes_of(llama)(AT)
    posenc.extend(llama, "rerope", factor=4, window=8)
    codes = codes_of(llama)
    assert codes.of == "distance"
    assert torch.allclose(codes(AT), plain[AT.clamp(max=8)])


def test_unknown_models_are_refused_with_those_that_are_known():
    bloom = small(transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=50))
    with pytest.raises(InputError, match=r"type 'bloom'.*bert.*llama.*pass its table"):
        codes_of(bloom)


def test_a_trained_table_is_unique_but_for_its_length():
    codes = codes_of(minilm.load()[0])
    assert (codes.limit, codes.name) == (512, "bert")
    found = unique(codes)
    assert found.holds
    assert found.smallest > 0.1 * found.norm


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda at: at.float()[None, :, None].expand(1, -1, 8), r"gave \(1, 20, 8\).*return codes\[0\]"),
        (lambda at: at.float(), r"gave \(20,\) .*must give real \(n, dim\)"),
        (lambda at: torch.zeros(3, 8), r"gave \(3, 8\) .*for 20 positions"),
        (lambda at: torch.zeros(20, 0), r"gave \(20, 0\)"),
        (lambda at: None, r"failed for 20 positions: .*NoneType"),
        (lambda at: torch.zeros(20, 4) * 1j, r"of torch.complex64 .*must give real"),
        (lambda at: 1 / (at.float() - 7)[:, None], r"code of position 7 is not finite"),
        (lambda at: torch.where(at > 11, torch.nan, at.float())[:, None], r"code of position 12 is not finite"),
        (lambda at: at[:, None].double() * 1e153, r"code of position 14 is not finite, or its square"),
        (lambda at: torch.rand(20, 4), r"two different codes for the same positions; seed it"),
    ],
)  # fmt: skip
def test_bad_codes(function, message):
    with pytest.raises(InputError, match=message):
        codes_of(function)(AT)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (torch.arange(12).view(3, 4), r"torch.int64: pass floating-point"),
        (torch.zeros(0, 4), r"shape \(0, 4\)"),
        (torch.zeros(4), r"shape \(4,\).*\(n, dim\)"),
        (torch.zeros(1, 3, 4), r"without a batch"),
        (3, r"a int has no codes"),
        ("sinusoid", r"did you mean 'sinusoidal'"),
    ],
)
def test_bad_subjects(subject, message):
    with pytest.raises(InputError, match=message):
        codes_of(subject)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (torch.arange(13), r"positions from 0 to 12: table has codes for 0 .. 11"),
        (torch.tensor([-1]), r"positions from -1 to -1: table has codes for"),
        (torch.tensor([0.5]), r"integer positions"),
        (torch.arange(0), r"positions of shape"),
        (torch.zeros(1, 2, 3), r"positions of shape \(1, 2, 3\)"),
    ],
)
def test_bad_positions(positions, message):
    with pytest.raises(InputError, match=message):
        codes_of(torch.randn(12, 4))(positions)


def test_a_text_draws_the_same_numbers_and_nobody_elses():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = codes_of("learned")(AT)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(codes_of("learned")(AT), first)


def test_a_shape_is_for_encodings_and_their_texts():
    with pytest.raises(InputError, match=r"dim: fixed for a Tensor"):
        codes_of(torch.randn(12, 4), dim=4)
    with pytest.raises(InputError, match=r"num_heads: fixed for a function"):
        codes_of(lambda at: at[:, None], num_heads=2)


def test_encodings_that_move_positions_in_training_are_refused_in_it():
    encoding = create("shape+rope", **SHAPE)
    assert encoding.training
    before = torch.get_rng_state()
    with pytest.raises(InputError, match=r"two different codes.*\.eval\(\)"):
        codes_of(encoding)(AT)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(codes_of(encoding.eval())(AT), codes_of("rope")(AT))


def test_grids_are_read_at_their_coordinates():
    grid = create("grid_sinusoidal", **SHAPE)
    places = Positions.grid(3, 4)
    assert torch.equal(codes_of(grid)(places.q[0]), grid.codes(places)[0].double())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("text", ["sinusoidal", "learned", "rope", "pope", "alibi", "t5", "shaw", "floater", "tupe"])
def test_codes_on_a_gpu_come_back_in_float64(text):
    encoding = create(text, **SHAPE).eval()
    here = codes_of(encoding)(AT)
    there = codes_of(encoding.cuda())
    assert there(AT).device.type == "cpu"
    assert torch.allclose(there(AT), here, atol=1e-5)
    assert torch.equal(codes_of(lambda at: here.float().cuda()[at.cuda()])(AT), here.float().double())
