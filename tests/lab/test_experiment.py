"""A third experiment beside text and images: what it has to define, and that the lab and the report need nothing else."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from posenc.lab.compare import EXPERIMENTS, Comparison, compare
from posenc.lab.engines import InProcess
from posenc.lab.evaluate import score
from posenc.lab.experiment import Criterion, Experiment, Scores
from posenc.positions import Positions
from posenc.report.compare import page, show

LETTERS, SKIPPED = 8, -100


class Sequences(NamedTuple):
    """Random letters twice; the second time is scored."""

    letters: Tensor
    positions: Positions | None = None

    def rows(self, which):
        return Sequences(self.letters[which])

    def to(self, device):
        return Sequences(self.letters.to(device))

    @property
    def inputs(self):
        return torch.cat((self.letters, self.letters), 1)[:, :-1]

    @property
    def targets(self):
        return torch.cat((torch.full_like(self.letters[:, 1:], SKIPPED), self.letters), 1)

    @property
    def scored(self):
        return self.letters.numel()


class Seeds(NamedTuple):
    """The seeds of the random letters."""

    name: str = "random letters"
    digest: str = hashlib.sha256(b"letters").hexdigest()
    train: int = 1
    test: int = 2
    chance: float = 1 / LETTERS

    def facts(self):
        return {"name": self.name, "sha256": self.digest, "chance": self.chance}


@dataclass(frozen=True)
class Repeat(Experiment):
    """Letters are to be repeated, more of them in the test than in training."""

    length: int = 8
    factors: tuple[int, ...] = (1, 2)
    steps: int = 3
    batch_size: int = 4
    dim: int = 8
    num_layers: int = 1
    num_heads: int = 2
    head_dim: int | None = 4
    learning_rate: float = 0.03
    adamw_learning_rate: float = 0.01
    position_learning_rate: float = 0.03

    name = "repeat"
    criterion = Criterion("accuracy")
    MOST = Experiment.MOST | {"length": 1000}
    examples = 12
    unit = "letter"
    rows = LETTERS

    def tokens_at(self, condition):
        return 2 * self.size_at(condition)

    def make_encoding(self, name):
        return self.create(name, max_positions=2 * self.length, causal=True)

    def load(self, source, **options):
        return Seeds(), self

    def check_data(self, corpus):
        pass

    def draw(self, part, generator):
        return Sequences(torch.randint(LETTERS, (self.batch_size, self.length), generator=generator))

    def evaluate(self, model, variant, part, on_batch=lambda tokens: None):
        losses, hits = {}, {}
        for factor in self.factors:
            draws = torch.Generator().manual_seed(part)
            letters = torch.randint(LETTERS, (self.examples, self.length * factor), generator=draws)
            by_token = score(model, variant, factor, self, Sequences(letters).rows, on_batch)
            losses[factor], hits[factor] = (values[:, -self.length :].mean(1) for values in by_token)
        return Scores(losses, extra={"accuracy": hits})

    def chance(self, corpus, condition):
        return corpus.chance


@pytest.fixture
def repeat(monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "repeat", Repeat)
    return Repeat()


def test_another_experiment_is_compared_and_reported(repeat, tmp_path, capsys):
    corpus, settings = repeat.load("")
    comparison = Comparison(("rope", "alibi"), 2, settings)
    results = compare(
        comparison, corpus, tmp_path, engine=InProcess(), pages=lambda results: {"report.html": page(results)}
    )
    assert (results["task"], results["complete"]) == ("repeat", True)
    for variant in results["variants"]:
        assert [(point["factor"], point["length"]) for point in variant["lengths"]] == [(1, 8), (2, 16)]
        assert all(0 <= point["accuracy"]["mean"] <= 1 for point in variant["lengths"])
        assert variant["lengths"][0]["change"]["mean"] == 0
    best = results["variants"][0]
    assert best["lengths"][-1]["behind_best"]["mean"] == 0
    assert "Not measurably better than guessing (12.5 %): none, rope and alibi." in results["answer"]
    report = (tmp_path / "report.html").read_text()
    assert "accuracy at 8" in report
    assert "random letters" in report
    show(results, str(tmp_path))
    assert "change at 16" in capsys.readouterr().out
