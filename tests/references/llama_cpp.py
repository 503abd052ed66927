"""Log-probabilities by llama.cpp (PyPI's xllamacpp) of the token after each prompt, in another process: what is wrong with a file
ends it."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest


def log_probabilities(files, tokens=512):
    """files: path -> prompts, lists of token ids or texts. Of each prompt, token id -> log-probability of the 20 likeliest."""
    if find_spec("xllamacpp") is None:
        pytest.skip("no llama.cpp here (make test installs it: pip install xllamacpp)")
    asked = json.dumps({"tokens": tokens, "files": {str(path): prompts for path, prompts in files.items()}})
    done = subprocess.run([sys.executable, __file__], input=asked, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {path: [{int(k): v for k, v in one.items()} for one in found[str(path)]] for path in files}


def _answer(path, prompts, tokens):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = path, tokens, 1, 0
    params.cpuparams.n_threads, params.warmup, params.fit_params = 1, False, False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server, answers = xllamacpp.Server(params), []
    for prompt in prompts:
        asked = {"prompt": prompt, "n_predict": 1, "n_probs": 20, "temperature": -1.0, "cache_prompt": False}
        reply = server.handle_completions(asked)
        top = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        answers.append({each["id"]: each["logprob"] for each in top})
    return answers


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps({path: _answer(path, prompts, given["tokens"]) for path, prompts in given["files"].items()}))
