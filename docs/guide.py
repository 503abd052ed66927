"""Runs the snippets of docs/position_from_scratch.md in order, as one script. `make guide` writes their figures to
docs/images/position, with English and with Chinese labels, and what they print into both editions."""

import ast
import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

from matplotlib import rc_context, rcsetup
from matplotlib.figure import Figure

from posenc.analysis.finding import PALETTE, STYLE

DOCS = Path(__file__).resolve().parent
if str(DOCS) not in sys.path:
    sys.path.append(str(DOCS))  # where guide_code is
PAGES = [DOCS / "position_from_scratch.md", DOCS / "position_from_scratch.zh.md"]
SNIPPET = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
"""A snippet, and what it prints."""
FIGURE = re.compile(r"!\[[^\]]+\]\(images/position/(\w+)\.(?:zh\.)?svg\)")
TYPE = {"font.size": 12, "axes.titlesize": 12, "legend.fontsize": 12}
WIDTH = 5.2
"""Letters are larger and figures narrower, in inches, than in reports: a phone of 390 pixels shrinks them to ten pixels."""
LABEL = re.compile(r"(<text [^>]*?>)([^<]*)(</text>)")
CHINESE = {
    "# pairs, base #": "# 对分量，底数 #",
    "H of each pair": "每一对 token 各自的 H",
    "R² of position": "位置的 R²",
    "a tenth of a turn": "十分之一圈",
    "all arithmetic in it": "全部运算都舍入",
    "also in front": "前面也有问题",
    "base #": "底数 #",
    "at # and #": "在 # 与 #",
    "bites": "咬",
    "bits": "二进制数位",
    "bucket": "桶",
    "channel": "分量",
    "channel, +# positions": "分量，# 个位置之后",
    "codes, base #": "编码，底数 #",
    "content-content": "内容—内容",
    "content-position": "内容—位置",
    "cos and sin rounded": "舍入 cos 与 sin",
    "density": "密度",
    "diagonal H: distance explains #%": "对角阵 H：距离解释 #%",
    "digits and pairs, fast ones first": "数位与各对分量，快的在前",
    "distance": "距离",
    "distance n - m": "距离 n - m",
    "dot product of two random unit vectors, # dimensions": "两个随机单位向量的内积，# 维",
    "exact": "精确分布",
    "extrapolation (default)": "直接外推（default）",
    "factor of the weight": "权重的倍数",
    "complete a rotation": "转满一圈",
    "frequencies rounded": "舍入频率",
    "full H: distance explains #%": "完整的 H：距离解释 #%",
    "head": "head",
    "identity H: distance explains #%": "单位阵 H：距离解释 #%",
    "integral": "积分",
    "interpolation (linear)": "内插（linear）",
    "keys: left scores, right weights": "key：左为分数，右为权重",
    "layer (#: input of the first)": "层（#：第一层的输入）",
    "man": "人",
    "mean pₘ H pₙ, over its largest": "pₘ H pₙ 的平均，与最大值之比",
    "mean size of partial sums": "部分和的平均模长",
    "do not": "转不满一圈",
    "dog": "狗",
    "ntk": "NTK",
    "ntk_mixed": "NTK 混合进制",
    "pair": "第几对分量",
    "pair #": "第 # 对",
    "pair of channels": "第几对分量",
    "place of the fact, in percent of the text": "事实所在的位置（占文本的百分比）",
    "position": "位置",
    "position-content": "位置—内容",
    "position-position": "位置—位置",
    "positions": "位置",
    "wavelength (positions)": "波长（位置数）",
    "positions rounded": "舍入位置",
    "posenc's module": "posenc 的模块",
    "product rounded": "舍入乘积",
    "queries": "query",
    "question at the end": "问题在末尾",
    "radians": "弧度",
    "reached in # positions": "# 个位置内到达过",
    "right answers, in percent": "答对的百分比",
    "rope in bfloat#": "RoPE，bfloat#",
    "sampled": "采样",
    "share of the scores' variance": "占分数方差的比例",
    "shuffled positions": "打乱位置",
    "slope": "斜率",
    "their sines": "同周期的正弦",
    "training length, #": "训练长度 #",
    "turn reached in # positions": "# 个位置内转过的圈数",
    "untrained": "未训练",
    "variance": "方差",
    "with residuals": "有残差",
    "without residuals": "无残差",
    "words": "词",
    "written by the layer": "该层写入的部分",
}
"""The labels of figures, # for each number."""


def run(page: Path, folder: Path) -> list[str]:
    """What each snippet of a page prints. One that ends with a figure draws the picture linked next: it goes to
    images/position in the folder."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    printed = []
    with patch.dict(STYLE, TYPE), rc_context(STYLE | {"axes.prop_cycle": rcsetup.cycler("color", PALETTE)}):
        for snippet in SNIPPET.finditer(text):
            *before, last = ast.parse(snippet[1]).body
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(ast.Module(before, []), page.name, "exec"), names)
                if isinstance(last, ast.Expr):
                    shown = eval(compile(ast.Expression(last.value), page.name, "eval"), names)
                    if isinstance(shown, Figure):
                        draw(shown, folder / "images/position", FIGURE.search(text, snippet.end())[1])
                else:
                    exec(compile(ast.Module([last], []), page.name, "exec"), names)
            printed.append(out.getvalue())
    return printed


def draw(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure with labels in both languages. They stay text, which the reader's fonts draw sharply at any size."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.set_figwidth(min(WIDTH, figure.get_figwidth()))
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) if axis.get_scale() == "log"):
        axis.set_major_formatter("{x:g}")  # exponents would be smaller
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"[ \t]+$", "", drawn.getvalue(), flags=re.MULTILINE)
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    (folder / f"{name}.zh.svg").write_text(chinese(svg), encoding="utf-8")


def chinese(svg: str) -> str:
    """The drawing with Chinese labels.

    Raises:
        KeyError: a label with words that CHINESE lacks.
    """

    def translated(found: re.Match[str]) -> str:
        label = found[2].strip()
        if not re.search(r"[A-Za-z]{2}", label):
            return found[0]
        numbers = iter(re.findall(NUMBER, label))
        return found[1] + re.sub("#", lambda _: next(numbers), CHINESE[re.sub(NUMBER, "#", label)]) + found[3]

    return LABEL.sub(translated, svg.replace("<svg ", '<svg xml:lang="zh-Hans" ', 1))


NUMBER = r"\d+(?:\.\d+)?(?:e\+?\d+)?"


def rewrite(page: Path, printed: list[str]) -> None:
    """Put what the snippets print below them."""
    texts = iter(f"\n\n```text\n{text}```" if text else "" for text in printed)
    new = SNIPPET.sub(lambda found: f"```python\n{found[1]}```{next(texts)}", page.read_text(encoding="utf-8"))
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    shown = run(PAGES[0], DOCS)
    for edition in PAGES:
        rewrite(edition, shown)
