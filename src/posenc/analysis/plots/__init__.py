"""Every plot of `posenc.analysis`: functions of a finding that return a matplotlib figure and take `ax`."""

from posenc.analysis.plots.codes import heat_map
from posenc.analysis.plots.scores import bias_by_distance, effective_scores, scores_by_head, wavelengths

__all__ = ["bias_by_distance", "effective_scores", "heat_map", "scores_by_head", "wavelengths"]
