"use strict";
// What reports and the explorer have around a drawing: values read by pointer and by keys, a legend, a table.
posenc.plot = (() => {
  function element(tag, properties = {}, ...children) {
    const found = Object.assign(document.createElement(tag), properties);
    found.append(...children);
    return found;
  }

  // probe(): of the drawing, or null where there is none; read(row, column): the words about a value.
  function readable(figure, probe, read) {
    const canvas = figure.querySelector("canvas"), cursor = figure.querySelector(".cursor"), readout = figure.querySelector(".readout");
    let at = { row: 0, column: 0 };
    const show = found => {
      at = found;
      const box = probe().place(at.row, at.column);
      cursor.hidden = false;
      cursor.style.cssText = `left: ${box.x - 1}px; top: ${box.y - 1}px; width: ${box.width + 2}px; height: ${box.height + 2}px`;
      readout.textContent = read(at.row, at.column);
    };
    const leave = () => {
      cursor.hidden = true;
      readout.textContent = "";
    };
    for (const seen of ["pointermove", "pointerdown"]) {
      canvas.addEventListener(seen, event => probe() && show(probe().find(event.offsetX, event.offsetY)));
    }
    canvas.addEventListener("pointerleave", event => event.pointerType === "mouse" && leave());
    canvas.addEventListener("blur", leave);
    canvas.addEventListener("keydown", event => {
      const [down, right] = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key] || [];
      if (event.key === "Escape") leave();
      if (down === undefined || !probe()) return;
      event.preventDefault();
      const many = event.shiftKey ? 8 : 1;
      show(probe().move(at, down * many, right * many));
    });
    return leave;
  }

  // {ramp: CSS, texts: of its ends}, {blank, text}, {dot: colour, hollow, text} or {stroke: colour, dashed, text}
  function legend(item) {
    const mark = element("i", { ariaHidden: "true" });
    if (item.ramp) {
      mark.className = "ramp";
      mark.style.background = item.ramp;
      return element("span", {}, item.texts[0], mark, item.texts[1]);
    }
    if (item.blank) mark.className = "blank";
    else if (item.dot) {
      mark.className = "dot";
      mark.style.cssText = `border-color: ${item.dot}; background: ${item.hollow ? "none" : item.dot}`;
    } else mark.style.cssText = `border-top-color: ${item.stroke}; border-top-style: ${item.dashed ? "dashed" : "solid"}`;
    return element("span", {}, mark, item.text);
  }

  function row(cell, contents) {
    return element("tr", {}, ...contents.map(content => element(cell, {}, content)));
  }

  function data(value) {
    if (Number.isNaN(value)) return posenc.language?.say("hidden") ?? "hidden";
    if (value === null) return "–";
    return typeof value === "string" ? value : element("data", { value: String(value) }, posenc.draw.number(value));
  }

  // rows: a name, then numbers or texts
  function table(found, { caption, head, rows }) {
    const body = rows.map(([name, ...cells]) => {
      const line = row("td", cells.map(data));
      line.prepend(element("th", { scope: "row" }, name));
      return line;
    });
    found.replaceChildren(element("caption", {}, caption), element("thead", {}, row("th", head)), element("tbody", {}, ...body));
  }

  return { element, readable, legend, row, data, table };
})();
