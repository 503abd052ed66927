"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 40rem)");
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function draw() {
  const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
  for (const [name, figure] of Object.entries(figures)) {
    const { template, ...own } = figure.layout;
    const layout = {
      ...own,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, 'Noto Sans', sans-serif", size: 13, color: css("--ink") },
      xaxis: { ...axis, ...own.xaxis }, yaxis: { ...axis, ...own.yaxis },
      hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--ink") } },
      updatemenus: (own.updatemenus || []).map(menu => ({ ...menu, bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--accent") } })),
      legend: narrow.matches ? { orientation: "h", y: -0.25 } : { x: 1.02, y: 1 },
      margin: { l: 10, r: 10, t: 20, b: 10 },
    };
    Plotly.react("plot-" + name, figure.data, layout, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
  }
}
draw();
dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);
