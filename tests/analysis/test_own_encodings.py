# SPDX-License-Identifier: Apache-2.0
"""Encodings of users, as objects and as classes, that raise errors, hide keys or store fewer attributes."""

import math

import pytest
import torch
from torch import nn

import posenc
from posenc import cli
from posenc.analysis import codes_of, scores
from posenc.analysis.analyze import analyze
from posenc.bias import Dense, Relative
from posenc.errors import InputError
from posenc.functional import sinusoidal


class Stretched(posenc.Encoding):
    """Has the number of key heads as an attribute, not that of query heads."""

    def __init__(self, head_dim, num_kv_heads):
        super().__init__()
        self.head_dim, self.num_kv_heads = head_dim, num_kv_heads
        self.rate = nn.Parameter(torch.full((num_kv_heads, 1, 1), 0.01))

    def rotate(self, q, k, positions, layer=0):
        assert k.shape[1] == self.num_kv_heads
        return q * (1 + 0.01 * positions.q[:, None, :, None]), k * (1 + self.rate.to(k) * positions.k[:, None, :, None])


class Causal(posenc.Encoding):
    """A bias of the distance in causal texts alone, which it does not declare."""

    def bias(self, q, k, positions, layer=0):
        if not positions.causal:
            raise ValueError("causal texts alone")
        return Dense(-(positions.q[..., :, None] - positions.k[..., None, :])[:, None].double())


class Declared(Causal):
    causal_only = True


class Forgetting(Causal):
    """A forget gate: its bias depends on all tokens between two."""

    def __init__(self, head_dim, num_kv_heads):
        super().__init__()
        self.head_dim, self.num_kv_heads = head_dim, num_kv_heads

    def bias(self, q, k, positions, layer=0):
        if not positions.causal:
            raise InputError("pass causal positions (causal=True)")
        assert k.shape[1] == self.num_kv_heads
        decay = nn.functional.logsigmoid(k.mean(-1)).cumsum(-1).repeat_interleave(q.shape[1] // k.shape[1], 1)
        return Dense(decay[..., k.shape[2] - q.shape[2] :, None] - decay[..., None, :])


class Windows(posenc.Encoding):
    """A window per head, of 4, 8, .. tokens to both sides."""

    def __init__(self, num_heads=2):
        super().__init__()
        self.num_heads = num_heads

    def bias(self, q, k, positions, layer=0):
        return Relative(lambda h, d: torch.where(d.abs() < 4 * (h + 1), -0.5 * d.abs(), -math.inf), 2, positions)


class Wrapped(posenc.Encoding):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def embed(self, x, positions, layer=0):
        return self.inner.embed(x, positions, layer)


class Nameless(posenc.Encoding):
    """Adds codes as wide as the input; has no attribute for the width."""

    def embed(self, x, positions, layer=0):
        return x + sinusoidal(positions.q, x.shape[-1])


class OneLayer(posenc.Encoding):
    """Parameters per layer, read by the layer's number."""

    def __init__(self, head_dim, num_layers):
        super().__init__()
        self.head_dim, self.num_layers = head_dim, num_layers
        self.steps = nn.Parameter(torch.arange(1.0, num_layers + 1))

    def rotate(self, q, k, positions, layer=0):
        return q + self.steps[layer].to(q) * positions.q[:, None, :, None], k


def answered(subject, **options):
    found = analyze(subject, **{"length": 12} | options)
    return found, {section.name for section in found.sections}, found.left_out


def test_heads_follow_the_key_heads_or_the_caller():
    found, names, _ = answered(Stretched(16, 2))
    assert {"kernel", "scores"} <= names
    assert found["scores"].finding.same.shape[0] == 2
    assert answered(Stretched(16, 2), num_heads=6)[0]["scores"].finding.same.shape[0] == 6
    assert codes_of(Stretched(16, 2), num_heads=4)(torch.arange(5)).shape == (5, 16)
    assert answered(Stretched)[0]["scores"].finding.same.shape[0] == 4, "a class is made for as many as the model has"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_heads": 3}, r"num_heads=3: must be a multiple of the num_kv_heads=2 of Stretched"),
        ({"head_dim": 8}, r"head_dim=8: Stretched was made with head_dim=16; leave it out"),
    ],
)
def test_sizes_that_contradict_an_object_are_refused(sizes, message):
    with pytest.raises(InputError, match=message):
        analyze(Stretched(16, 2), length=8, **sizes)


