"""Fine-tuning: what is trained and what is not, PoSE's positions, and that interpolation recovers by it."""

import shutil
import signal

import pytest
import torch

import posenc
from posenc import InputError
from posenc.pretrained.finetune import STATED, Windows, finetune
from references import stories15m
from references.small_models import TRAINED, small_model, tokens

TEXT = torch.arange(3, 83).repeat(4)
"""A text of which the next token follows from the last."""


def run(model, **settings):
    chosen = {"steps": 30, "learning_rate": 3e-3, "length": 32, "batch_size": 2} | settings
    return finetune(model, TEXT, **chosen)


def test_all_weights_learn_and_the_extension_stays():
    model = small_model("llama", initializer_range=0.1)
    posenc.extend(model, "linear", factor=4)
    rotary, before = model.model.rotary_emb, {n: p.clone() for n, p in model.named_parameters()}
    seen = []
    got = run(model, progress=lambda step, loss: seen.append((step, loss)))
    assert sum(got.losses[-5:]) < 0.7 * sum(got.losses[:5])
    assert seen == list(enumerate(got.losses, 1))
    assert got.trained == sum(p.numel() for p in model.parameters())
    assert all(not torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert model.model.rotary_emb is rotary
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert "30 of 30 steps of 2 x 32 tokens on all weights" in str(got)
    again = small_model("llama", initializer_range=0.1)
    posenc.extend(again, "linear", factor=4)
    assert run(again) == got  # the seed decides
    assert run(again, seed=1).losses != got.losses


def test_a_model_with_a_learned_table_trains_at_its_length():
    model = small_model("gpt2", n_embd=32, n_head=2, n_layer=1)
    posenc.extend(model, "hierarchical", factor=2)
    assert run(model, steps=1, length=None).settings["length"] == 2 * TRAINED
    with pytest.raises(InputError, match=f"^{2 * TRAINED + 1} tokens, and the model's table"):
        run(model, steps=1, length=2 * TRAINED + 1)


def test_token_ids_may_be_a_list():
    given = {"steps": 2, "learning_rate": 3e-3, "length": 32, "batch_size": 2}
    assert finetune(small_model("llama"), TEXT.tolist(), **given) == run(small_model("llama"), steps=2)
    for wrong in (["a", "b"], [0.5, 1.5], [[1, 2], [3]], [[1, 2], [3.5, 1]], []):
        with pytest.raises(InputError, match=r"^text"):
            finetune(small_model("llama"), wrong, length=2)


def test_several_texts_may_have_any_lengths():
    """Every window is as likely as any other, and none reaches into another text."""
    texts = [torch.arange(10, 15), torch.arange(20, 23), torch.arange(30, 50)]
    drawn = Windows(texts, 3, 4400, seed=0)
    windows = torch.stack([drawn[index]["input_ids"] for index in range(len(drawn))])
    assert torch.equal(windows, windows[:, :1] + torch.arange(3))
    starts, counts = windows[:, 0].unique(return_counts=True)
    assert starts.tolist() == [10, 11, 12, 20, *range(30, 48)]
    assert ((counts - 200).abs() < 5 * 200**0.5).all()
    as_lists = [text.tolist() for text in texts]
    settings = {"steps": 3, "length": 3, "batch_size": 2}
    results = [finetune(small_model("llama"), given, **settings) for given in (texts, as_lists)]
    assert results[0] == results[1]


def stopping(after):
    """Progress that is stopped after a step, as by Ctrl-C."""
    return lambda step, loss: signal.raise_signal(signal.SIGINT) if step == after else None


@pytest.mark.parametrize("lora", [None, 4])
def test_what_was_interrupted_stays_trained_and_goes_on_from_its_checkpoint(lora, tmp_path):
    if lora:
        pytest.importorskip("peft")
    given = {"steps": 6, "lora": lora, "pose": True, "target_length": 200}
    uninterrupted_model = small_model("llama", attention_dropout=0.1)
    uninterrupted = run(uninterrupted_model, **given)
    model = small_model("llama", attention_dropout=0.1)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    part = run(model, **given, checkpoint=tmp_path / "checkpoint", progress=stopping(4))
    assert part.losses == uninterrupted.losses[:4]
    assert not part.complete
    assert "4 of 6 steps" in str(part)
    assert any(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert {*before} == {name for name, _ in model.named_parameters()}
    again = small_model("llama", attention_dropout=0.1)
    rest = run(again, **given, checkpoint=tmp_path / "checkpoint")
    assert rest == uninterrupted
    for (name, one), other in zip(again.named_parameters(), uninterrupted_model.parameters(), strict=True):
        assert torch.equal(one, other), name
    more = run(small_model("llama", attention_dropout=0.1), **given | {"steps": 8}, checkpoint=tmp_path / "checkpoint")
    assert more.losses[:6] == uninterrupted.losses
    assert len(more.losses) == 8


@pytest.mark.parametrize("left", [None, 0, 99])
def test_a_checkpoint_that_was_cut_off_is_passed_over(left, tmp_path):
    """By SIGKILL or a full disk: the state, which the Trainer writes last, is not there or in part."""
    run(small_model("llama"), steps=2, checkpoint=tmp_path)
    state = shutil.copytree(tmp_path / "checkpoint-2", tmp_path / "checkpoint-3") / "trainer_state.json"
    state.unlink() if left is None else state.write_text(state.read_text()[:left])
    steps = []
    rest = run(small_model("llama"), steps=4, checkpoint=tmp_path, progress=lambda step, _: steps.append(step))
    assert (rest, steps) == (run(small_model("llama"), steps=4), [3, 4])


def test_interrupted_without_a_checkpoint_it_is_as_far_as_it_came():
    model, shorter = small_model("llama"), small_model("llama")
    assert len(run(model, steps=6, progress=stopping(3)).losses) == 3
    run(shorter, steps=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), shorter.parameters(), strict=True))


