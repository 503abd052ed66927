"""The logits of each form that to_hf writes, and of GGUF files with the keys of an extension, in the programs that read it, against
the model's own.

    python benchmarks/written_forms.py FOLDER

Tiny random models in float32, 250 tokens of one text, 64 tokens before the extension. Results go to written_forms.json beside this file: by program the largest difference of a logit (of llama.cpp, of a log-probability), and the
logits' standard deviation.
"""

import argparse
import datetime
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import torch
import transformers

import posenc

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from posenc.pretrained.gguf_file import rewrite  # noqa: E402
from references import gguf_files, llama_cpp  # noqa: E402
from references.small_models import METHODS  # noqa: E402

SHAPE = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 64, "initializer_range": 0.15, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GEMMA = {
    "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2
}  # fmt: skip


def made(kind, **fields):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SHAPE | {"intermediate_size": 128} | fields)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def written(tokens):
    """A name, a model, and the text that it reads."""
    for kind in ("llama", "qwen2", "gemma3_text"):
        model = made(kind, **(GEMMA if kind == "gemma3_text" else {}))
        for method in METHODS:
            posenc.extend(model, method, factor=4)
            yield f"{kind} {method}", model, tokens
            posenc.restore(model)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    tokens = torch.randint(3, 97, (1, 250), generator=torch.Generator().manual_seed(0))
    torch.save(tokens, given.folder / "tokens.pt")
    rows, wanted, files = [], {}, {}
    for number, (name, model, text) in enumerate(written(tokens)):
        folder = given.folder / str(number)
        export = posenc.to_hf(model, folder)
        wanted[str(folder)] = model(text, use_cache=False).logits
        plain = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        off = float((plain(text, use_cache=False).logits - wanted[str(folder)]).abs().max())
        kind = export.rope_parameters.get("rope_type") or export.rope_parameters.get("full_attention", {}).get(
            "rope_type"
        )
        row = {
            "name": name, "model_type": export.model_type, "rope_type": kind, "deviation": round(float(wanted[str(folder)].std()), 4),
            "agree": [each.program for each in export.programs if each.agrees], "off": {"transformers 5": off},
        }  # fmt: skip
        try:
            file = given.folder / f"{number}.gguf"
            kind, _, method = name.partition(" ")
            source = gguf_files.written(
                given.folder / f"{number} before.gguf", made(kind, **(GEMMA if kind == "gemma3_text" else {}))
            )
            rewrite(source, file, method, factor=4)
            files[str(file)] = row, text, wanted[str(folder)][0, -1].log_softmax(-1)
        except posenc.InputError as error:
            row["no_gguf"] = str(error)
        rows.append(row)
        print(name, row["off"], flush=True)
    versions = {"transformers 5": transformers.__version__, "torch": torch.__version__}
    prompts = {file: text.tolist() for file, (_, text, _) in files.items()}
    for file, (found,) in llama_cpp.log_probabilities(prompts).items():  # of the 20 likeliest tokens after the text
        row, _, own = files[file]
        row["off"]["llama.cpp"] = max(abs(value - float(own[token])) for token, value in found.items())
    versions["xllamacpp"] = version("xllamacpp")
    about = {
        "date": str(datetime.date.today()),
        "versions": versions,
        "processor": platform.machine(),
        "dtype": "float32",
    }
    (HERE / "written_forms.json").write_text(json.dumps(about | {"forms": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
