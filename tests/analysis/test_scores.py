"""What position does to scores, against the papers' formulas and against attention itself."""

import math

import pytest
import torch

import posenc
from posenc.analysis import bias, rotation, scores
from posenc.analysis.scores import PositionScores
from posenc.errors import InputError
from posenc.testing.oracles.biases import alibi
from posenc.testing.oracles.rotations import frequencies as ladder

LENGTH = 40


def close_within_its_error(
    found: PositionScores, mean: torch.Tensor, spread: torch.Tensor, expected: torch.Tensor
) -> bool:
    """Whether a mean over random contents is what it should be: within five standard errors at every distance."""
    error = spread / found.samples**0.5
    return bool(((mean - expected).abs() <= 5 * error + 1e-12).all())


def test_alibi_adds_its_slopes_whatever_the_content():
    slopes = alibi(4)
    distances = torch.arange(LENGTH, dtype=torch.float64)
    expected = torch.stack([-slope * distances for slope in slopes])
    found = scores("alibi", LENGTH, samples=3)
    torch.testing.assert_close(found.same, expected, atol=1e-11, rtol=0)
    torch.testing.assert_close(found.unrelated, expected, atol=1e-11, rtol=0)
    assert found.same_spread.max() < 1e-12
    added = bias("alibi", LENGTH)
    assert added.distances.tolist() == list(range(1 - LENGTH, LENGTH))
    torch.testing.assert_close(added.heads, torch.cat((expected[:, 1:].flip(-1), expected), 1))
    assert not added.of_content
    assert not added.learned
    assert "gives the same" in added.sentences()[1]


def test_rope_turns_a_token_away_from_its_like_by_the_sum_of_cosines():
    found = scores("rope", LENGTH, samples=200)
    theta = ladder(64)
    distances = torch.arange(LENGTH, dtype=torch.float64)
    # a pair of unit variance has squared norm 2 on average: q.k is 2 sum cos(D theta), 64 without rotation
    expected = (2 * (distances[:, None] * theta).cos().sum(-1) - 64) / 8
    assert close_within_its_error(found, found.same[0], found.same_spread[0], expected)
    assert close_within_its_error(found, found.unrelated[0, 1:], found.unrelated_spread[0, 1:], torch.zeros(LENGTH - 1))
    assert found.same[0, 0] == 0


def test_added_codes_score_with_one_another():
    found = scores("sinusoidal", LENGTH, samples=200)
    codes = posenc.functional.sinusoidal(torch.arange(LENGTH), 64, dtype=torch.float64)
    expected = (codes @ codes[-1]).flip(0) / 8
    assert close_within_its_error(found, found.unrelated[0, 1:], found.unrelated_spread[0, 1:], expected[1:])
    assert found.content == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", ["rope+alibi", "rope@rerope:window=8", "deberta_v2:shared=true", "t5", "log_n"])
def test_the_scores_are_those_of_attention(name):
    """With values that are one-hot in the token, attention gives its own weights, whose logarithms are scores."""
    torch.manual_seed(0)
    encoding = posenc.encodings.create(
        name, dim=16, num_heads=2, head_dim=16, num_layers=1, max_positions=8, causal=True
    )
    found = scores(encoding, LENGTH, samples=2)
    encoding.share([(lambda x: x.repeat(1, 2),) * 2])  # the identity for both heads, as scores has it
    drawn = torch.Generator().manual_seed(found.seed)
    weights = []
    for _ in range(2):
        x = torch.randn(1, 16, generator=drawn, dtype=torch.float64)
        torch.randn(LENGTH, 16, generator=drawn, dtype=torch.float64)  # those of the other tokens
        q = x.expand(1, 2, LENGTH, 16)
        tokens = torch.eye(LENGTH, dtype=torch.float64).expand(1, 2, -1, -1)
        weights.append(posenc.attention(q, q, tokens, encoding, causal=True, backend="reference")[0, :, -1].flip(-1))
    # content is the same at every distance, and the softmax keeps differences alone
    each = torch.stack(weights).log().detach()
    expected = (each - each[..., :1]).mean(0)
    torch.testing.assert_close((found.same - found.same[:, :1]).expand(2, -1), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["wall", "path"])