def test_ctrl_c_lets_the_step_finish():
    handler = signal.getsignal(signal.SIGINT)
    model, shorter = small_model("llama"), small_model("llama")
    hook = model.model.norm.register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    assert len(run(model, steps=6).losses) == 1
    hook.remove()
    run(shorter, steps=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), shorter.parameters(), strict=True))
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    run(small_model("llama"), steps=2, checkpoint=tmp_path)
    for weights, change in ((0.3, {"seed": 1}), (0.3, {"arguments": {"weight_decay": 0.1}}), (0.1, {})):
        model = small_model("llama", initializer_range=weights)
        with pytest.raises(InputError, match=r"is of another model, text or settings; give those again, name another"):
            run(model, steps=2, checkpoint=tmp_path, **change)


def test_the_first_step_is_adam_at_a_tenth_of_the_rate():
    model = small_model("llama", initializer_range=0.1)
    before = model.lm_head.weight.clone()
    run(model, steps=1, learning_rate=1e-2, warmup=20)
    moved = (model.lm_head.weight - before).detach().abs()
    assert moved.max() == pytest.approx(1e-3, rel=1e-2)  # Adam's first step is the rate, whatever the gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lora_is_merged_into_attention_and_nothing_else_moves(dtype):
    pytest.importorskip("peft")
    model = small_model("llama", initializer_range=0.1).to(dtype)
    posenc.extend(model, "yarn", factor=4)
    before = {n: p.clone() for n, p in model.named_parameters()}
    got = run(model, lora=4, learning_rate=1e-2)
    assert sum(got.losses[-5:]) < sum(got.losses[:5])
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert set(before) == {n for n, _ in model.named_parameters()}
    assert changed == {n for n in before if "self_attn" in n}
    assert got.trained == 2 * 4 * sum(sum(before[n].shape) for n in changed) // 2
    assert all(p.requires_grad and p.dtype == dtype for p in model.parameters())
    assert "LoRA of rank 4" in str(got)


@pytest.mark.parametrize("method", ["linear", "rerope:window=16"])
def test_the_parts_of_a_window_see_each_other(method):
    """A jump in position_ids alone makes transformers separate the parts, as if they were packed documents."""
    model = small_model("llama")
    posenc.extend(model, method, factor=4)
    ids, inputs = tokens(1, 20), []
    at = torch.cat((torch.arange(10), torch.arange(110, 120)))[None]
    model.register_forward_pre_hook(lambda module, _, given: inputs.append(given), with_kwargs=True)
    finetune(model, ids[0], steps=1, learning_rate=1e-9, length=20, batch_size=40, pose=True, target_length=200)
    given = inputs[0]
    assert set(given) >= {"position_ids", "attention_mask"}
    skipped = given["position_ids"]
    jumps = skipped.diff(dim=1) != 1  # one in each row, at another place, but where the second part does not move
    assert jumps.sum(1).max() == 1
    assert jumps.any(0).sum() > 5
    assert 150 < skipped.max() < 200
    assert skipped.shape == (40, 20)
    other = ids.clone()
    other[0, 0] = 3 if ids[0, 0] != 3 else 4
    with torch.no_grad():
        one, two = (
            model(x, position_ids=at, attention_mask=torch.ones_like(x), use_cache=False).logits for x in (ids, other)
        )
    assert (one - two)[0, -1].abs().max() > 1e-6


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"length": 400}, r"text has 320 tokens, and a window 400"),
        ({"length": 1}, r"length=1: must be at least 2"),
        ({"pose": True, "target_length": 16}, r"target_length=16: must be at least"),
        ({"learning_rate": 0.0}, r"learning_rate=0.0: must be a positive number"),
        ({"learning_rate": float("inf")}, r"learning_rate=inf: pass a number that is finite"),
        ({"warmup": -1}, r"warmup=-1"),  # below 0 it would climb the loss
        ({"pose": "no"}, r"pose='no': pass True or False"),
        *(
            ({"arguments": {name: 3}}, rf"arguments=.*: {name} is what finetune states itself; leave")
            for name in sorted(STATED)
        ),
        ({"target_length": 64}, r"target_length=64: needs pose=True"),
        ({"learning_rate": 1e30}, r"model: the loss is nan at step 2; load it again; lower learning_rate"),
    ],
)
def test_what_cannot_be_trained_is_refused(settings, match):
    model = small_model("llama")
    with pytest.raises(InputError, match=match):
        run(model, **settings)
    assert not model.training


