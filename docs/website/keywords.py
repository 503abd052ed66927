# SPDX-License-Identifier: Apache-2.0
"""What people call a page's subject where its text has another name for it: for search engines, and for the site's search."""

from posenc.encodings import ENCODINGS
from posenc_cli.called import ALIASES, CHINESE
from website.markdown import OPENING, RUNS
from website.trained import OF_IMAGES

KEYWORDS = {
    "guides/extend.md": "rope scaling, context window, context extension, length extrapolation, extend context, long context LLM, YaRN, NTK-aware",
    "guides/extend.zh.md": "扩展上下文, 上下文窗口, 长度外推, 长文本, RoPE 缩放, YaRN, NTK",
    "guides/padding-packing-caches.md": "KV cache, kv caching, padding mask, attention mask, left padding, packed sequences, sequence packing, cu_seqlens, position_ids, document mask",
    "guides/your-model.md": "PyTorch Transformer, custom model, scaled_dot_product_attention, KV cache",
    "guides/bring-your-own.md": "custom positional encoding, new encoding, attention bias, score_mod",
    "guides/convert.md": "GGUF, Llama weights, interleaved, rotate_half, Hugging Face checkpoint",
    "guides/measure.md": "benchmark, needle in a haystack, passkey, perplexity",
    "guides/choose.md": "which positional encoding, best positional encoding, how to choose, RoPE or ALiBi, recommendation",
    "comparison.md": "rotary-embedding-torch, x-transformers, flash-linear-attention, alternatives",
    "guides/recipes.md": "nn.MultiheadAttention, nn.TransformerEncoder, torch.compile, PyTorch Lightning, accelerate, timm, x-transformers, batch generate, static cache, cross attention, time series, timestamps, rope_theta for 32k, attention weights, learning rate",
    "guides/symptoms.md": "troubleshooting, debugging, loss does not go down, garbage output, NaN, inf, slow, wrong results, FAQ",
    "guides/getting-started.md": "install, pip, quickstart", "guides/getting-started.zh.md": "安装, 快速上手, 入门, 教程",
    "frequencies.md": "rope scaling, RoPE scaling, inv_freq, inverse frequencies, rope_theta, yarn vs ntk, NTK-aware, position interpolation, rope_parameters, 频率缩放",
    "position_maps.md": "ReRoPE, Self-Extend, dual chunk attention, StreamingLLM, LM-Infinite, length extrapolation, 位置映射",
    "longer_context.md": "long context, context length, length extrapolation, passkey retrieval, context window, yarn vs ntk, 长上下文",
    "evaluate.md": "needle in a haystack, passkey retrieval, RULER, lost in the middle, perplexity, long-context evaluation, LongBench",
    "huggingface.md": "Hugging Face Trainer, transformers, TRL, PEFT, SFTTrainer, generate",
    "finetune.md": "fine-tuning, finetuning, LoRA, PoSE, long-context fine-tuning, 微调",
    "export.md": "vLLM, llama.cpp, SGLang, config.json, rope_parameters, rope_scaling, save model",
    "doctor.md": "debug RoPE, wrong rope_theta, check config, sanity check, diagnose",
    "attention.md": "FlashAttention, flash attention, FlexAttention, SDPA, Triton kernel, linear memory, attention bias, attention mask",
    "gpu.md": "GPU, CUDA, Triton, H100, throughput",
    "vision-grid.md": "2d rope, 2D positional encoding, position embedding for images, image patches, ViT, video, M-RoPE, 图像, 视频, 二维位置编码",
    "vision-pretrained.md": "ViT resolution, interpolate pos embed, resize position embedding, higher resolution, timm, 图像",
    "compare.md": "benchmark positional encodings, which positional encoding, extrapolation", "leaderboard.md": "best positional encoding, benchmark, length generalization, ranking, 排行榜",
    "ablations.md": "hyperparameter, RoPE base, rope_theta, number of buckets, clip",
    "bench.md": "speed, latency, memory, benchmark", "conform.md": "test my RoPE, unit test, verify implementation, correctness",
    "nbce.md": "multi-document question answering, parallel context windows, naive Bayes",
    "analyze.md": "decay, wavelength, visualize positional encoding, precision", "explore.md": "interactive visualization, demo, animation, 交互演示",
    "story.md": "live demo, language model in the browser, past the context length, WebGPU, WebAssembly, YaRN demo, 演示", "story.zh.md": "演示 长度外推 上下文扩展",
    "predict.md": "live demo, Transformer in the browser, 演示", "predict.zh.md": "演示 外推 损失 注意力", "position_from_scratch.md": "tutorial, positional encoding explained, why positional encoding, course",
    "position_from_scratch.zh.md": "旋转位置编码 教程 位置编码 外推 图像", "claims.md": "does RoPE extrapolate, myths, replication, reproducibility, published results",
    "claims.zh.md": "位置编码 常见说法", "layer_patterns.md": "NoPE layers, iRoPE, sliding window layers, Llama 4, Gemma 3, SmolLM3",
    "distributed.md": "DDP, FSDP, context parallel, sequence parallelism, ring attention, torchrun, multi-GPU",
    "deploy.md": "torch.export, ONNX, onnxruntime, AOTInductor, ExecuTorch, export, serving, dynamic shapes",
    "data.md": "custom dataset, JSONL, Parquet, tokenizer", "lm-eval.md": "lm-evaluation-harness, lm_eval",
    "synthetic-lab.md": "copy task, length generalization, synthetic tasks", "reliability.md": "resume, checkpoint, reproducibility",
    "index.md": "positional encoding, position embedding, RoPE, ALiBi, PyTorch", "encodings.md": "list of positional encodings, position embedding, compare positional encodings, taxonomy, 位置编码",
    "encodings.zh.md": "位置编码 一览 比较",
}  # fmt: skip
"""Of a page, by its path in docs."""


def keywords(path: str) -> str:
    """Of the page at a path of docs or at an address of the site; "": none are known."""
    path = next((page for page, place in (OPENING | RUNS).items() if path == place.replace(".md", ".html")), path)
    path = path.replace(".html", ".md")
    folder, _, file = path.removesuffix(".md").partition("/")
    if folder == "encodings" and file in ENCODINGS:
        image = ["image, ViT"] if file in OF_IMAGES else []
        return ", ".join([*filter(None, [ALIASES.get(file)]), *image, *filter(None, [CHINESE.get(file)])])
    return KEYWORDS.get(next((page for page, index in OPENING.items() if index == path), path), "")
