"""Axial RoPE against the code of each model: the largest difference, in the table of models of docs/vision-grid.md.

    python benchmarks/axial_models.py --write    # pip install diffusers transformers timm

Queries of normal numbers in float32, two heads: of diffusion models a video of 5 frames of 6 x 9 patches, or its first frame, of
image towers 6 x 9 patches (Llama 4: 6 x 6).
"""

import argparse
import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from posenc import AxialRotary, Positions

PAGE = Path(__file__).parents[1] / "docs" / "vision-grid.md"
BEGIN, END = "<!-- models: written by benchmarks/axial_models.py -->", "<!-- end of models -->"
ROWS = dict(re.findall(r"^\| ([^|]+?) \| `(AxialRotary\([^`]+\))` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
OTHERS = {
    "Pixtral": "transformers",
    "DINOv3": "transformers",
    "Llama 4 vision": "transformers",
    "Qwen2-VL's images": "transformers",
    "EVA-02, in timm": "timm",
}
"""Rows -> the package with the model's code, where it is not diffusers."""
OF_DIFFUSERS = [name for name in ROWS if name not in OTHERS]


def made(name: str) -> AxialRotary:
    """The encoding of a row of the page."""
    encoding: AxialRotary = eval(ROWS[name], {"AxialRotary": AxialRotary})
    return encoding


def diffusers_of(name: str):
    return import_module(f"diffusers.models.transformers.transformer_{name}")


def complex_turned(x: Tensor, turns: Tensor) -> Tensor:
    """(batch, heads, n, width) by complex numbers (n, width / 2), as Z-Image and Qwen-Image do."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


def of_diffusers(name: str, frames: int, height: int, width: int):
    """The positions, and the function that rotates as the model's code does."""
    embeddings = import_module("diffusers.models.embeddings")
    video, image = Positions.grid(height, width, frames=frames), Positions.grid(height, width)
    latent = torch.zeros(1, 4, frames, height, width)

    def real(tables, half=False):
        return lambda x: embeddings.apply_rotary_emb(x, tables, use_real_unbind_dim=-2 if half else -1)

    if name == "FLUX.1":
        ids = torch.cat((torch.zeros(7, 3), torch.nn.functional.pad(image.q[0], (1, 0))))
        return Positions.grid(height, width, prefix=7), real(
            diffusers_of("flux").FluxPosEmbed(10000, [16, 56, 56])(ids)
        )
    if name == "FLUX.2":
        ids = torch.randint(0, 40, (30, 4))
        return Positions.from_ids(ids[None]), real(diffusers_of("flux2").Flux2PosEmbed(2000, [32] * 4)(ids))
    if name == "Qwen-Image":
        rope = diffusers_of("qwenimage").QwenEmbedRope(10000, [16, 56, 56], scale_rope=True)
        patches, text = rope((frames, height, width), device=torch.device("cpu"), max_txt_seq_len=11)
        after = (max(height // 2, width // 2) + torch.arange(11))[:, None].expand(-1, 3)
        at = torch.cat((after, video.q[0] - torch.tensor([0, height - height // 2, width - width // 2])))
        return Positions.from_ids(at[None]), lambda x: complex_turned(x, torch.cat((text, patches)))
    if name == "HunyuanVideo":
        return video, real(diffusers_of("hunyuan_video").HunyuanVideoRotaryPosEmbed(1, 1, [16, 56, 56], 256.0)(latent))
    if name == "HunyuanImage 2.1":
        module = diffusers_of("hunyuanimage").HunyuanImageRotaryPosEmbed((1, 1), [64, 64], 256.0)
        return image, real(module(latent[:, :, 0]))
    if name == "Wan 2.1":
        cos, sin = diffusers_of("wan").WanRotaryPosEmbed(128, (1, 1, 1), 64)(latent)
        return video, real((cos[0, :, 0], sin[0, :, 0]))
    if name == "CogVideoX":
        crop = ((2, 0), (28, 45))
        rows, columns = (
            torch.linspace(low, high * (n - 1) / n, n) for low, high, n in ((2, 28, height), (0, 45, width))
        )
        at = torch.cartesian_prod(torch.arange(frames).float(), rows, columns)
        return Positions.from_ids(at[None]), real(embeddings.get_3d_rotary_pos_embed(64, crop, (height, width), frames))
    if name == "Z-Image":
        text = torch.nn.functional.pad(1 + torch.arange(11)[:, None], (0, 2))
        ids = torch.cat((torch.nn.functional.pad(image.q[0], (1, 0), value=12), text))
        module = diffusers_of("z_image").RopeEmbedder(256.0, [32, 48, 48], [1536, 512, 512])
        return Positions.from_ids(ids[None]), lambda x: complex_turned(x, module(ids))
    if name == "Lumina 2":
        text = torch.nn.functional.pad(torch.arange(11)[:, None], (0, 2))
        ids = torch.cat((text, torch.nn.functional.pad(image.q[0], (1, 0), value=11)))
        module = diffusers_of("lumina2").Lumina2RotaryPosEmbed(10000, [32] * 3, [300, 512, 512], 1)
        turns = module(latent[:, :, 0], torch.ones(1, 11, dtype=torch.long))[3]
        return Positions.from_ids(ids[None]), lambda x: complex_turned(x, turns[0])
    if name == "Kandinsky 5":
        module = diffusers_of("kandinsky").Kandinsky5RoPE3D((16, 24, 24))
        matrices = module(
            (1, frames, height, width), [torch.arange(n) for n in (frames, height, width)], (1.0, 2.0, 2.0)
        )
        matrices = matrices.flatten(1, 4)
        at = lambda at, order: at / torch.tensor([1.0, 2.0, 2.0])  # noqa: E731
        return video.moved(at), lambda x: (matrices * x.unflatten(-1, (-1, 1, 2))).sum(-1).flatten(-2)
    if name == "HiDream-I1":
        module, ids = diffusers_of("hidream_image"), torch.randint(0, 30, (1, 20, 3)).float()
        turns = module.HiDreamImageEmbedND(10000, (64, 32, 32))(ids)
        return Positions.from_ids(ids), lambda x: module.apply_rope(*[x.transpose(1, 2)] * 2, turns)[0].transpose(1, 2)
    if name == "Cosmos":
        tables = diffusers_of("cosmos").CosmosRotaryPosEmbed(128, (128, 240, 240), (1, 1, 1), 24, (2.0, 1.0, 1.0))(
            latent, 30
        )
        return video.moved(lambda at, order: at * torch.tensor([24 / 30, 1, 1])), real(tables, half=True)
    if name == "Krea 2":
        ids = torch.randint(0, 40, (30, 3))
        return Positions.from_ids(ids[None]), real(diffusers_of("krea2").Krea2RotaryPosEmbed(1000, [32, 48, 48])(ids))
    if name == "PRX":
        prx, ids = diffusers_of("prx"), torch.randint(0, 40, (1, 30, 2))
        turns = prx.PRXEmbedND(64, 10000, [32, 32])(ids)
        return Positions.from_ids(ids), lambda x: prx.apply_rope(x, turns)
    if name == "SANA-Video":
        cos, sin = diffusers_of("sana_video").WanRotaryPosEmbed(112, (1, 1, 1), 64)(latent)
        return video, real((cos[0, :, 0], sin[0, :, 0]))
    if name == "Lumina-Next":
        turns = embeddings.get_2d_rotary_pos_embed_lumina(72, height, width).flatten(0, 1)[None]
        apply = embeddings.apply_rotary_emb
        return image, lambda x: apply(x.transpose(1, 2), turns, use_real=False).transpose(1, 2)
    if name == "Allegro":
        crop = ((0, 0), (height, width))
        *tables, _, _, _ = embeddings.get_3d_rotary_pos_embed_allegro(
            96, crop, (height, width), frames, (1.0, 2.0, 2.0)
        )
        places = [place[None] for place in video.q[0].long().unbind(-1)]
        at = lambda at, order: at / torch.tensor([1.0, 2.0, 2.0])  # noqa: E731
        return video.moved(at), lambda x: embeddings.apply_rotary_emb_allegro(x, tables, places)
    if name == "GLM-Image":
        return image, real(diffusers_of("glm_image").GlmImageRotaryPosEmbed(40, 1)(latent[:, :, 0]), half=True)
    tables = diffusers_of("cogview4").CogView4RotaryPosEmbed(40, 1, (256, 256))(latent[:, :, 0])
    return image.moved(lambda at, order: at * 256 // torch.tensor([height, width])), real(tables, half=True)


def of_transformers(name: str, height: int, width: int) -> tuple[Positions, Callable[[Tensor], Tensor]]:
    """The same for an image tower in transformers."""
    models, transformers = "transformers.models", import_module("transformers")
    image, dim = Positions.grid(height, width), made(name).head_dim
    if name == "Pixtral":
        module = import_module(f"{models}.pixtral.modeling_pixtral")
        config = transformers.PixtralVisionConfig(hidden_size=2 * dim, num_attention_heads=2, head_dim=dim)
        tables = module.PixtralVisionRotaryEmbedding(config)(torch.zeros(1), image.q[0])
        return image, lambda x: module.apply_rotary_pos_emb(x, x, *tables, unsqueeze_dim=0)[0]
    if name == "DINOv3":
        module = import_module(f"{models}.dinov3_vit.modeling_dinov3_vit")
        config = transformers.DINOv3ViTConfig(hidden_size=2 * dim, num_attention_heads=2, patch_size=4)
        tables = module.DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 4 * height, 4 * width))
        return Positions.grid(height, width, prefix=5), lambda x: module.apply_rotary_pos_emb(x, x, *tables)[0]
    if name == "Llama 4 vision":
        module = import_module(f"{models}.llama4.modeling_llama4")
        parameters = {"rope_type": "default", "rope_theta": 10000.0}
        config = transformers.Llama4VisionConfig(
            hidden_size=2 * dim, num_attention_heads=2, patch_size=4, image_size=4 * height, rope_parameters=parameters
        )
        table, grid = (
            module.Llama4VisionRotaryEmbedding(config)(torch.zeros(1)),
            Positions.grid(height, height, prefix=1),
        )
        last = Positions.from_ids(grid.q.roll(-1, 1), placed=grid.q_placed.roll(-1, 1))  # its class token
        return last, lambda x: module.vision_apply_rotary_emb(*[x.transpose(1, 2)] * 2, table)[0].transpose(1, 2)
    module = import_module(f"{models}.qwen2_vl.modeling_qwen2_vl")
    config = import_module(f"{models}.qwen2_vl.configuration_qwen2_vl").Qwen2VLVisionConfig(
        embed_dim=2 * dim, num_heads=2
    )
    cos, sin = module.Qwen2VLVisionRotaryEmbedding(config)(torch.zeros(1), image.q[0].long())
    return image, lambda x: module.apply_rotary_pos_emb_vision(*[x[0].transpose(0, 1)] * 2, cos, sin)[0].transpose(
        0, 1
    )[None]


def of_timm(name: str, height: int, width: int) -> tuple[Positions, Callable[[Tensor], Tensor]]:
    """The same for a model in timm, on a grid of twice the training size."""
    layers = import_module("timm.layers.pos_embed_sincos")
    trained = [height // 2, width // 2]
    module = layers.RotaryEmbeddingCat(
        made(name).head_dim, in_pixels=False, feat_shape=[height, width], ref_feat_shape=trained
    )
    stretched = torch.tensor(trained) / torch.tensor([height, width])
    at = Positions.grid(height, width).moved(lambda at, order: at * stretched)
    return at, lambda x: layers.apply_rot_embed_cat(x, module.get_embed(), half=False)


def measured(name: str) -> tuple[str, float]:
    """The release, and the largest difference."""
    torch.manual_seed(0)
    package = OTHERS.get(name, "diffusers")
    if package == "diffusers":
        positions, theirs = of_diffusers(name, 5, 6, 9)
    else:
        positions, theirs = (of_timm if package == "timm" else of_transformers)(name, 6, 9)
    q = torch.randn(1, 2, positions.num_queries, made(name).head_dim)
    ours, _ = made(name).rotate(q, q, positions)
    return f"{package} {version(package)}", float((ours - theirs(q)).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table of docs/vision-grid.md")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    lines = [
        "| model | encoding | coordinates of patches; of text | largest difference | from the code of |",
        "|---|---|---|---|---|",
    ]
    for line in old.splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[0] in ROWS:
            release, difference = measured(cells[0])
            lines.append("| " + " | ".join([*cells[:3], f"{difference:.0e}", release]) + " |")
            print(f"{cells[0]}: {difference:.1e}, {release}", flush=True)
    if options.write:
        PAGE.write_text(before + "\n".join([BEGIN, *lines, END]) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
