"""Tokenizers: byte pairs learned on the spot, those of Hugging Face, and what becomes of a text in between."""

import os
import subprocess
import sys

import pytest
import torch

from posenc import InputError
from posenc.lab.compare import Comparison, compare
from posenc.lab.data import load, tokens
from posenc.lab.data.tokens import Tokenizer, learn_bpe, pretrained
from posenc.lab.engines import InProcess
from posenc.lab.text import Settings
from posenc.report.compare import files
from posenc.tasks.running_text import pydoc

pytest.importorskip("transformers")
TEXT = pydoc()[:60_000] + "zwölf 🙂 漢字 e\u0301 \u0000 end\n" * 20


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return str(tmp_path / "text.txt")


def words(folder, *, eos=None, gap=0):
    """A tokenizer with one token for each word, saved as Hugging Face saves its own."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "the": 1, "of": 2 + gap, "</s>": 3 + gap}
    fast = Fast(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=eos).save_pretrained(folder)
    return str(folder)


def test_bpe_says_the_text_and_saw_only_the_training_part(text):
    everything = TEXT.encode()
    corpus = load(text, "bpe:600")
    train, test = everything[: corpus.train.bytes], everything[corpus.train.bytes :]
    assert len(test) == corpus.test.bytes == pytest.approx(len(everything) / 10, abs=4)
    again = learn_bpe("bpe:600", 600, [train.decode()])
    assert (corpus.vocab_size, corpus.train.tokens.dtype) == (600, torch.uint16)
    for part, expected in ((corpus.train, train), (corpus.test, test)):
        assert again.decode(part.tokens.tolist()) == expected.decode()
    assert corpus.test.tokens.tolist() == again.encode([test.decode()])[0]
    assert corpus.bytes_per_token == len(test) / len(corpus.test) > 1.5
    other = learn_bpe("bpe:600", 600, [TEXT])
    assert other.fingerprint != again.fingerprint  # the held-out text would have changed it


def test_bpe_is_what_the_tokenizers_library_learns(text):
    from tokenizers import ByteLevelBPETokenizer

    corpus = load(text, "bpe:600")
    everything = TEXT.encode()
    train, test = everything[: corpus.train.bytes].decode(), everything[corpus.train.bytes :].decode()
    theirs = ByteLevelBPETokenizer()
    theirs.train_from_iterator([train], vocab_size=600, min_frequency=0, show_progress=False)
    assert corpus.train.tokens.tolist() == theirs.encode(train).ids
    assert corpus.test.tokens.tolist() == theirs.encode(test).ids


def test_full_documents_are_encoded_as_transformers_does(tmp_path):
    """Also where the tokenizer was saved with truncation and padding."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    fast = ByteLevelBPETokenizer()
    fast.train_from_iterator([TEXT], vocab_size=500, special_tokens=["<end>"], show_progress=False)
    fast.enable_truncation(16)
    fast.enable_padding(length=64)
    saved = str(tmp_path / "saved")
    PreTrainedTokenizerFast(tokenizer_object=fast._tokenizer, eos_token="<end>").save_pretrained(saved)
    paragraphs = [part for part in TEXT.split("\n\n") if part][:200]
    (tmp_path / "texts").mkdir()
    for number, paragraph in enumerate(paragraphs):
        (tmp_path / "texts" / f"{number:03}.txt").write_text(paragraph, encoding="utf-8")
    corpus = load(str(tmp_path / "texts"), saved, packed=True)
    theirs = AutoTokenizer.from_pretrained(saved)
    wanted = [[*theirs.encode(text, add_special_tokens=False), theirs.eos_token_id] for text in paragraphs]
    assert corpus.train.tokens.tolist() + corpus.test.tokens.tolist() == [token for ids in wanted for token in ids]


def test_what_bpe_learns_from_is_never_held_out(tmp_path, monkeypatch):
    """Not even where the limit on tokens puts the cut far below the end of the file."""
    seen = []
    learn = tokens.learn_bpe

    def spy(name, size, texts):
        texts = list(texts)
        seen.append("".join(texts))
        return learn(name, size, texts)

    monkeypatch.setattr(tokens, "learn_bpe", spy)
    for limit in (1000, 5000, 50_000_000):
        corpus = load("pydoc", "bpe:300", data_tokens=limit)
        assert len(seen[-1].encode()) <= corpus.train.bytes
        assert limit > 5000 or len(corpus.train) + len(corpus.test) == pytest.approx(limit, rel=0.3)
    assert len(seen[-1].encode()) == corpus.train.bytes


def test_bpe_is_the_same_in_every_process(text):
    code = f"from posenc.lab.data import load; print(load({text!r}, 'bpe:500').digest)"
    digest = load(text, "bpe:500").digest
    for seed in ("1", "2"):
        where = os.environ | {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": "false" if seed == "1" else "true"}
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=where, check=True).stdout
        assert out.strip() == digest


def test_pieces_of_a_long_text_are_cut_between_words(text, monkeypatch):
    everything = load(text, "bpe:600", packed=True)
    monkeypatch.setattr(tokens, "PIECE", 1000)
    pieces = load(text, "bpe:600", packed=True)
    assert pieces.train.starts.tolist() == everything.train.starts.tolist() == [0]
    assert pieces.train.bytes == everything.train.bytes
    assert len(pieces.train) == pytest.approx(len(everything.train), rel=0.01)


