"use strict";
// The figures of a report with their buttons and boxes.
posenc.report = (() => {
  const { draw, plot } = posenc, { element } = plot;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll(".plot")], probes = {}, shown = {};
  const linked = decodeURIComponent(location.hash).match(/^#only=(.*)$/);  // a row of another page leads to its curves
  const hidden = new Set(), boxes = [...document.querySelectorAll("input[data-method]")];  // names whose box is not ticked

  const name = element => element.id.slice("plot-".length);

  function chosen(element) {  // the figure for the numbers of the buttons that are selected
    const own = figures[name(element)];
    if (own.kind) return own;
    const number = of => element.closest(".panel").querySelector(`select[data-choice="${of}"], input[type="range"][data-choice="${of}"], input[data-choice="${of}"]:checked`)?.value ?? 0;
    return own[element.dataset.by.split(" ").filter(Boolean).map(number).join(" ")];
  }

  function show(element) {
    const figure = chosen(element), canvas = element.querySelector("canvas"), colours = draw.theme(element);
    canvas.style.height = figure.height ? `${figure.height}px` : "";
    const seen = (figure.series || []).filter(one => !hidden.has(one.name));
    shown[name(element)] = { figure, series: seen };
    probes[name(element)] = figure.kind === "heat" ? heat(canvas, colours, figure) : draw.lines(canvas, colours, { ...figure, series: seen });
    element.querySelector(".legend").replaceChildren(...legend(element, figure, seen, colours).map(plot.legend));
    if (element.querySelector("details").open) plot.table(element.querySelector("table"), table(element));
  }

  function heat(canvas, colours, { x, y, z, texts, low, high, down, marks }) {
    return draw.heat(canvas, colours, {
      rows: z.length, columns: z[0].length, values: z.flat().map(v => v ?? NaN), texts: texts?.flat(), x, y, marks,
      pixel: draw.between(colours, low, high, down),
    });
  }

  function legend(element, figure, series, colours) {
    if (figure.kind === "heat") return [{ ramp: draw.gradient(colours.up, figure.down), texts: figure.ends }];
    if (boxes.length && series.every(one => boxes.some(box => box.dataset.method === one.name))) return [];
    if (series.every(one => one.points)) return figure.legend || [];
    return series.length > 1 && !probes[name(element)].labelled ? series.map(one => ({ stroke: one.colour, dashed: one.dash?.length, text: one.name })) : [];
  }

  const range = (low, high) => (low === undefined || low === null ? "" : ` (${draw.number(low)} to ${draw.number(high)})`);

  function words(element, row, column) {
    const { figure, series } = shown[name(element)];
    if (figure.kind === "heat") return `${figure.y.label} ${figure.y.names?.[row] ?? row}, ${figure.x.label} ${figure.x.names?.[column] ?? column}: ${value(figure, row, column)}`;
    const one = series[row];
    if (!one || one.y[column] === undefined) return "";
    if (one.texts) return `${one.name}: ${one.texts[column]}`;
    return `${one.name}: ${draw.number(one.y[column])}${range(one.low?.[column], one.high?.[column])} at ${figure.x.label} ${draw.number(one.x[column])}`;
  }

  const value = ({ words, z }, row, column) => words?.[row][column] ?? (z[row][column] === null ? "not measured" : draw.number(z[row][column]));

  function table(element) {
    const { figure, series } = shown[name(element)], caption = element.querySelector("canvas").getAttribute("aria-label");
    if (figure.kind === "heat") {
      const heads = figure.x.names || figure.z[0].map((_, at) => String(at));
      const rows = figure.z.map((cells, row) => [figure.y.names?.[row] ?? String(row), ...cells.map((_, column) => value(figure, row, column))]);
      return { caption, head: [`${figure.y.label} \\ ${figure.x.label}`, ...heads], rows };
    }
    if (series.every(one => one.points)) {
      const rows = series.flatMap(one => one.y.map((v, at) => (one.texts ? [one.name, one.texts[at]] : [one.name, one.x[at], v])));
      return { caption, head: series.some(one => one.texts) ? ["", "value"] : ["", figure.x.label, figure.y.label], rows };
    }
    const at = [...new Set(series.flatMap(one => one.x))].sort((a, b) => a - b);
    const cell = (one, x) => {
      const k = one.x.indexOf(x);
      return k < 0 || one.y[k] === null ? null : one.low && !one.band ? `${draw.number(one.y[k])}${range(one.low[k], one.high[k])}` : one.y[k];
    };
    return { caption, head: [figure.x.label, ...series.map(one => one.name)], rows: at.map(x => [draw.number(x), ...series.map(one => cell(one, x))]) };
  }

  function tick(method, seen) {
    seen ? hidden.delete(method) : hidden.add(method);
    for (const box of boxes) box.checked = !hidden.has(box.dataset.method);
  }

  const all = () => plots.forEach(show);

  for (const one of plots) {
    plot.readable(one, () => probes[name(one)], (row, column) => words(one, row, column));
    one.querySelector("details").addEventListener("toggle", () => show(one));
  }
  document.addEventListener("input", ({ target }) => {
    if (!target.dataset.texts) return;
    target.ariaValueText = target.nextElementSibling.value = target.dataset.texts.split("|")[target.value];
    target.closest(".panel").querySelectorAll(".plot").forEach(show);
  });
  document.addEventListener("change", ({ target }) => {
    if (target.dataset.choice) target.closest(".panel").querySelectorAll(".plot").forEach(show);
    if (target.dataset.method) {
      tick(target.dataset.method, target.checked);
      all();
    }
  });
  document.addEventListener("click", ({ target }) => {
    if (!target.dataset.show) return;
    for (const box of target.closest(".key").querySelectorAll("input")) tick(box.dataset.method, target.dataset.show === "all");
    all();
  });
  if (linked && boxes.some(box => box.dataset.method === linked[1])) for (const box of boxes) tick(box.dataset.method, [linked[1], "none"].includes(box.dataset.method));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  new ResizeObserver(all).observe(document.querySelector("main"));
  addEventListener("beforeprint", all);

  all();
  return { shown, probes };
})();
