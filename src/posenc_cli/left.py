# SPDX-License-Identifier: Apache-2.0
"""What left posenc in this version, and what to use instead. Imports nothing."""

LEFT: dict[str, str] = {
    "--for": "name the methods that the program runs with --candidates, for vLLM and llama.cpp frequency schedules",
    "pretrained.export.expresses": "call posenc.to_hf, whose report names what each program computes",
    "pretrained.training": "adapt examples/doctor_callback.py, which examines a Trainer's first batch",
    "pretrained.training.DoctorCallback": "adapt examples/doctor_callback.py, which examines a Trainer's first batch",
    "accept": "verify drafts as examples/draft_tree.py does, and crop the cache",
    "compile_rotary": "call torch.compile(posenc.functional.rotary)",
    "frequencies.diff": "call posenc.analysis.diff",
    "multimodal": "call posenc.pretrained.multimodal",
    "ring": "shard the positions, and keys are gathered",
    "solver": "leave it out: FLOATER has rk4 alone, and more substeps are nearer to the exact flow",
    "with_tree": "make the positions as examples/draft_tree.py does",
    # the name as it is typed -> what to use instead: an instruction with a verb, without a full stop
    "auto": "call posenc.choose(model, tokenizer, factor=...), or run posenc extend MODEL --method auto",
    "--engine": "leave it out; for several machines give each its --share, and put their folders together with --merge",
    "--address": "give each machine its --share, and put their folders together with --merge",
    **dict.fromkeys(("--cpus-per-cell", "--gpus-per-cell"), "leave it out, a training takes one thread or the GPU"),
    "lab.engines.Ray": "give each machine its share=(1, 4), and put their folders together with merge",
    "lab.engines.create": "call posenc.lab.engines.InProcess() or ProcessPool(workers)",
    "--minutes": "give --samples, the documents of each task",
    "--plan": "give the same --out, where measured cells are used again",
    "--track": "read results.json, which has every number, into your tracker",
    "--checkpoint-every": "run the same command again, which trains anew only what had not finished",
    "checkpoint_minutes": "call it again, which trains anew only what had not finished",
    "vision": "adapt examples/small_vit.py, which trains and tests a small vision Transformer",
    **{
        f"niah_{kind}": "run lm-eval's task of this name, see docs/lm-eval.md"
        for kind in (
            "single_1",
            "single_2",
            "single_3",
            "multikey_1",
            "multikey_2",
            "multikey_3",
            "multivalue",
            "multiquery",
        )
    },
    "variable_tracking": "run lm-eval's ruler_vt, see docs/lm-eval.md",
    "common_words": "run lm-eval's ruler_cwe, see docs/lm-eval.md",
    "frequent_words": "run lm-eval's ruler_fwe, see docs/lm-eval.md",
    "many_shot": "run many-shot tasks of lm-eval with --num_fewshot, see docs/lm-eval.md",
    "--quick": "give fewer --n and --rounds",
    "--memory": "run python benchmarks/bench in the repository, which measures memory",
    "--no-memory": "leave it out, posenc bench times alone",
    "--peers": "run python benchmarks/bench in the repository, which measures other packages",
    "--no-peers": "leave it out, posenc bench measures no other packages",
    "--wall": "give --threads, with several of which wall time is measured",
    "--flush-denormal": "run python benchmarks/bench in the repository, which takes it",
    "--patience": "run python benchmarks/bench in the repository, which takes it",
    "--attention": "leave it out, posenc eval measures no attention profiles",
    "--no-attention": "leave it out, posenc eval measures no attention profiles",
    **dict.fromkeys(
        ("--test-sizes", "--patch-size", "--images", "--image-column", "--label-column", "--data-images"),
        "adapt examples/small_vit.py, which trains and tests a small vision Transformer",
    ),
    "fit": "extend by longrope with factors of your own; benchmarks/learned_stretch.py learns them on a text",
    "ms_poe": "run benchmarks/ms_poe.py, which extends a model by it",
    "band_scale": "run benchmarks/bands.py, which extends a model by it",
    "ape_generate": "call posenc.nbce_generate, or run benchmarks/ape.py",
    "nbce_steps": "call posenc.nbce_generate, whose answer has the context of each token",
    "resize": "read docs/vision-pretrained.md: timm and transformers interpolate position tables themselves",
    "--image-size": "read docs/vision-pretrained.md: timm and transformers interpolate position tables themselves",
    "--window-size": "build the model with timm.create_model(..., window_size=...), see docs/vision-pretrained.md",
    "plots": "take figure.svg beside a report, or save any figure by the buttons below it",
    "control": "leave it out, differences are paired and have intervals",
    "first_token": "adapt examples/own_task.py or a class of posenc.lab.synthetic.tasks",
    "modular": "adapt a class of posenc.lab.synthetic.tasks, as docs/synthetic-lab.md shows",
    "cite": "write posenc list --cite NAME",
    "completion": "write posenc --print-completion SHELL",
    "conform": "write posenc check FUNCTION --as KIND",
    "diff": "write posenc analyze SCHEDULE SCHEDULE",
    "predict": "write posenc explore --predict ENCODING ...",
    "to_gguf": "convert the model with llama.cpp's convert_hf_to_gguf.py, and extend that file by posenc extend FILE.gguf --gguf NEW.gguf",
}
"""Commands, flags, methods, tasks, encodings and names of Python that left: each answers with its line for this version."""


def instead(name: str) -> str | None:
    """What to use instead of a name that left, as a sentence; None for any other name."""
    return f"{name} left posenc: {LEFT[name]}" if name in LEFT else None
