# SPDX-License-Identifier: Apache-2.0
"""What is asked of a subject, in the order of the report: a question is a line of this table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from posenc.analysis import plots
from posenc.analysis.bounds import Model, base_bound
from posenc.analysis.decay import kernel
from posenc.analysis.expansion import expansion
from posenc.analysis.finding import Finding
from posenc.analysis.plots.frame import Plot
from posenc.analysis.precision import phase_error
from posenc.analysis.properties import properties
from posenc.analysis.radix import digits
from posenc.analysis.scores import bias, rotation, scores
from posenc.analysis.shift import shift_matrix
from posenc.analysis.spectrum import spectrum
from posenc.analysis.subject import Subject
from posenc.analysis.subspaces import add_or_concat, subspaces
from posenc.analysis.survival import survival
from posenc.analysis.symmetry import equivariance
from posenc.analysis.terms import four_terms
from posenc.analysis.twins import twins
from posenc.encodings import FLOATER
from posenc.errors import InputError
from posenc.transformer import Transformer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTOR = 4
"""How much longer the texts are for which schedules stretch RoPE."""
LONGEST_SEARCH = 100_000
"""Codes among which two equal ones are looked for, unless they or the text ask for fewer."""
SCHEDULES = ("default", "linear", "ntk", "yarn")


@dataclass(frozen=True, eq=False)
class Several(Finding):
    """The same question asked several times. keep: how many sentences of each answer are said; those common to all
    once."""

    findings: tuple[Any, ...]
    keep: int = 1

    def sentences(self) -> list[str]:
        said = [sentence for finding in self.findings for sentence in finding.sentences()[: self.keep]]
        return list(dict.fromkeys(said))

    def to_dict(self) -> dict[str, Any]:
        return {"findings": [finding.to_dict() for finding in self.findings], "sentences": self.sentences()}


@dataclass(frozen=True, eq=False)
class Picture:
    """A plot of what was found: `draw()` makes the figure, `see` says what to look at."""

    plot: Plot
    of: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def see(self) -> str:
        return self.plot.see

    def draw(self) -> "Figure":
        return self.plot(*self.of, **self.options)


@dataclass(frozen=True)
class Question:
    """A section of the report before it is answered.

    find: raises InputError, with the reason, for a subject that it does not apply to. show: pictures of a subject and of
    what was found. answer: what of it belongs to the answer at the top of the report, "" for nothing.
    """

    name: str
    title: str
    find: Callable[[Subject], Finding]
    show: Callable[[Subject, Any], Sequence[Picture]] = lambda s, f: ()
    answer: Callable[[Any], str] = lambda f: ""


def first(finding: Finding) -> str:
    """The most important sentence."""
    return finding.sentences()[0]


def verdicts(finding: Finding) -> str:
    """The verdict of each of the four properties."""
    return " ".join(sentence.split(". ")[0] + "." for sentence in finding.sentences())


def _named(s: Subject) -> dict[str, Any]:
    """The subject's name and the sizes that its encoding does not keep, for functions of an encoding."""
    return {"name": s.name, **s.given}


def _trained(s: Subject) -> int:
    """The trained length, as far as keys are seen."""
    return min(s.trained, s.codes.limit) if s.codes.ends and s.codes.limit else s.trained


def _search(s: Subject) -> int:
    """How many codes are searched for equal ones: fewer where each takes integrating a flow up to it."""
    flows = isinstance(s.thing, nn.Module) and any(isinstance(part, FLOATER) for part in s.thing.modules())
    return min(LONGEST_SEARCH, (16 if flows else 256) * s.length)


def _phase_errors(s: Subject) -> Several:
    try:
        found = [phase_error(s.encoding, max(8192, s.length), dtype) for dtype in s.dtypes]
    except InputError as error:
        raise InputError("it turns nothing by fixed frequencies, so there are no phases") from error
    return Several(tuple(found))


def _adding(s: Subject) -> nn.Module:
    """A trained model whose input has codes added."""
    if "embed" not in s.encoding.sites():
        raise InputError("it adds no code to the input, where content and position could be told apart")
    return s.model


def _pairs(s: Subject) -> tuple[int, float]:
    """Channels that rotate, and the base of their frequencies."""
    turning = s.rotary
    return turning.rotary_dim or turning.head_dim, turning.rope_theta


def _probed(s: Subject) -> int:
    """Texts that a probe is fitted to and tested on: with few its shares are uncertain, and large models read slowly."""
    return 192 if isinstance(s.model, Transformer) else 32


def _schedules(s: Subject) -> tuple[Any, ...]:
    """The subject's own schedule, and the usual ones."""
    own = dict(s.rotary.schedule)
    return SCHEDULES if own == {"name": "default"} else (own, *SCHEDULES)