@pytest.mark.parametrize("make", [Causal, Declared])
def test_a_bias_of_causal_texts_alone_is_read_in_one(make):
    found, names, _ = answered(make())
    assert {"properties", "bias", "scores"} <= names
    far = torch.arange(12, dtype=torch.float64)
    assert torch.equal(codes_of(make())(far.long())[:, 0], -far)
    assert found["bias"].finding.distances.tolist() == far.tolist()
    assert torch.equal(found["bias"].finding.heads[0], -far)


def test_a_bias_that_depends_on_content_has_all_sections_but_codes():
    found, names, reasons = answered(Forgetting(8, 2), num_heads=4)
    assert {"bias", "scores"} <= names
    assert "depends on the content of the text" in reasons["properties"]
    log_gate = torch.nn.functional.logsigmoid(torch.tensor(1.0, dtype=torch.float64))
    assert torch.allclose(found["bias"].finding.heads, log_gate * torch.arange(12).expand(4, -1), atol=1e-12)


def test_sections_count_the_hidden_keys():
    found, names, _ = answered(Windows())
    assert {"properties", "bias", "scores"} <= names
    heads = found["bias"].finding
    ahead = heads.heads[:, heads.distances >= 0]
    assert ahead.isnan().sum(1).tolist() == [8, 4]
    assert "From distance 0 to 3, what is added to the scores changes by -1.5 in head 0" in heads.sentences()[0]
    assert "Of 12 distances back, 8 are hidden, 4 of them in all heads." in heads.sentences()
    assert "gives the same" in heads.sentences()[-1]
    assert "From distance 4 on there is no code: keys are hidden." in found["properties"].finding.sentences()[2]
    assert "4 of 12 distances are hidden from all heads." in found["scores"].finding.sentences()
    with pytest.raises(InputError, match=r"hides keys at distance 4; ask for fewer"):
        codes_of(Windows())(torch.arange(5))


def test_a_map_that_hides_far_keys_is_analysed_past_them():
    found, names, _ = answered("rope@streaming:sinks=0:recent=4", length=16)
    assert {"properties", "scores"} <= names
    assert found.settings["length"] == 16
    assert "12 of 16 distances are hidden from all heads." in found["scores"].finding.sentences()


def test_a_width_comes_from_the_parts_or_the_caller():
    wrapped = answered(Wrapped(posenc.Sinusoidal(6)))[0]
    assert wrapped["kernel"].finding.dim == 6
    with pytest.raises(InputError, match=r"Nameless: the width of the input is not known; set self.dim, or pass dim="):
        codes_of(Nameless())(torch.arange(3))
    assert answered(Nameless(), dim=10)[0]["kernel"].finding.dim == 10
    assert scores(Nameless(), 8, dim=10).same.shape == (1, 8)


def test_layers_that_differ_are_named_and_failures_of_the_users_code_reported():
    found, names, _ = answered(OneLayer)
    assert "layer 0, which has separate parameters, is analysed alone" in found.note
    assert {"kernel"} <= names
    assert "kernel" in answered(OneLayer(16, 1))[1]


def test_layers_that_take_turns_are_read_in_the_first(capsys):
    found, names, _ = answered("none/rope")
    assert "layer 0, which has none," in found.note
    assert not {"base", "rotation"} & names
    assert {"base", "rotation"} <= answered("rope/none")[1]
    assert answered("rope")[0].note == ""
    assert cli.main(["analyze", "alibi/none", "--length", "8"]) == 0
    assert "layer 0, which has alibi," in " ".join(capsys.readouterr().out.split())


def test_a_command_reads_the_objects_of_a_file(tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "import posenc\n"
        "class Own(posenc.Encoding):\n"
        "    def __init__(self, num_kv_heads):\n"
        "        super().__init__()\n"
        "        self.num_kv_heads = num_kv_heads\n"
        "    def rotate(self, q, k, positions, layer=0):\n"
        "        return q * (1 + positions.q[:, None, :, None]), k\n"
        "own = Own(2)\n"
    )
    command = ["analyze", f"{tmp_path}/own.py:own", "--length", "8"]
    assert cli.main([*command, "--heads", "4"]) == 0
    assert "How does position change a score?" in capsys.readouterr().out
    assert cli.main([*command, "--heads", "5"]) == 2
    assert "--heads 5: must be a multiple of the num_kv_heads=2" in capsys.readouterr().err
