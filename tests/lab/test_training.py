"""Training is the same for all and repeatable; evaluation scores the same targets at every length."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from posenc import ENCODINGS, InputError, Rotary
from posenc.lab.compare import Comparison
from posenc.lab.experiment import Run
from posenc.lab.measure import measure, work
from posenc.lab.muon import Muon, orthogonalised
from posenc.lab.text import PRESETS, Settings
from posenc.lab.train import WARM_UP, Training, activation_bytes, build, schedule, train


def test_run_ids_are_of_the_content(tiny):
    run = Run("rope", 0, tiny, "digest")
    others = [Run("alibi", 0, tiny, "digest"), Run("rope", 1, tiny, "digest"), Run("rope", 0, tiny, "other")]
    others.append(Run("rope", 0, replace(tiny, steps=4), "digest"))
    assert len({run.id, *(r.id for r in others)}) == 5
    assert Run("rope", 0, replace(tiny), "digest").id == run.id


def test_equal_runs_give_equal_numbers_and_learn(corpus, tiny):
    run = Run("rope", 0, replace(tiny, steps=40, dim=16), corpus.digest)
    (one, losses), (two, again) = (train(run, corpus.train) for _ in range(2))
    assert losses == again
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


def test_every_encoding_sees_the_same_batches(corpus, tiny, monkeypatch):
    seen = []
    original = F.cross_entropy

    def spy(logits, targets, **how):
        seen.append(targets.clone())
        return original(logits, targets, **how)

    monkeypatch.setattr(F, "cross_entropy", spy)
    names = ("none", "learned", "rope", "t5", "alibi", "shape+sinusoidal")  # the last draws numbers of its own
    for name in names:
        train(Run(name, 7, tiny, ""), corpus.train)
    batches = torch.stack(seen).view(len(names), tiny.steps, -1)
    assert (batches == batches[0]).all()
    assert not torch.equal(batches[0, 0], batches[0, 1])


@pytest.mark.parametrize("name", [*ENCODINGS, "randomized+learned", "cape+rope", "rope+softmax_n", "alibi+sink/none"])
def test_every_encoding_trains_and_is_tested_past_its_length(name, corpus, tiny):
    cell = measure(Run(name, 0, tiny, ""), corpus)
    assert (cell.variants[0].name, len(cell.losses)) == (name, tiny.steps)
    assert all(len(losses) == tiny.windows for losses in cell.variants[0].paired.values())
    training = Training(Run(name, 0, replace(tiny, num_layers=2), ""), corpus.train)
    start = {each: p.detach().clone() for each, p in training.model.encoding.named_parameters()}
    for _ in range(3):  # FLOATER's first map is before one that starts at 0: it learns from the second step on
        training.advance()
    for each, p in training.model.encoding.named_parameters():  # in every layer
        assert (p != start[each]).reshape(2 if len(p) == 2 else 1, -1).any(-1).all(), each


def test_an_encodings_projections_learn_at_the_rate_of_the_model(corpus, tiny):
    settings = replace(tiny, adamw_learning_rate=0.125, position_learning_rate=0.5, num_layers=2)
    slow_and_fast = {
        "mamba3_rope": (3, 0), "selective_rope": (2, 1), "fox+t5": (2, 1), "projected_relative": (1, 1), "none/fox": (2, 0),
        "t5": (0, 1), "transformer_xl": (1, 2), "deberta": (3, 1), "tupe_r": (4, 4),
    }  # fmt: skip
    for name, expected in slow_and_fast.items():
        training = Training(Run(name, 0, settings, ""), corpus.train)
        rates = {id(p): g["lr"] for o in training.optimizers for g in o.param_groups for p in g["params"]}
        of_encoding = [rates[id(p)] for p in training.model.encoding.parameters()]
        assert (of_encoding.count(0.125), of_encoding.count(0.5)) == expected, name


def test_evaluation_is_paired(corpus, tiny):
    settings = replace(tiny, factors=(1, 2, 4))
    run = Run("alibi", 0, settings, "")
    model, _ = train(run, corpus.train)
    (variant,) = settings.variants("alibi", model.encoding)
    read = []
    scores = settings.evaluate(model, variant, corpus.test, read.append)
    assert sum(read) == 4 * (16 * 7 + 4 * 8 + 16 * 4)  # eight passes of 4 tokens of context, four of 16
    assert {f: tuple(v.shape) for f, v in scores.paired.items()} == {1: (4,), 2: (4,), 4: (4,)}
    ends = torch.linspace(64, len(corpus.test) - 1, 4).long()
    for factor in (1, 2, 4):
        length = 16 * factor
        for window, end in enumerate(ends.tolist()):
            text = corpus.test.tokens[end - length : end + 1].long()
            losses = F.cross_entropy(model(text[None, :-1])[0], text[1:], reduction="none")
            assert scores.paired[factor][window].item() == pytest.approx(losses[-8:].mean().item(), abs=1e-5)


def test_untrained_variants_share_the_weights_and_equal_the_model_at_the_training_length(corpus, tiny):
    model, _ = train(Run("rope", 0, tiny, ""), corpus.train)
    trained = model.encoding
    actual = tiny.variants("rope", trained)
    assert [(a.name, a.trained) for a in actual] == [("rope", True), ("rope + NTK", False), ("rope + PI", False)]
    scores = [tiny.evaluate(model, a, corpus.test) for a in actual]
    assert model.encoding is trained
    for other in scores[1:]:
        assert torch.allclose(other.paired[1], scores[0].paired[1])
        assert not torch.allclose(other.paired[2], scores[0].paired[2])
    assert actual[2].at(4).schedule == {"name": "linear", "factor": 4}
    assert [a.name for a in tiny.variants("alibi", ENCODINGS["alibi"](2))] == ["alibi"]
    assert len(replace(tiny, factors=(1,)).variants("rope", trained)) == len(tiny.variants("rope", Rotary(2))) == 1


def test_learned_tables_hold_their_last_row(tiny):
    encoding = Run("learned", 0, tiny, "").make_encoding()
    assert (encoding.max_positions, encoding.beyond) == (tiny.length, "clamp")
    first, _ = Run("learned:init_std=0.1+rope", 0, tiny, "").make_encoding()
    assert (first.init_std, first.beyond) == (0.1, "clamp")
    assert Run("learned:beyond=error", 0, tiny, "").make_encoding().beyond == "error"
    assert isinstance(Run("rope:rope_theta=99", 0, tiny, "").make_encoding(), Rotary)


def test_memory_counts_what_backward_needs(corpus, tiny):
    settings = [replace(tiny, batch_size=b) for b in (2, 4)]
    sizes = [activation_bytes(build(Run("rope", 0, each, "")), corpus.test, each) for each in settings]
    assert 1.8 < sizes[1] / sizes[0] < 2.2
    assert sizes[0] > 2 * tiny.length * 256 * 4  # the logits


def test_a_finished_model_is_freed(corpus, tiny):
    model = build(Run("rope", 0, tiny, ""))
    activation_bytes(model, corpus.test, tiny)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_work_is_in_tested_tokens(tiny):
    tested = 4 * (16 * 3 + 4 * 8 + 16 * 4)
    works = [work(Run(name, 0, tiny, "")) for name in ("alibi", "rope")]
    assert works == [3 * 3 * 2 * 16 + variants * tested for variants in (1, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 4}, "length=4"),
        ({"steps": 0}, "steps=0"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"factors": (2, 4)}, r"factors=\(2, 4\): start at 1"),
        ({"factors": (1, 4, 2)}, r"factors=\(1, 4, 2\)"),
        ({"targets": 500}, "targets=500"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"position_learning_rate": float("inf")}, "position_learning_rate=inf"),
        ({"dim": 10, "num_heads": 4, "head_dim": None}, "dim=10: must be a multiple"),
    ],
)
def test_settings_refuse(change, message):
    with pytest.raises(InputError, match=message):
        Settings(**change)


def test_presets_name_known_encodings():
    for preset in PRESETS.values():
        for name in preset.encodings:
            build(Run(name, 0, preset.settings, ""))


def test_muon_orthogonalises_alike_on_every_processor():
    """In float32, whatever the processor multiplies fast: torch's own is in bfloat16, two digits."""
    a, b, c = 3.4445, -4.7750, 2.0315
    for shape in ((24, 16), (16, 24), (16, 16)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        x = matrix.double() / matrix.double().norm()
        for _ in range(5):
            x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
        actual = orthogonalised(matrix)
        assert (actual.shape, actual.dtype) == (shape, torch.float32)
        assert torch.allclose(actual.double(), x, atol=2e-5)


def test_muon_takes_the_steps_of_torch():
    matrices = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((24, 16), (16, 24))]
    ours, theirs = ([m.clone().requires_grad_() for m in matrices] for _ in range(2))
    optimizers = [kind(m, lr=0.05, weight_decay=0.1) for kind, m in ((Muon, ours), (torch.optim.Muon, theirs))]
    for _ in range(3):
        for optimizer, parameters in zip(optimizers, (ours, theirs), strict=True):
            for parameter in parameters:
                parameter.grad = parameter.detach().sin()
            optimizer.step()
    assert not torch.equal(ours[0], matrices[0])
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=0.01)  # torch's are rounded to bfloat16


def test_a_training_leaves_the_callers_random_numbers_alone(corpus, tiny):
    """And does not depend on them: what encodings draw goes on from the seed."""
    run, before = Run("randomized:testing=random+learned:max_positions=2048", 0, tiny, corpus.digest), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        before.append((measure(run, corpus), build(run)))
        Comparison((run.encoding,), 1, tiny).check(corpus)
        assert torch.equal(torch.get_rng_state(), state)
    assert before[0][0].losses == before[1][0].losses
    assert before[0][0].variants[0].paired == before[1][0].variants[0].paired


def test_the_learning_rate_rises_to_its_peak_and_falls_to_a_twentieth():
    rates = [schedule(step, 100) for step in range(100)]
    assert rates.index(max(rates)) == 100 * WARM_UP - 1
    assert (rates[0], max(rates), rates[-1]) == pytest.approx((0.2, 1.0, WARM_UP), abs=5e-3)