def test_half_precision_and_strings_need_help():
    model = small_model("llama").to(torch.bfloat16)
    with pytest.raises(InputError, match=r"torch.bfloat16, which loses small steps; pass lora=8"):
        run(model)
    with pytest.raises(InputError, match=r"text is a string: pass the tokenizer"):
        finetune(model, "words")

    def tokenizer(text, add_special_tokens, **_):
        assert not add_special_tokens
        return {"input_ids": [ord(letter) - 90 for letter in text]}

    got = finetune(small_model("llama"), "abcdefgh" * 20, tokenizer, steps=2)
    assert got.settings["length"] == TRAINED


@pytest.mark.parametrize("lora", [None, 4])
def test_modes_and_what_trains_are_as_before(lora):
    if lora:
        pytest.importorskip("peft")
    model = small_model("llama").train()
    model.model.layers[0].eval()
    model.lm_head.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    finetune(model, TEXT, steps=1, length=8, lora=lora)
    assert [module.training for module in model.modules()] == modes
    assert [name for name, weight in model.named_parameters() if not weight.requires_grad] == ["lm_head.weight"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (TEXT + 1000, r"token 1082 is beyond the model's vocabulary of 97"),
        (TEXT[None, None], r"text: pass a string, or token ids"),
        (TEXT.float(), r"text: pass a string, or token ids"),
    ],
)
def test_a_text_that_is_none_is_refused(text, match):
    with pytest.raises(InputError, match=match):
        finetune(small_model("llama"), text, steps=1, length=16)


def test_a_model_that_is_broken_is_not_blamed_on_the_rate():
    model = small_model("llama")
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(InputError, match=r"model: the loss is nan at step 1; load it again; posenc.doctor"):
        run(model)


@pytest.mark.parametrize("arguments", [{"bf16": True}, {"gradient_accumulation_steps": 2}])
def test_what_the_trainer_can_do_leaves_the_model_as_it_was(arguments):
    model = small_model("llama", initializer_range=0.1)
    forward, cached, drawn = model.forward, model.config.use_cache, torch.get_rng_state()
    losses = run(model, arguments=arguments).losses
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert model.forward == forward
    assert model.config.use_cache == cached
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model(tokens(1, 8)).logits.dtype == torch.float32


@pytest.mark.parametrize("method", ["rerope:window=16", "nope+log_n"])
def test_a_position_map_is_trained_and_resumed(method, tmp_path):
    models = [small_model("llama") for _ in range(3)]
    for model in models:
        posenc.extend(model, method, target_length=4 * TRAINED)
    whole = run(models[0], steps=4)
    run(models[1], steps=4, checkpoint=tmp_path, progress=stopping(2))
    assert run(models[2], steps=4, checkpoint=tmp_path) == whole
    assert models[2].config.posenc["method"].startswith(method.split(":")[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_stories15m_reads_four_times_as_far_after_ten_steps_of_interpolation(seed):
    stories15m.require()
    text, model = stories15m.texts(), stories15m.load()

    def loss(method):
        posenc.extend(model, method, factor=4)
        return stories15m.losses(model, text[:2, :1024])[:, 512:].mean().item()

    ntk, before = loss("ntk"), loss("linear")
    finetune(model, text[2:], steps=10, learning_rate=1e-4, length=256, batch_size=4, pose=True, seed=seed)
    after = stories15m.losses(model, text[:2, :1024])[:, 512:].mean().item()
    # measured: NTK 3.8, interpolation 2.3 before and 1.8 after
    assert after < before - 0.25
    assert before < ntk - 0.7
