"""The checks of posenc.conformance on every encoding of the registry, and on variants."""

import pytest

import posenc
from posenc.backends import fused
from posenc.bias import carried
from posenc.conformance.checks import CHECKS, SLOW
from posenc.conformance.fixtures import EncodingUnderTest, named
from posenc.conformance.suite import run_check

VARIANTS = ["sinusoidal:merge=concat", "sinusoidal:merge=multiply:layout=concat", "learned:merge=multiply",
            "normalized:length=40", "rope:layout=interleaved:rotary_dim=2", "rope+alibi", "sinusoidal+t5", "rope/none",
            "shape+sinusoidal", "cape+rope", "cape:centre=true+sinusoidal", "randomized+t5", "randomized:continuous=true+alibi", "pose:max_length=40+rope", "randomized:testing=plain+alibi",
            "rope+softmax_n", "alibi+sink", "alibi:bias_max=16", "rope+log_n:train_length=3:clip=false+sink",
            "kerple:kind=power", "cope:num_counts=3:scaled=false", "rope+cope", "swin:width=3:beyond=clamp",
            "swin_v2:cosine=false:width=3",
            "shaw:clip=2:clip_future=0:per_head=true", "shaw:clip=2:fixed=true", "shaw:terms=values+rope",
            "transformer_xl:clamp_len=3:layout=interleaved", "xlnet:layout=interleaved",
            "tupe_r:untie_cls=false:beyond=clamp", "deberta:max_relative_positions=3:terms=c2p|p2c|p2p",
            "deberta_v2:max_relative_positions=8:position_buckets=4:terms=p2c:paper_index=true",
            "deberta_v2:shared=false:norm=false", "deberta_v2/none",
            "p_rope:fraction=0.5:layout=interleaved", "decoupled_rope:layout=half", "xpos:layout=half:scale_base=8",
            "axial_rope:layout=half:x_first=false:ladder=dealt", "axial_rope:axes=1:start=1", "axial_rope:centred=true",
            "axial_rope:sections=0,1,1:layout=half:rope_theta=10,20,30", "axial_rope:sections=2,0:schedules=linear\\:factor=2|default",
            "m_rope:interleaved=true", "mixed_rope:axes=1:layout=half", "rope/rope:rope_theta=1e6",
            "sinusoidal:merge=product", "hierarchical:alpha=0.7", "multiplicative:plain=true", "axial_table:columns=5",
            "grid_table:width=5", "grid_sinusoidal:axes=3:layout=interleaved:x_first=true", "floater/alibi",
            "rope@rerope:window=3", "rope@leaky_rerope:window=3:factor=2.5+softmax_n+log_n:train_length=3",
            "rope@self_extend:window=3:group=2+alibi", "rope@dual_chunk:chunk=4:local=1", "xpos@string:shift=4:window=2",
            "pope@lampe:window=3:used=5:length=16", "rope@jet_long:window=2:trained=4:groups=4", "rope@streaming:sinks=2:recent=3+log_n:train_length=3",
            "rope@lm_infinite:sinks=1:window=4/none", "rope+window:before=2:after=1/rope", "rope+chunks:size=3/none", "rope+prefix_kv:length=2",
            "learned_rope:groups=2:layout=interleaved", "fope:trainable=true:layout=interleaved", "rope_pp:rotary_dim=2",
            "liere:axes=2:block=4", "comrope:variant=ap:axes=2:block=2", "cayley_string:axes=2", "rope_pp+alibi",
            "fox+rope", "fox/alibi", "selective_rope:gate=true:trainable=true:kernel_size=2", "mamba3_rope:fraction=1:layout=half+fox",
            "carope+rope@rerope:window=3", "carope/none", "path:conv_size=0:rank=none+rope", "rope/wall+alibi", "stick_breaking:attend_current=true+rope", "projected_relative:extent=3:profiles=2", "rope+grape_a:unit=false", "rope+dape:kind=fire", "dape:kind=alibi", "rope+selective_attention:rope_theta=10000", "rope+rove:rotary_dim=0.5:trailing=true:layout=interleaved+prefix_kv", "rope+rove/alibi", "head_rope:layout=interleaved:schedules=ntk\\:factor=2|default"]  # fmt: skip


SEQUENCES = "calls_are_independent"
"""What conformance/test_sequences.py has of it is fast."""
OF_VARIANTS = [check for check in CHECKS if check not in (*SLOW, SEQUENCES, "backends_agree")]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """The CPU operator takes several tiles even for the few tokens of a check, and skips those that a window hides."""
    for name, size in (("ROWS", 4), ("MANY", 6), ("COLUMNS", 4)):
        monkeypatch.setattr(fused, name, size)
    monkeypatch.setattr(carried, "SIZE", 4)


def conforms(name, checks):
    """Run checks on an encoding, and report all that fail."""
    tested = EncodingUnderTest(named(name))
    outcomes = [run_check(check, tested) for check in checks]
    assert not [str(outcome) for outcome in outcomes if outcome.passed is False]
    left_out = {outcome.check for outcome in outcomes if outcome.passed is None}
    left_out -= {"packed_images_are_separate", "slices_of_heads_equal_all_heads"}  # of which those are that mix heads
    if tested.encoding.causal_only:
        left_out -= {"prefixes_are_bidirectional"}
    assert tested.encoding.needs_length or not left_out, "only what depends on the final length may leave checks out"


@pytest.mark.parametrize("name", posenc.ENCODINGS)
def test_every_encoding_conforms(name):
    conforms(name, [check for check in CHECKS if check not in (*SLOW, SEQUENCES)])


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in (1, 2))])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_conforms(name, turn):
    """To a third of the checks in turn, so that every variant and every check has its share."""
    conforms(name, OF_VARIANTS[(VARIANTS.index(name) + turn) % 3 :: 3])


@pytest.mark.parametrize("check", [*SLOW, SEQUENCES])
@pytest.mark.parametrize("name", [*posenc.ENCODINGS, *VARIANTS])
def test_what_takes_long_conforms(name, check):
    conforms(name, [check])


@pytest.mark.parametrize("name", VARIANTS)
def test_every_backend_of_variants_conforms(name):
    conforms(name, ["backends_agree"])


def test_what_has_places_in_an_image():
    served = {
        name
        for name in posenc.ENCODINGS
        if run_check("packed_images_are_separate", EncodingUnderTest(named(name))).passed
    }
    # no position, or what is read off the order of the tokens alone
    without_place = {
        "none", "cope", "wall", "path", "stick_breaking", "shape", "cape", "pose", "softmax_n", "sink", "log_n",
        "temperature", "window", "chunks", "prefix_kv", "fox", "selective_rope", "mamba3_rope", "carope",
        "selective_attention", "repo",
    }  # fmt: skip
    assert served - without_place == {
        "axial_table", "grid_table", "grid_sinusoidal", "axial_rope", "m_rope", "mixed_rope", "swin", "beit", "swin_v2",
        "grid_alibi",
    }  # fmt: skip
