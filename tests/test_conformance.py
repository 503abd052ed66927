"""What must hold for every encoding: the checks of posenc.conformance on everything in the registry, and on variants."""

import pytest

import posenc
from posenc.conformance.checks import CHECKS, SLOW, Inapplicable, Subject
from posenc.conformance.matrix import named
from posenc.conformance.suite import run

VARIANTS = ["sinusoidal:merge=concat", "sinusoidal:merge=multiply:layout=concat", "learned:merge=multiply",
            "normalized:length=40", "rope:layout=interleaved:rotary_dim=2", "rope+alibi", "sinusoidal+t5", "rope/none",
            "shape+sinusoidal", "cape+rope", "cape:centre=true+sinusoidal", "randomized+t5", "randomized:testing=plain+alibi",
            "rope+softmax_n", "alibi+sink", "rope+log_n:train_length=3:clip=false+sink",
            "kerple:kind=power", "cope:num_counts=3:scaled=false", "rope+cope", "swin:width=3:beyond=clamp",
            "swin_v2:cosine=false:width=3",
            "shaw:clip=2:clip_future=0:per_head=true", "shaw:clip=2:fixed=true", "shaw:terms=values+rope",
            "transformer_xl:clamp_len=3:layout=interleaved", "xlnet:layout=interleaved",
            "tupe_r:untie_cls=false:beyond=clamp", "deberta:max_relative_positions=3:terms=c2p|p2c|p2p",
            "deberta_v2:max_relative_positions=8:position_buckets=4:terms=p2c:paper_index=true",
            "deberta_v2:shared=false:norm=false", "deberta_v2/none",
            "p_rope:fraction=0.5:layout=interleaved", "decoupled_rope:layout=half", "xpos:layout=half:scale_base=8",
            "axial_rope:layout=half:x_first=false:dealt=true", "axial_rope:axes=1:start=1", "axial_rope:centred=true",
            "m_rope:interleaved=true", "mixed_rope:axes=1:layout=half", "rope/rope:rope_theta=1e6",
            "sinusoidal:merge=product", "hierarchical:alpha=0.7", "multiplicative:plain=true", "axial_table:columns=5",
            "grid_table:width=5", "grid_sinusoidal:axes=3:layout=interleaved:x_first=true", "floater/alibi",
            "rope@rerope:window=3", "rope@leaky_rerope:window=3:factor=2.5+softmax_n+log_n:train_length=3",
            "rope@self_extend:window=3:group=2+alibi", "rope@dual_chunk:chunk=4:local=1", "xpos@string:shift=4:window=2",
            "pope@lampe:window=3:used=5:length=16", "rope@streaming:sinks=2:recent=3+log_n:train_length=3",
            "rope@lm_infinite:sinks=1:window=4/none"]  # fmt: skip


def is_slow(name, check):
    return check in SLOW or (check in ("backends_agree", "calls_do_not_remember") and name in VARIANTS)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=[pytest.mark.slow] * is_slow(name, check))
        for name in (*posenc.ENCODINGS, *VARIANTS)
        for check in CHECKS
    ],
)
def test_conforms(name, check):
    subject = Subject(named(name))
    try:
        CHECKS[check](subject)
    except Inapplicable:
        only = "only what depends on the final length may leave a check out, and what is for a line that of images"
        assert subject.traits.needs_length or check == "images_are_separate", only


def test_what_has_places_in_an_image():
    found = {name for name in posenc.ENCODINGS if run("images_are_separate", Subject(named(name))).holds}
    without_place = {"none", "cope", "shape", "cape", "softmax_n", "sink", "log_n", "temperature"}
    assert found - without_place == {
        "axial_table", "grid_table", "grid_sinusoidal", "axial_rope", "m_rope", "mixed_rope", "swin", "beit", "swin_v2",
        "grid_alibi",
    }  # fmt: skip
