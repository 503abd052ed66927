# SPDX-License-Identifier: Apache-2.0
"""docs/leaderboard.md and benchmarks/ablations.md say what the committed results say; the rows can be repeated."""

import copy
import json
import math
import re
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from archives import read

from posenc import attention
from posenc.lab.compare import experiment
from posenc.lab.data import load
from posenc.lab.experiment import LEADERBOARD
from posenc.lab.statistics import Estimate

ROOT = Path(__file__).parents[3]


def script(name):
    spec = spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def leaderboard():
    return script("leaderboard")


@pytest.fixture(scope="module")
def parts(leaderboard):
    return read(leaderboard.ARCHIVES)


@pytest.fixture(scope="module")
def board(leaderboard, parts):
    if any(cell.facts["data"] != load("pydoc").digest for cell in parts if cell.facts["task"] == "text"):
        pytest.skip("Python's text is another one here")
    return leaderboard.Board.read(leaderboard.ARCHIVES)


def test_the_tables_are_those_of_the_results(leaderboard, board):
    budgets = json.loads(leaderboard.BUDGETS.read_text(encoding="utf-8"))
    assert leaderboard._rounded(leaderboard.measured_budgets()) == budgets
    made = leaderboard.tables(board)
    for path in leaderboard.PAGES:
        page = path.read_text(encoding="utf-8")
        assert page == leaderboard.written(page, made)
    assert made["scores"].count("\n") == made["summary"].count("\n") == made["equal_time"].count("\n")
    assert made["summary"].count("\n") == 1 + len(LEADERBOARD)
    first = board.rankings["copy"].trained[0]
    assert made["tasks"].split("accuracy at 128 symbols")[1].split("\n")[2].startswith(f"| `{first.name}` ")


def test_a_row_can_be_repeated(parts):
    assert {cell.facts["encoding"] for cell in parts} <= set(LEADERBOARD)
    for facts in {
        cell.facts["task"]: cell.facts for cell in parts
    }.values():  # those of a task are of the same settings
        kind = experiment(facts["task"])
        preset = kind.presets["leaderboard"]
        corpus, settings = preset.settings.load(kind.data)
        assert facts["settings"] == settings.to_dict()
        if facts["task"] != "text":
            assert facts["data"] == corpus.digest


def test_no_training_is_left_out(leaderboard, board):
    """A row is of every seed in the archives, and says how many where others have more; a pair is of the seeds that both have."""
    replication, unequal = leaderboard.replication, 0
    for name in ("recall", "far"):
        folders = sorted((leaderboard.replication.EXPERIMENTS / name).iterdir())
        for folder, trained in zip(folders, replication.experiments(name), strict=True):
            there = [(cell.facts["encoding"], cell.facts["seed"]) for cell in read(folder)]
            (ranking,) = trained.rankings.values()
            assert sorted((v.name, seed) for v in ranking.trained for seed in v.scores) == sorted(there)
            counts = replication.numbers_of_seeds(ranking)
            unequal += len({*counts.values()}) > 1
            of = {variant.name: variant for variant in ranking.trained}
            both = of["wall"].scores.keys() & of["rope"].scores.keys()
            at = ranking.settings.trained_at
            mean = [of[each].values(at, sorted(both), ranking.criterion.key).mean().item() for each in ("wall", "rope")]
            gap = replication.compared(ranking, at, "wall", "rope")
            assert (gap.seeds, gap.estimate.mean) == (len(both), pytest.approx(mean[0] - mean[1]))
    assert unequal == 2
    (row,) = (line for line in leaderboard.far(None).splitlines() if line.startswith("| `wall`"))
    assert "(2 seeds)" in row


