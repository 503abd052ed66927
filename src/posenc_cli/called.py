# SPDX-License-Identifier: Apache-2.0
"""What people call an encoding, by which `posenc list --search` and the documentation's site find it. Imports nothing."""

CHINESE = {
    "none": "无位置编码", "normalized": "归一化位置", "integer": "整数位置", "binary": "二进制位置编码", "sinusoidal": "正弦位置编码 三角函数",
    "learned": "可学习位置编码 绝对位置编码", "hierarchical": "层次分解位置编码", "multiplicative": "相乘位置编码", "complex_order": "复数词序编码",
    "axial_table": "轴向位置表", "grid_table": "图像块位置表 二维位置编码", "grid_sinusoidal": "二维正弦位置编码 图像",
    "floater": "连续动力系统位置编码", "rope": "旋转位置编码 旋转式位置编码", "p_rope": "部分旋转位置编码", "decoupled_rope": "解耦旋转位置编码 多头潜在注意力",
    "xpos": "可外推旋转位置编码 衰减", "head_rope": "逐头旋转位置编码", "learned_rope": "可学习频率的旋转位置编码", "fope": "傅里叶位置编码",
    "rope_pp": "旋转位置编码 虚部", "axial_rope": "轴向旋转位置编码 二维旋转位置编码 图像", "m_rope": "多模态旋转位置编码 视频",
    "mixed_rope": "混合二维旋转位置编码 图像", "liere": "李群旋转位置编码", "comrope": "可交换旋转位置编码", "cayley_string": "凯莱旋转位置编码",
    "pope": "极坐标位置编码", "selective_rope": "选择性旋转位置编码", "mamba3_rope": "数据相关旋转", "carope": "上下文感知旋转位置编码",
    "rove": "值的旋转", "shaw": "相对位置表示", "transformer_xl": "相对位置编码", "xlnet": "相对位置编码", "tupe": "解绑位置编码",
    "tupe_r": "解绑相对位置编码", "deberta": "解耦注意力", "deberta_v2": "解耦注意力", "projected_relative": "投影相对偏置",
    "grape_a": "门控线性偏置", "dape": "数据自适应位置编码", "selective_attention": "选择性注意力", "wall": "逐通道衰减", "path": "豪斯霍尔德变换",
    "t5": "T5 相对位置偏置", "sines": "可学习正弦偏置", "alibi": "线性偏置 ALiBi 注意力", "kerple": "核相对位置编码", "sandwich": "三明治偏置",
    "fire": "函数插值相对位置编码", "cope": "上下文位置编码", "fox": "遗忘门 遗忘注意力", "swin": "窗口相对位置偏置 图像", "beit": "相对位置偏置 图像",
    "swin_v2": "对数间隔连续位置偏置 图像", "grid_alibi": "二维线性偏置 图像", "shape": "随机平移位置", "cape": "连续增强位置编码",
    "randomized": "随机位置编码", "pose": "跳跃式位置训练", "softmax_n": "注意力汇", "sink": "可学习注意力汇", "log_n": "对数缩放 熵不变性",
    "temperature": "注意力温度", "step_temperature": "分段注意力温度", "stick_breaking": "折棍注意力", "window": "滑动窗口注意力",
    "chunks": "分块注意力", "prefix_kv": "前缀调优 可学习前缀",
}  # fmt: skip
"""Of encodings."""
ALIASES = {
    "alibi": "alibi extrapolation, linear bias, train short test long", "rope": "RoPE, rotary embedding, rotary positional embedding, RoFormer",
    "axial_rope": "2d rope, rope 2d image, vision rope, ViT", "mixed_rope": "2d rope, rope 2d image, RoPE-Mixed, ViT",
    "none": "NoPE, no position embedding", "t5": "relative position bias, T5 bias, bucketed bias", "softmax_n": "attention sink, off by one softmax",
    "sink": "attention sink, gpt-oss", "window": "sliding window attention, local attention, Mistral", "m_rope": "Qwen2-VL, video, multimodal",
    "sinusoidal": "sinusoidal positional encoding, Attention is all you need", "learned": "absolute position embedding, BERT, GPT-2",
    "swin": "relative position bias, Swin Transformer", "fox": "forgetting transformer", "deberta_v2": "DeBERTa v3",
    "hierarchical": "BERT longer than 512",
}  # fmt: skip
"""Of encodings, in English."""
