"""How models are computed is part of a run: precision, device and compilation."""

import json
from dataclasses import replace

import pytest
import torch

from posenc import InputError
from posenc.cli import main
from posenc.lab.experiment import Execution, Run, current_execution, executing
from posenc.lab.measure import measure


def test_a_run_is_known_by_how_it_is_computed(tiny):
    run = Run("rope", 0, tiny, "digest")
    others = [replace(run, execution=how) for how in (Execution(precision="bfloat16"), Execution("cuda"))]
    assert len({run.id, *(other.id for other in others)}) == 3
    assert "device" not in run.facts()


def test_bfloat16_rounds_the_passes_and_leaves_parameters_float32(corpus, tiny):
    run = Run("t5", 0, tiny, corpus.digest)
    exact, rounded = (
        measure(replace(run, execution=how), corpus) for how in (Execution(), Execution("cpu", "bfloat16"))
    )
    assert exact.losses != rounded.losses
    assert rounded.losses == pytest.approx(exact.losses, abs=0.05)
    with executing(Execution(precision="bfloat16")):
        assert current_execution().precision == "bfloat16"
    assert current_execution().precision == "float32"


def test_the_passes_of_the_training_are_compiled(corpus, tiny, monkeypatch):
    calls = []

    def compiled(model):
        return lambda *inputs: calls.append(1) or model(*inputs)

    monkeypatch.setattr(torch, "compile", compiled)
    run = Run("rope", 0, tiny, corpus.digest)
    assert measure(replace(run, execution=Execution(compiled=True)), corpus).losses == measure(run, corpus).losses
    assert len(calls) == tiny.steps


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused_before_anything_is_read(capsys):
    with pytest.raises(InputError, match="device='cuda': not here; pass cpu"), executing(Execution("cuda")):
        pass
    assert main(["compare", "--device", "cuda", "--data", "no such file"]) == 2
    assert "--device cuda: not here" in capsys.readouterr().err


def test_the_preset_gpu_in_tiny_sizes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = "--steps 2 --dim 16 --num-heads 2 --head-dim 8 --num-layers 1 --length 16 --targets 8 --windows 2 --batch-size 2"
    command = f"compare --preset gpu --seeds 1 --workers 1 --precision bfloat16 --encodings rope {sizes} --out here"
    assert main(command.split()) == 0
    results = json.loads((tmp_path / "here" / "results.json").read_text())
    assert results["machine"]["precision"] == "bfloat16"
    assert [variant["name"] for variant in results["variants"] if variant["trained"]]
