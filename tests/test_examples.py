"""Each example runs, shows what its docstring claims, and is as short as promised."""

import ast
import importlib.util
import math
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
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
    assert code_lines(path) <= 40
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_an_encoder_needs_positions_to_find_hidden_tokens(capsys):
    module = example("roformer_encoder")
    whole, masked = module.texts(100)
    for row in range(100):  # the bag says which tokens are hidden, each once, and no more
        motif = whole[row].unique()
        assert len(motif) == module.MOTIF
        assert torch.equal(whole[row, masked[row] == module.MASK].sort().values, motif)
    found = module.main()
    assert found["rope:layout=interleaved"] > 0.98
    assert found["none"] == pytest.approx(1 / module.MOTIF, abs=0.01), "masks are all alike: one guess for all six"
    assert len(capsys.readouterr().out.splitlines()) == 1


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


def test_one_wave_collides_and_many_do_not(capsys):
    found = example("analyse_your_own").main()
    unique, collision, shift = found["one_wave"]
    assert (unique, collision) == (False, (24, 0))
    assert shift.holds
    unique, collision, _ = found["many_waves"]
    assert (unique, collision) == (True, None)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_padded_text_gets_what_it_gets_alone_in_attention_of_ones_own(capsys):
    for right, forgotten in example("own_attention").main().values():
        assert right < 1e-5
        assert forgotten > 0.05
    assert len(capsys.readouterr().out.splitlines()) == 6
