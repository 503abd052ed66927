"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 40rem)");
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const hidden = new Set();  // methods whose box is not ticked

function chosen(element) {  // the numbers of the buttons that are down, for the choices this plot depends on
  const names = (element.dataset.by || "").split(" ").filter(Boolean);
  const down = name => element.closest(".panel").querySelector(`input[data-choice="${name}"]:checked`);
  return names.map(name => down(name)?.value ?? 0).join(" ");
}

function draw(name) {
  const element = document.getElementById("plot-" + name);
  const { data, layout: own } = "data" in figures[name] ? figures[name] : figures[name][chosen(element)];
  const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
  const layout = {
    ...own,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, 'Noto Sans', sans-serif", size: 13, color: css("--ink") },
    xaxis: { ...axis, ...own.xaxis }, yaxis: { ...axis, ...own.yaxis },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--accent") },
    hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--ink") } },
    updatemenus: (own.updatemenus || []).map(menu => ({ ...menu, bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--accent") } })),
    legend: narrow.matches || element.dataset.by !== undefined ? { orientation: "h", y: -0.25 } : { x: 1.02, y: 1 },
    margin: { l: 10, r: 10, t: 20, b: 10 },
  };
  if (own.coloraxis) {
    layout.coloraxis = { ...own.coloraxis, colorscale: [[0, css("--least")], [1, css("--most")]] };
  }
  const ink = { textfont: { color: css("--ink"), size: narrow.matches ? 11 : 14 } };
  const seen = data.map(trace => ({ ...trace, ...(trace.type === "heatmap" && ink), visible: !hidden.has(trace.meta) }));
  Plotly.react(element, seen, layout, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"], ...(narrow.matches && { displayModeBar: false }) });
  const key = element.closest(".panel")?.querySelector(".key");
  if (key) key.hidden = own.showlegend !== false;
}

function drawAll() {
  Object.keys(figures).forEach(draw);
}

function show(method, seen) {
  seen ? hidden.delete(method) : hidden.add(method);
  document.querySelectorAll("input[data-method]").forEach(box => { box.checked = !hidden.has(box.dataset.method); });
}

document.addEventListener("change", ({ target }) => {
  if (target.dataset.choice) {
    target.closest(".panel").querySelectorAll(".plot").forEach(plot => draw(plot.id.slice("plot-".length)));
  } else if (target.dataset.method) {
    show(target.dataset.method, target.checked);
    drawAll();
  }
});
document.addEventListener("click", ({ target }) => {
  if (target.dataset.show) {
    target.closest(".key").querySelectorAll("input").forEach(box => show(box.dataset.method, target.dataset.show === "all"));
    drawAll();
  }
});
drawAll();
dark.addEventListener("change", drawAll);
narrow.addEventListener("change", drawAll);
