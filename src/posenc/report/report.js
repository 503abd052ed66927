"use strict";
// The figures of a report with their buttons and boxes, and tables that are sorted and filtered. All of both can be saved or copied,
// and what was chosen stands in the address: "by-size.measure=1&sort=ranking.2.descending&find=rope&only=rope&only=none".
posenc.report = (() => {
  const { draw, plot, saving, sorting } = posenc, { element } = plot;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll(".plot")], probes = {}, shown = {};
  const hidden = new Set(), boxes = [...document.querySelectorAll("input[data-method]")];  // names whose box is not ticked

  const name = element => element.id.slice("plot-".length);

  function chosen(element) {  // the figure for the numbers of the buttons that are selected
    const own = figures[name(element)];
    if (own.kind) return own;
    const number = of => element.closest(".panel").querySelector(`select[data-choice="${of}"], input[data-choice="${of}"]:checked`)?.value ?? 0;
    return own[element.dataset.by.split(" ").filter(Boolean).map(number).join(" ")];
  }

  function show(element) {
    const figure = chosen(element), canvas = element.querySelector("canvas"), colours = draw.theme(element);
    canvas.style.height = figure.height ? `${figure.height}px` : "";
    const seen = (figure.series || []).filter(one => !hidden.has(one.name));
    shown[name(element)] = { figure, series: seen };
    const probe = drawn(figure, seen, canvas, colours);
    probes[name(element)] = probe;
    const boxed = boxes.length && seen.every(one => boxes.some(box => box.dataset.method === one.name));
    element.querySelector(".legend").replaceChildren(...(boxed ? [] : legend(figure, seen, colours, probe)).map(plot.legend));
    if (element.querySelector("details").open) plot.table(element.querySelector("table"), table(element));
  }

  function drawn(figure, series, canvas, colours) {
    return figure.kind === "heat" ? heat(canvas, colours, figure) : draw.lines(canvas, colours, { ...figure, series });
  }

  function heat(canvas, colours, { x, y, z, texts, low, high, down, marks }) {
    return draw.heat(canvas, colours, {
      rows: z.length, columns: z[0].length, values: z.flat().map(v => v ?? NaN), texts: texts?.flat(), x, y, marks,
      pixel: draw.between(colours, low, high, down),
    });
  }

  function legend(figure, series, colours, probe) {
    if (figure.kind === "heat") return [{ ramp: draw.gradient(colours.up, figure.down), texts: figure.ends }];
    if (series.every(one => one.points)) return figure.legend || [];
    return series.length > 1 && !probe.labelled ? series.map(one => ({ stroke: one.colour, dashed: one.dash?.length, text: one.name })) : [];
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
      return k < 0 || one.y[k] === null ? null : one.low ? `${draw.number(one.y[k])}${range(one.low[k], one.high[k])}` : one.y[k];
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
  document.addEventListener("change", ({ target }) => {
    if (target.dataset.choice) target.closest(".panel").querySelectorAll(".plot").forEach(show);
    if (target.dataset.method) {
      tick(target.dataset.method, target.checked);
      all();
    }
    remember();
  });
  document.addEventListener("click", ({ target }) => {
    if (!target.dataset.show) return;
    for (const box of target.closest(".key").querySelectorAll("input")) tick(box.dataset.method, target.dataset.show === "all");
    all();
    remember();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  new ResizeObserver(all).observe(document.querySelector("main"));
  addEventListener("beforeprint", all);

  // ------------------------------------------------------------------ tables

  const sorted = new Map();  // the id of a table -> column and direction

  for (const found of document.querySelectorAll("table.sortable")) {
    sorting.sortable(found, (...at) => {
      sorted.set(found.id, at);
      remember();
    });
  }
  for (const input of document.querySelectorAll("input[data-filters]")) {
    const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
    input.addEventListener("input", () => {
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(input.value.trim().toLowerCase());
      remember();
    });
  }

  // ------------------------------------------------------------------ what was chosen, in the address

  const choices = () => [...document.querySelectorAll(".panel select[data-choice], .panel input[data-choice]:checked")];
  const usual = new Map(choices().map(choice => [choiceName(choice), choice.value]));

  function choiceName(choice) {
    return `${choice.closest(".panel").id}.${choice.dataset.choice}`;
  }

  function remember() {
    const now = new URLSearchParams(), find = document.querySelector("input[data-filters]");
    for (const choice of choices()) if (usual.get(choiceName(choice)) !== choice.value) now.set(choiceName(choice), choice.value);
    for (const [id, [column, direction]] of sorted) now.append("sort", `${id}.${column}.${direction}`);
    if (find?.value) now.set("find", find.value);
    if (hidden.size) for (const box of boxes) if (box.checked && !now.getAll("only").includes(box.dataset.method)) now.append("only", box.dataset.method);
    history.replaceState(null, "", `#${now}`);
  }

  function recall() {
    const asked = new URLSearchParams(location.hash.slice(1)), only = asked.getAll("only");
    if (!location.hash.includes("=")) return;  // a heading's
    for (const [key, value] of asked) {
      const [id, name] = key.split(".");
      for (const choice of document.getElementById(id)?.querySelectorAll(`[data-choice="${CSS.escape(name ?? "")}"]`) ?? []) {
        if (choice.tagName === "SELECT" && [...choice.options].some(option => option.value === value)) choice.value = value;
        else if (choice.value === value) choice.checked = true;
      }
    }
    for (const one of asked.getAll("sort")) {
      const [id, text, direction] = one.split("."), found = document.getElementById(id), column = Number.parseInt(text, 10);
      if (!found?.matches("table.sortable") || !found.tHead.rows[0].cells[column]) continue;
      sorting.sort(found, column, direction !== "descending");
      sorted.set(id, [column, direction]);
    }
    if (boxes.some(box => only.includes(box.dataset.method))) for (const box of boxes) tick(box.dataset.method, only.includes(box.dataset.method));
    const find = document.querySelector("input[data-filters]");
    if (find && asked.has("find")) {
      find.value = asked.get("find");
      find.dispatchEvent(new Event("input"));
    }
  }

  // ------------------------------------------------------------------ pictures and tables to take along

  function buttons(words, kinds, take) {
    const status = element("span", { role: "status" }), line = element("p", { className: "saving" }, words);
    for (const kind of kinds) {
      const button = element("button", { type: "button" }, kind);
      button.addEventListener("click", async () => { status.textContent = await take(kind); });
      line.append(button);
    }
    line.append(status);
    return line;
  }

  async function save(one, kind) {
    const { figure, series } = shown[name(one)], title = one.querySelector("canvas").getAttribute("aria-label"), file = `posenc-${name(one)}.${kind.toLowerCase()}`;
    let probe;
    const view = {
      height: figure.height,
      draw: (canvas, colours) => { probe = drawn(figure, series, canvas, colours); },
      legend: (_, colours) => legend(figure, series, colours, probe),
    };
    const text = saving.svg(view, title, null, draw.theme(one), document.title);
    saving.file(file, kind === "SVG" ? new Blob([text], { type: "image/svg+xml" }) : await saving.png(text));
    return `Saved as ${file}.`;
  }

  const WRITERS = {
    Markdown(rows) {
      const escaped = cell => cell.replace(/[\\`*_[\]<>|~&$@]|:(?=\/\/)|(?<=www)\./g, "\\$&");
      const [head, ...body] = rows.map(row => `| ${row.map(escaped).join(" | ")} |`);
      return [head, `|${rows[0].map((_, at) => (at ? " ---: |" : " --- |")).join("")}`, ...body].join("\n");
    },
    CSV(rows) {
      const formula = cell => /^[=+\-@＝＋－＠]/.test(cell) && !/^[+-]?([\d.]+(e[+-]?\d+)?|inf|nan)$/.test(cell) ? `'${cell}` : cell;
      const quoted = cell => (/[",]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
      return rows.map(row => row.map(cell => quoted(formula(cell))).join(",")).join("\n");
    },
    LaTeX(rows) {
      const signs = { "\\": "\\textbackslash{}", "±": "$\\pm$", "−": "$-$", "–": "--", "×": "$\\times$", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$", "`": "\\textasciigrave{}", "'": "\\textquotesingle{}", "[": "{[}", "]": "{]}", "*": "{*}" };
      const [head, ...body] = rows.map(row => `${row.map(cell => cell.replace(/[\\±−–×~^<>&%$#_{}`'[\]*]/g, c => signs[c] ?? `\\${c}`)).join(" & ")} \\\\`);
      return [`\\begin{tabular}{l${"r".repeat(rows[0].length - 1)}}`, "\\toprule", head, "\\midrule", ...body, "\\bottomrule", "\\end{tabular}"].join("\n");
    },
  };

  const rowsOf = found => [...found.rows].filter(row => !row.hidden).map(row => [...row.cells].map(cell => {
    const copy = cell.cloneNode(true);
    for (const part of copy.querySelectorAll("details")) part.remove();
    for (const part of copy.querySelectorAll("small, .pill, br")) part.before(" ");
    return copy.textContent.replace(/\s+/g, " ").trim();
  }));

  async function copied(found, kind) {
    const text = `${WRITERS[kind](rowsOf(found))}\n`;
    try {
      await navigator.clipboard.writeText(text);
      return `The table is copied as ${kind}.`;
    } catch {
      const file = `posenc-${found.id || "table"}.${{ Markdown: "md", CSV: "csv", LaTeX: "tex" }[kind]}`;
      saving.file(file, new Blob([text], { type: "text/plain" }));
      return `This page may not write to the clipboard. Saved as ${file}.`;
    }
  }

  for (const one of plots) one.querySelector(".readout").after(buttons("Save:", ["SVG", "PNG"], kind => save(one, kind)));
  for (const found of document.querySelectorAll("main .scroll > table")) found.parentElement.after(buttons("Copy:", Object.keys(WRITERS), kind => copied(found, kind)));

  recall();
  addEventListener("hashchange", () => {
    recall();
    all();
  });
  all();
  return { shown, probes, writers: WRITERS };
})();