def test_the_interval_of_a_share_is_printed_from_low_to_high_within_0_and_100(leaderboard, board):
    for ranking in board.rankings.values():
        for variant in ranking.trained:
            text = leaderboard._with_interval(ranking, variant, ranking.settings.trained_at)
            mean, low, high = map(float, re.fullmatch(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", text).groups())
            assert low <= mean <= high
            assert not ranking.criterion.higher_is_better or 0 <= low <= high <= 100


def test_a_difference_has_one_interval_on_all_pages_and_is_that_of_the_levels(ablations):
    numbers, page = ablations.stored(), ablations.PAGE.read_text(encoding="utf-8")
    assert ablations.written(page, numbers | {"models": ablations.of_board(numbers["models"])}) == page
    for name, of in ((name, of) for each in numbers["models"].values() for name, of in each["ablations"].items()):
        first = of["levels"][next(iter(ablations.ABLATIONS[name].encodings.values()))]
        for at, gaps in of["differences"].items():
            means = {each: of["levels"][each][at]["mean"] - first[at]["mean"] for each in gaps}
            assert {each: e["mean"] for each, e in gaps.items()} == pytest.approx(means, abs=5e-4), name


def test_the_page_of_claims_says_which_findings_were_written_down_before_their_runs(leaderboard):
    """The archives of the leaderboard are older than findings.json, those of the experiment on tasks are not."""
    first = [
        each for each in leaderboard.replication.findings() if not list(leaderboard.ARCHIVES.glob(f"{each.task}-*"))
    ]
    page, chinese = ((ROOT / f"docs/{name}").read_text(encoding="utf-8") for name in ("claims.md", "claims.zh.md"))
    verdicts = dict(re.findall(r'<a id="([^"]+)"[^|]*\| \*\*([^|]*)\*\* \|', page))
    open_, confirmed = (
        [v for each in first if (v := verdicts[each.id]) == word] for word in ("not measurable", "confirmed")
    )
    every = len(leaderboard.replication.findings())
    assert len(open_) + len(confirmed) == len(first)
    assert f"{every - len(first)} of {every} are judged by runs" in page
    assert (
        f"of the {len(first)} that were written down before their runs, {len(open_)} are not measurable and {len(confirmed)} is confirmed"
        in page
    )
    assert f"{every} 条中有 {every - len(first)} 条" in chinese
    assert f"{len(first)} 条里，{len(open_)} 条测不出，{len(confirmed)} 条证实" in chinese


def test_findings_are_of_what_is_compared(leaderboard):
    findings, claims = leaderboard.replication.findings(), leaderboard.replication.claims()
    assert len(findings) >= 40
    assert any(each.level for each in findings)
    for each in findings:
        assert {each.better, each.worse} <= set(LEADERBOARD)
        assert each.at in experiment(each.task)().conditions
        assert re.fullmatch(r"\d{4}\.\d{5}", each.arxiv)
        assert bool(each.measure) == bool(each.values)
    ids = [each.id for each in findings] + [each["id"] for each in claims]
    assert len(set(ids)) == len(ids)
    for name in ("claims.md", "claims.zh.md"):
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert sorted(re.findall(r'<a id="([^"]+)"', page)) == sorted(ids)


@pytest.fixture
def rankings(board):
    return board.rankings


def test_a_finding_the_other_way_round_has_the_other_verdict(leaderboard, rankings, monkeypatch):
    replication = leaderboard.replication
    one = {of.finding.id: of for of in replication.judged(rankings, [])}
    assert one["path-fox"].verdict == one["pope-level"].verdict == "reversed"
    assert one["kerple-alibi"].verdict == one["stick-breaking-level"].verdict == "confirmed"
    assert one["pope-indexing"].verdict == "not measured"
    swapped = [replace(each, better=each.worse, worse=each.better) for each in replication.findings()]
    monkeypatch.setattr(replication, "findings", lambda: tuple(swapped))
    other = {of.finding.id: of for of in replication.judged(rankings, [])}
    turned = {"confirmed": "reversed", "reversed": "confirmed"}
    for id, of in one.items():
        assert other[id].verdict == (of.verdict if of.finding.level else turned.get(of.verdict, of.verdict))


def test_a_verdict_that_another_size_turns_says_so(leaderboard, rankings):
    replication = leaderboard.replication
    pair = {"kerple": (1.0, 1.0), "alibi": (1.0, 1.2)}
    of = {}
    for name, losses in {"same": pair, "turned": {**pair, "alibi": (1.0, 0.9)}}.items():
        found = replication.judged(rankings, [replication.World(10**7, 1000, 1, losses)])
        of[name] = next(each for each in found if each.finding.id == "kerple-alibi")
    assert (of["same"].verdict, of["turned"].verdict) == ("confirmed", "changes with size, budget or text")
    assert "10.0 M, 1000 steps, 1 seed: +0.100" in replication.here(of["turned"], replication.same)


def test_a_difference_that_is_not_measured_turns_no_verdict(leaderboard, rankings):
    replication = leaderboard.replication
    losses = {"kerple": (1.0, 1.0), "alibi": (1.0, 0.9)}
    for low, chance, verdict in (
        (-0.01, 0.07, "confirmed"),
        (0.01, 0.03, "changes with size, budget or text"),
        (0.01, 0.03, "confirmed"),  # one of many: beside the others' chances it may be luck
    ):
        gap = replication.Gap(Estimate(0.1, 0.05, low, 0.2 - low), chance)
        same = {"fire-kerple": replication.Gap(Estimate(0.0, 0.1, -0.2, 0.2), 0.9)} if verdict == "confirmed" else {}
        world = replication.World(10**7, 1000, 2, losses, gaps={"kerple-alibi": gap} | same)
        found = {of.finding.id: of.verdict for of in replication.judged(rankings, [world])}
        assert found["kerple-alibi"] == verdict
    gap = replication.Gap(Estimate(0.1, 0.01, 0.08, 0.12))
    rises = replication.World(10**7, 1000, 2, losses, gaps={"alibi-level": gap})
    found = {of.finding.id: of.verdict for of in replication.judged(rankings, [rises])}
    assert (
        found["alibi-level"] == "changes with size, budget or text"
    )  # a length between the training length and the longest
    close = {**losses, "alibi": (1.0, 0.98)}  # within the tolerance, and no interval is known
    found = {of.finding.id: of.verdict for of in replication.judged(rankings, [replication.World(1, 1, 1, close)])}
    assert found["kerple-alibi"] == "confirmed"


def test_the_trainings_of_the_law_judge_findings_too(leaderboard, board):
    """ALiBi is ahead of RoPE at the training length with 10 and 28 M weights, as README says."""
    found = {of.finding.id: of.verdict for of in leaderboard.judged_findings(board)}
    assert found["rope-before-alibi"] == "changes with size, budget or text"


def test_rates_change_nothing_where_nothing_has_that_rate(leaderboard, board):
    """Without position parameters theirs is no rate: the same losses."""
    of = {each.by: each.losses for each in leaderboard._at_rates()}
    assert len(of) == 9
    assert of[1, 0.5]["stick_breaking"] == of[1, 2]["stick_breaking"] == of[1, 1]["stick_breaking"]
    assert of[0.5, 1]["stick_breaking"] < of[1, 1]["stick_breaking"]
    assert of[1, 0.5]["dape"] < of[1, 1]["dape"] < of[1, 2]["dape"]
    usual, *_ = leaderboard._at_rates()
    assert {"dape", "fox"} < usual.tuned
    assert not {"rope", "alibi", "none"} & usual.tuned
    page = leaderboard.rates(None)
    assert all(f"by posenc {each.trained_on.split('by posenc ')[1]}" in page for each in leaderboard._at_rates())


def test_recall_begins_where_naming_a_value_of_the_sequence_no_longer_explains_the_loss(leaderboard, rankings):
    """In 300 steps some trainings are soon better than a guess among all symbols, and never recall."""
    ranking = rankings["recall"]
    learned = {variant.name: set(ranking.learned(variant)) for variant in ranking.trained}
    curves = {(v.name, seed): cell.losses for v in ranking.trained for seed, cell in v.cells.items()}
    of_symbols, of_sequence = math.log(ranking.settings.symbols) / 2, 0.33
    never = [key for key in curves if key[1] not in learned[key[0]]]
    assert sum(leaderboard._below(curves[key], of_symbols) is not None for key in never) > len(never) / 2
    assert leaderboard._below([2.0] * 10 + [0.1] * 10, of_sequence) == 11
    assert leaderboard._below([2.0] * 10, of_sequence) is None


def test_what_has_not_been_run_says_so(leaderboard, monkeypatch, tmp_path):
    monkeypatch.setattr(leaderboard.replication, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(leaderboard, "BUDGETS", tmp_path / "budgets.json")
    leaderboard.BUDGETS.write_text(json.dumps(leaderboard.measured_budgets()))
    for each in (leaderboard.far, leaderboard.rates, leaderboard.recall, leaderboard.budgets):
        assert each(None) == "Not run yet."


@pytest.fixture(scope="module")
def ablations():
    return script("ablations")


@pytest.fixture
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the encodings of benchmarks/ablated.py are named from there


def test_ablations_are_of_encodings_that_can_be_made(ablations, at_root):
    for ablation in ablations.ABLATIONS.values():
        for models in ablation.models:
            task = ablations.MODELS[models].task
            settings = experiment(task).presets["leaderboard"].settings
            assert all(settings.make_encoding(text) for text in ablation.encodings.values())
            assert len(set(ablation.encodings.values())) == len(ablation.encodings)
    assert len(ablations.ABLATIONS["terms"].encodings) == 2**4


def attended(text, like=None):
    """Of random queries, keys and values; with the parameters of another encoding."""
    torch.manual_seed(0)
    encoding = experiment("text").presets["leaderboard"].settings.make_encoding(text)
    if like is not None:
        encoding.load_state_dict(like.state_dict(), strict=False)
    q, k, v = torch.randn(3, 1, 4, 9, 48, generator=torch.Generator().manual_seed(1))
    return encoding, attention(q, k, v, encoding, causal=True).detach()


@pytest.mark.parametrize(
    ("parts", "same"),
    [
        ("FourTerms:terms=c2p|p2c", "deberta:max_relative_positions=64"),
        ("FourTerms:terms=c2p|p2c|p2p", "deberta:max_relative_positions=64:terms=c2p|p2c|p2p"),
        ("XLBiases:biases=u|v", "transformer_xl"),
    ],
)
def test_all_parts_are_the_encoding(parts, same, ablations, at_root):
    encoding, expected = attended(same)
    torch.testing.assert_close(attended(ablations.PARTS + parts, encoding)[1], expected)


def test_parts_can_be_left_out(ablations, at_root):
    _, uniform = attended(f"{ablations.PARTS}Uniform")
    encoding, some = attended(f"{ablations.PARTS}FourTerms:terms=c2p|p2p:content=false")
    assert encoding.scale(48) == pytest.approx((48 * 2) ** -0.5)
    assert not torch.allclose(some, uniform)
    assert encoding.key is not None
    encoding.table.data.zero_()
    torch.testing.assert_close(
        attended(f"{ablations.PARTS}FourTerms:terms=c2p|p2p:content=false", encoding)[1], uniform
    )
    full, expected = attended("transformer_xl")
    for left, gone in (("u", ["v"]), ("v", ["u"]), ("neither", ["u", "v"])):
        part, out = attended(f"{ablations.PARTS}XLBiases:biases={left}", full)
        assert not {"u", "v"} & {name for name, _ in part.named_parameters()} - set(left)
        changed = copy.deepcopy(full)
        for name in gone:
            getattr(changed, name).data.zero_()
        torch.testing.assert_close(out, attended("transformer_xl", changed)[1])
        assert not torch.allclose(out, expected)
