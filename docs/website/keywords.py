# SPDX-License-Identifier: Apache-2.0
"""What people call a page's subject where its text has another name for it: for search engines, and for the site's search."""

import re

from posenc.encodings import ENCODINGS
from posenc_cli.called import ALIASES, CHINESE
from website.markdown import OPENING, RUNS
from website.trained import OF_IMAGES

KEYWORDS = {
    "guides/extend.md": "rope scaling, context window, context extension, length extrapolation, extend context, long context LLM, YaRN, NTK-aware",
    "guides/extend.zh.md": "扩展上下文, 上下文窗口, 长度外推, 长文本, RoPE 缩放, YaRN, NTK",
    "guides/padding-packing-caches.md": "KV cache, kv caching, padding mask, attention mask, left padding, packed sequences, sequence packing, cu_seqlens, position_ids, document mask, 填充, 打包, 缓存",
    "guides/your-model.md": "PyTorch Transformer, custom model, scaled_dot_product_attention, KV cache, 自己的模型",
    "guides/bring-your-own.md": "custom positional encoding, new encoding, attention bias, score_mod, 自定义位置编码",
    "guides/convert.md": "GGUF, Llama weights, interleaved, rotate_half, Hugging Face checkpoint, 权重转换",
    "guides/measure.md": "benchmark, perplexity, evaluate my model, 测量自己的模型",
    "guides/choose.md": "which positional encoding to use, best positional encoding, how to choose, RoPE or ALiBi, recommendation, 选择, 推荐",
    "comparison.md": "rotary-embedding-torch, x-transformers, flash-linear-attention, alternatives, 同类库比较",
    "guides/recipes.md": "nn.MultiheadAttention, nn.TransformerEncoder, torch.compile, PyTorch Lightning, accelerate, timm, x-transformers, batch generate, static cache, cross attention, time series, timestamps, rope_theta for 32k, attention weights, learning rate, 示例代码",
    "guides/symptoms.md": "troubleshooting, debugging, loss does not go down, garbage output, NaN, inf, slow, wrong results, FAQ, 排错, 常见问题",
    "guides/getting-started.md": "install, pip, quickstart, CPU", "guides/getting-started.zh.md": "安装, 快速上手, 入门, 教程",
    "frequencies.md": "rope scaling, RoPE scaling, Llama 3, inv_freq, inverse frequencies, rope_theta, yarn vs ntk, NTK-aware, position interpolation, rope_parameters, 频率缩放",
    "position_maps.md": "ReRoPE, Self-Extend, dual chunk attention, StreamingLLM, LM-Infinite, length extrapolation, 位置映射",
    "longer_context.md": "long context, context length, length extrapolation, passkey retrieval, context window, yarn vs ntk, 长上下文",
    "evaluate.md": "needle in a haystack, passkey retrieval, RULER, lost in the middle, perplexity, long-context evaluation, LongBench, lm-evaluation-harness, lm_eval, 大海捞针, 长文本评测",
    "huggingface.md": "Hugging Face Trainer, transformers, TRL, PEFT, SFTTrainer, generate, 训练器",
    "finetune.md": "fine-tuning, finetuning, LoRA, PEFT, adapters, PoSE, long-context fine-tuning, 微调",
    "export.md": "vLLM, llama.cpp, SGLang, config.json, rope_parameters, rope_scaling, save model, 导出, 保存模型",
    "doctor.md": "debug RoPE, wrong rope_theta, check config, sanity check, diagnose, 诊断, 检查配置",
    "attention.md": "FlashAttention, flash attention, FlexAttention, SDPA, Triton kernel, linear memory, attention bias, attention mask, 注意力实现",
    "gpu.md": "GPU, CUDA, Triton, H100, H200, throughput, 显卡, 算子",
    "vision-grid.md": "2d rope, 2D positional encoding, position embedding for images, image patches, ViT, video, M-RoPE, 图像, 视频, 二维位置编码",
    "vision-pretrained.md": "ViT resolution, interpolate pos embed, resize position embedding, higher resolution, timm, 图像",
    "compare.md": "benchmark positional encodings, extrapolation, copy task, length generalization, synthetic tasks, 对比实验", "leaderboard.md": "best positional encoding, benchmark, length generalization, ranking, 排行榜",
    "ablations.md": "hyperparameter, RoPE base, rope_theta, number of buckets, clip, 消融实验",
    "bench.md": "speed, latency, memory, benchmark, 速度, 显存, 内存", "conform.md": "test my RoPE, unit test, verify implementation, correctness, 测试, 验证实现",
    "nbce.md": "multi-document question answering, parallel context windows, naive Bayes",
    "analyze.md": "decay, wavelength, visualize positional encoding", "explore.md": "interactive visualization, demo, animation, 交互演示",
    "story.md": "live demo, language model in the browser, past the context length, WebGPU, WebAssembly, YaRN demo, 演示", "story.zh.md": "演示 长度外推 上下文扩展",
    "predict.md": "live demo, Transformer in the browser, 演示", "predict.zh.md": "演示 外推 损失 注意力", "position_from_scratch.md": "tutorial, positional encoding explained, why positional encoding, course",
    "position_from_scratch.zh.md": "旋转位置编码 位置编码教程 位置编码 外推 图像", "claims.md": "does RoPE extrapolate, myths, replication, reproducibility, published results",
    "claims.zh.md": "位置编码 常见说法", "layer_patterns.md": "NoPE layers, iRoPE, sliding window layers, Llama 4, Gemma 3, SmolLM3, 滑动窗口层",
    "distributed.md": "DDP, FSDP, context parallel, sequence parallelism, ring attention, torchrun, multi-GPU, 多卡, 并行",
    "deploy.md": "torch.export, ONNX, onnxruntime, AOTInductor, ExecuTorch, export, serving, dynamic shapes, 部署",
    "data.md": "train on my own text, custom dataset, JSONL, Parquet, tokenizer, 自己的数据",
    "reliability.md": "resume, checkpoint, reproducibility, 断点续训",
    "design.md": "architecture, source code, internals, modules",
    "index.md": "positional encoding, position embedding, RoPE, ALiBi, PyTorch", "encodings.md": "list of positional encodings, position embedding, compare positional encodings, taxonomy, 位置编码",
    "encodings.zh.md": "位置编码 一览 比较 有哪些 列表",
}  # fmt: skip
"""Of a page, by its path in docs."""
CHAPTERS = {
    1: "why positional encoding, word order, bag of words, permutation", 2: "requirements, unique, bounded, properties",
    3: "sinusoidal encoding, sine, cosine, formula", 4: "relative position, shift, rotation matrix",
    5: "decay with distance, dot product", 6: "concatenate, add position embedding to token embedding",
    7: "content and position, attention score, relative attention", 8: "why sine and cosine, derivation",
    9: "how RoPE works, rotary embedding, rotation, complex numbers, RoPE from scratch", 10: "ALiBi, T5, relative bias",
    11: "RoPE base, rope_theta, NTK-aware, wavelength, number system", 12: "extrapolation, interpolation",
    13: "probe, layers, residual", 14: "bfloat16, float16, precision, rounding", 15: "Transformer-XL, DeBERTa, Shaw, TUPE",
    16: "long context, YaRN, attention sink, StreamingLLM", 17: "2d, image, video, M-RoPE", 18: "choice, recommendation",
}  # fmt: skip
"""Of a chapter of the guide, by its number: its title is a phrase, and people look for a subject."""


def keywords(path: str) -> str:
    """Of the page at a path of docs or at an address of the site; "": none are known."""
    path = next((page for page, place in (OPENING | RUNS).items() if path == place.replace(".md", ".html")), path)
    path = path.replace(".html", ".md")
    if chapter := re.fullmatch(r"position-(\d+)-[^/]*\.md", path):
        return CHAPTERS[int(chapter[1])]
    folder, _, file = path.removesuffix(".md").partition("/")
    if folder == "encodings" and file in ENCODINGS:
        image = ["image, ViT"] if file in OF_IMAGES else []
        return ", ".join([*filter(None, [ALIASES.get(file)]), *image, *filter(None, [CHINESE.get(file)])])
    return KEYWORDS.get(next((page for page, index in OPENING.items() if index == path), path), "")