QUESTIONS: tuple[Question, ...] = (
    Question(
        "properties",
        "Is every position told apart, evenly and for good?",
        lambda s: properties(s.codes, s.length, trained=_trained(s), search=_search(s)),
        lambda s, f: (
            Picture(plots.heat_map, (s.codes,)),
            Picture(plots.step_sizes, (f.steps,)),
            Picture(plots.norms, (s.codes,), {"trained": _trained(s)}),
        ),
        verdicts,
    ),
    Question(
        "kernel",
        "How alike are two positions, by their distance?",
        lambda s: kernel(s.by_position, s.length),
        lambda s, f: (Picture(plots.kernel, (f,)), Picture(plots.dot_products, (s.codes,))),
        first,
    ),
    Question(
        "shift",
        "Is moving on the same step from everywhere?",
        lambda s: shift_matrix(s.by_position, length=s.length),
        lambda s, f: (Picture(plots.shift_matrix, (f,)), Picture(plots.shift_error, (f,))),
        first,
    ),
    Question(
        "spectrum",
        "How many dimensions do the codes use?",
        lambda s: spectrum(s.by_position, s.length),
        lambda s, f: (Picture(plots.singular_values, (f,)), Picture(plots.wavelengths, (f,))),
    ),
    Question(
        "rotation",
        "How fast does each pair of channels turn?",
        lambda s: rotation(s.encoding, s.trained, **_named(s)),
        lambda s, f: (Picture(plots.pair_wavelengths, (f,)),),
        first,
    ),
    Question(
        "base",
        "How long a context does the base serve?",
        lambda s: base_bound(
            (s.trained, FACTOR * s.trained),
            _pairs(s)[0],
            models=(Model(s.name, *_pairs(s), s.trained),),
        ),
        lambda s, f: (Picture(plots.base_bound, (f,)),),
        lambda f: f.sentences()[-1],
    ),
    Question(
        "digits",
        f"What do texts {FACTOR} times longer do to each pair, and what do schedules?",
        lambda s: Several(
            tuple(digits([s.trained - 1], *_pairs(s), name, factor=FACTOR, length=s.trained) for name in _schedules(s)),
            keep=4,
        ),
        lambda s, f: (Picture(plots.digits, f.findings), Picture(plots.squeeze, f.findings)),
    ),
    Question(
        "precision",
        "What does half precision leave of the phases?",
        _phase_errors,
        lambda s, f: tuple(Picture(plots.phase_error, (one,)) for one in f.findings),
        first,
    ),
    Question(
        "bias",
        "What is added to the scores?",
        lambda s: bias(s.encoding, s.length, **_named(s)),
        lambda s, f: (Picture(plots.bias_by_distance, (f,)),),
        first,
    ),
    Question(
        "scores",
        "What does position do to a score?",
        lambda s: scores(s.encoding, s.length, seed=s.seed, **_named(s)),
        lambda s, f: (
            Picture(plots.effective_scores, (f,)),
            *([Picture(plots.scores_by_head, (f,))] if len(f.same) > 1 else []),
        ),
        first,
    ),
    Question(
        "symmetry",
        "Does a model with it see order at all?",
        lambda s: equivariance(s.host, seed=s.seed, name=s.name),
    ),
    Question(
        "twins",
        "Can you open a can?",
        lambda s: twins("So can you open a can?", model=s.host, tokenizer=s.words, seed=s.seed),
        lambda s, f: (Picture(plots.twins_apart, (f,)),),
    ),
    Question(
        "terms",
        "Content or position: what do the heads of a trained model score by?",
        lambda s: four_terms(_adding(s), s.texts(4)),
        lambda s, f: (
            Picture(plots.term_shares, (f,)),
            Picture(plots.position_map, (f,)),
            Picture(plots.position_by_distance, (f,)),
            Picture(plots.pruning_cost, (f,)),
        ),
        lambda f: f.sentences()[1],
    ),
    Question(
        "subspaces",
        "Do tokens and positions keep out of each other's way?",
        lambda s: subspaces(_adding(s), seed=s.seed, name=s.name),
        lambda s, f: (Picture(plots.cosine_histogram, (f,)), Picture(plots.principal_angles, (f,))),
    ),
    Question(
        "sum",
        "What does adding codes cost, against setting them beside the tokens?",
        lambda s: add_or_concat(_adding(s), seed=s.seed),
        lambda s, f: (Picture(plots.read_back, (f,)),),
    ),
    Question(
        "expansion",
        "Taken apart around p = 0, which term knows the distance?",
        lambda s: expansion(_adding(s), s.texts(4, 16), seed=s.seed),
        lambda s, f: (
            Picture(plots.expansion_terms, (f,)),
            Picture(plots.interaction_block, (f,)),
            Picture(plots.interaction_decay, (f,)),
        ),
    ),
    Question(
        "survival",
        "Does position survive the layers?",
        lambda s: survival(s.model, s.texts(_probed(s), 64), seed=s.seed),
        lambda s, f: (Picture(plots.survival, (f,)), Picture(plots.probe_transfer, (f,))),
        first,
    ),
)
"""Every section, in the order of the report."""