def test_digests_differ_by_tokenizer_and_boundaries(text, tmp_path):
    kinds = [("bytes", False), ("bytes", True), ("bpe:300", False), ("bpe:300", True), ("bpe:301", False)]
    digests = {load(text, tokenizer, packed=packed).digest for tokenizer, packed in kinds}
    assert len(digests) == len(kinds)
    assert load(text, "bpe:300").digest in digests
    (tmp_path / "copy.txt").write_text(TEXT, encoding="utf-8")
    assert load(str(tmp_path / "copy.txt"), "bpe:300").digest in digests


def test_a_small_text_gives_fewer_ids(tmp_path):
    (tmp_path / "a.txt").write_text("abab abab abab " * 4)
    assert 256 < load(str(tmp_path / "a.txt"), "bpe:4096").vocab_size < 300


@pytest.mark.parametrize("packed", [False, True])
def test_hugging_face_tokenizers_end_documents(tmp_path, packed):
    for number, content in enumerate(["the of the", "of of", "the the the of the of the of the of the of"]):
        folder = tmp_path / "texts"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_text(content)
    corpus = load(str(folder), words(tmp_path / "saved", eos="</s>"), packed=packed)
    both = corpus.train.tokens.tolist() + corpus.test.tokens.tolist()
    assert both[:8] == [1, 2, 1, 3, 2, 2, 3, 1]
    assert both.count(3) == 3
    assert both[-1] == 3
    assert corpus.vocab_size == 4
    assert (corpus.train.starts.tolist() if packed else corpus.train.starts) == ([0, 4, 7] if packed else None)
    without = load(str(folder), words(tmp_path / "plain"), packed=packed)
    assert 3 not in without.train.tokens.tolist()


def test_ids_with_gaps_and_ids_past_the_vocabulary(tmp_path, text, monkeypatch):
    gap = load(text, words(tmp_path / "gap", gap=70_000))
    assert (gap.vocab_size, gap.train.tokens.dtype) == (70_004, torch.int32)
    assert int(gap.train.tokens.max()) == 70_002
    lying = Tokenizer("lying", 3, None, "", lambda texts: [[0, 5] * 100 for _ in texts], str)
    monkeypatch.setattr(tokens, "pretrained", lambda name: lying)
    with pytest.raises(InputError, match=r"tokenizer='lying': gives id 5, but its vocabulary ends at 2"):
        load(text, "lying")
    mute = Tokenizer("mute", 3, None, "", lambda texts: [[] for _ in texts], str)
    monkeypatch.setattr(tokens, "pretrained", lambda name: mute)
    corpus = load(text, "mute", packed=True, data_tokens=100)
    assert (len(corpus.train), len(corpus.train.edges)) == (0, 1)
    with pytest.raises(InputError, match=r"0 tokens are too short"):
        Settings(tokenizer="mute", vocab_size=3, packed=True).check_data(corpus)


def test_refusals(tmp_path, text):
    for name in ("bpe", "bpe:", "bpe:256", "bpe:x", "bpe:-5", "bpe:²", "bpe:99999999"):
        with pytest.raises(InputError, match=r"tokenizer=.*: must be bpe:N, with N from 257"):
            load(text, name)
    with pytest.raises(InputError, match=r"tokenizer=''"):
        load(text, " ")
    with pytest.raises(InputError, match=r"tokenizer=''"):
        Settings(tokenizer="")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    (tmp_path / "evil" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for name in (str(tmp_path / "nothing"), str(tmp_path / "evil")):
        with pytest.raises(InputError, match=r"tokenizer=.*give bytes, bpe:4096") as error:
            pretrained(name)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "latin.txt").write_bytes(b"a word and caf\xe9 " * 40)
    with pytest.raises(InputError, match=r"latin\.txt': byte 14 of document 1 is not UTF-8"):
        load(str(tmp_path / "latin.txt"), "bpe:300")


def test_a_comparison_in_tokens_says_so(tmp_path, tiny, text):
    from dataclasses import replace

    corpus = load(text, "bpe:300", packed=True)
    settings = replace(tiny, tokenizer="bpe:300", vocab_size=300, packed=True)
    with pytest.raises(InputError, match=r"tokenizer='bytes': must be 'bpe:300'"):
        Comparison(("none",), 1, tiny).check(corpus)
    comparison = Comparison(("none",), 1, settings)
    results = compare(comparison, corpus, tmp_path / "out", engine=InProcess(), pages=files)
    assert results["data"]["bytes_per_token"] == pytest.approx(corpus.bytes_per_token, abs=1e-5)
    first = results["variants"][0]["lengths"][0]
    assert first["bits_per_byte"] == pytest.approx(first["loss"]["mean"] / 0.6931472 / corpus.bytes_per_token)
    shown = (tmp_path / "out" / "report.html").read_text()
    assert "nats per token" in shown
    assert "bits per byte" in shown
    assert "nats per byte" not in shown