def test_other_products_differ_from_q_k_by_the_tokens_in_between_alone(name):
    found = scores(name, LENGTH, samples=4)
    assert found.same[:, 0].abs().max() < 1e-9
    assert found.content == pytest.approx(1, abs=0.5)


def test_weights_without_a_softmax_change_no_score():
    assert scores("stick_breaking", LENGTH).sentences() == [f"Position changes no score within {LENGTH} tokens."]


def test_heads_that_turn_otherwise_are_named():
    assert rotation("head_rope").name == "head_rope, head 0"


def test_tokens_out_of_sight_have_no_score():
    found = scores("rope@streaming:sinks=2:recent=10", LENGTH, samples=2)
    assert found.same[0].isfinite().tolist() == [d < 10 or d >= LENGTH - 2 for d in range(LENGTH)]
    assert found.sentences()[-1] == "28 of 40 distances are hidden from all heads."
    assert None in found.to_dict()["same"][0]


def test_a_bias_of_content_and_direction_says_so():
    torch.manual_seed(0)
    shaw = posenc.Shaw(16, num_heads=2, clip=4)
    found = bias(shaw, 12)
    of_content, learned = found.sentences()[-2:]
    assert "one in every channel" in of_content
    assert "learned" in learned
    assert any("Direction counts" in sentence for sentence in found.sentences())
    for column, distance in enumerate(found.distances.tolist()):  # q . r, Shaw et al. 2018, equation 4
        row = max(-4, min(4, distance))
        expected = shaw.key_table[0, 0, 4 - row].sum().item() / 4
        assert found.heads[0, column].item() == pytest.approx(expected, abs=1e-6)


def test_the_wavelengths_of_a_rotation():
    found = rotation("rope:rope_theta=500", 100)
    expected = (2 * math.pi / ladder(64, 500.0)).tolist()
    torch.testing.assert_close(found.wavelengths, torch.tensor(expected, dtype=torch.float64))
    assert found.unfinished == sum(wave > 100 for wave in expected)
    assert found.sentences()[0].startswith(
        f"{found.unfinished} of 32 pairs do not complete a full rotation within 100 positions"
    )
    for turning in ("xpos", "rope@rerope:window=8", "rope+alibi/none"):
        torch.testing.assert_close(rotation(turning).inv_freq, rotation("rope").inv_freq)
    complete = "Every pair that rotates completes a full rotation within 512 positions of training."
    assert rotation("rope:rope_theta=10").sentences()[0] == complete
    assert rotation("p_rope:rope_theta=10").unfinished == 0  # those that stand still meet no angle at all
    still = rotation("p_rope")
    assert still.to_dict()["wavelengths"].count(None) == int((still.inv_freq == 0).sum()) == 8
    assert still.sentences()[-1] == "No rotation, and content alone, in 8 pairs."


def test_the_callers_encoding_stays_as_it_is():
    encoding = posenc.encodings.SHAPE(8) + posenc.Sinusoidal(16)
    encoding.parts[1].eval()
    scores(encoding, 8, samples=2)
    assert [encoding.training, *(part.training for part in encoding.parts)] == [True, True, False]
    deberta = posenc.encodings.create("deberta_v2:shared=true", num_heads=2, head_dim=8, dim=16)
    projections = [(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))]
    deberta.share(projections)
    for function in (scores, bias):
        function(deberta, 8)
        assert deberta.projections == projections


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bias("rope"), r"rope: it adds nothing to the scores"),
        (lambda: rotation("alibi"), r"alibi: it rotates no channels"),
        (lambda: rotation("selective_attention"), r"selective_attention: it rotates no channels"),
        (lambda: rotation("log_n"), r"log_n: it rotates no pair of channels"),
        (lambda: scores("rope", 1), r"length=1: must be at least 2"),
        (lambda: scores("rope", samples=1), r"samples=1: must be at least 2"),
        (lambda: scores("learned", 513), r"length=513: learned has 512 positions; give fewer"),
        (lambda: scores(torch.ones(3)), r"encoding: .* pass an Encoding"),
        (lambda: scores(posenc.Rotary(16), head_dim=32), r"head_dim=32: rope was made with head_dim=16; leave it out"),
        (lambda: scores("sinusoidal+rope", dim=32), r"is 32 wide at the input and 64 in a head"),
    ],
)
def test_what_cannot_be_asked_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
