"use strict";
// Views as files. A view draws on a canvas; here the canvas is replaced by one that writes SVG, so that lines and letters stay
// lines and letters. A PNG is that SVG, drawn by the browser.
posenc.saving = (() => {
  const TITLE = 30, LEGEND = 28, SIZE = { width: 720, height: 440 };
  const CELLS = 65536;  // of a heat map; a larger one becomes an image inside the SVG, one pixel a cell
  const SHARP = 3;  // pixels of a PNG per pixel of the SVG
  const number = value => String(Number(value.toFixed(2)));
  const NO_XML = /[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;
  const escaped = text => String(text).replace(NO_XML, "\ufffd").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
  const attributes = all => Object.entries(all).filter(([, value]) => value !== undefined).map(([name, value]) => ` ${name}="${escaped(value)}"`).join("");

  // A canvas of a size that draw.js can draw on. parts: what was drawn, as elements of SVG.
  function canvas(width, height) {
    const parts = [], context = recorder(parts);
    return { clientWidth: width, clientHeight: height, width, height, parts, getContext: () => context };
  }

  // What draw.js asks of a CanvasRenderingContext2D.
  function recorder(parts) {
    const measure = new OffscreenCanvas(1, 1).getContext("2d");
    const usual = { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "12px sans-serif", textAlign: "left", textBaseline: "alphabetic", lineJoin: "miter", dash: [], shift: [0, 0], turn: 0, clip: undefined };
    const states = [];
    let path = "", clips = 0;
    const anchors = { left: "start", center: "middle", right: "end" }, baselines = { top: 0.78, middle: 0.35, bottom: -0.22, alphabetic: 0 };
    const at = (x, y) => `${number(x + self.shift[0])} ${number(y + self.shift[1])}`;
    const put = (name, own, inside = "") => {
      const opacity = self.globalAlpha === 1 ? undefined : self.globalAlpha;
      parts.push(`<${name}${attributes({ ...own, opacity, "clip-path": self.clip })}${inside ? `>${inside}</${name}>` : "/>"}`);
    };
    const stroked = () => ({
      fill: "none", stroke: self.strokeStyle, "stroke-width": number(self.lineWidth),
      "stroke-linejoin": self.lineJoin === "miter" ? undefined : self.lineJoin, "stroke-dasharray": self.dash.length ? self.dash.join(" ") : undefined,
    });
    const rectangle = (x, y, width, height) => ({ x: number(x + self.shift[0]), y: number(y + self.shift[1]), width: number(width), height: number(height) });
    function letters(text, x, y, most, paint) {
      const size = parseFloat(self.font), wide = self.measureText(text).width;
      const place = at(x, y + 0).split(" "), family = self.font.replace(/^[^ ]+ /, "");
      put("text", {
        x: place[0], y: number(Number(place[1]) + size * baselines[self.textBaseline]), "font-size": number(size), "font-family": family, "text-anchor": anchors[self.textAlign],
        transform: self.turn ? `rotate(${number((self.turn * 180) / Math.PI)} ${place.join(" ")})` : undefined, ...paint,
        ...(most !== undefined && wide > most ? { textLength: number(most), lengthAdjust: "spacingAndGlyphs" } : {}),
      }, escaped(text));
    }
    const self = {
      ...usual,
      setTransform() {}, clearRect() {},
      save: () => states.push(Object.fromEntries(Object.keys(usual).map(name => [name, self[name]]))),
      restore: () => Object.assign(self, states.pop()),
      translate: (x, y) => { self.shift = [self.shift[0] + x, self.shift[1] + y]; },
      rotate: angle => { self.turn += angle; },
      setLineDash: dash => { self.dash = dash; },
      measureText(text) {
        measure.font = self.font;
        return measure.measureText(text);
      },
      beginPath: () => { path = ""; },
      closePath: () => { path += "Z"; },
      moveTo: (x, y) => { path += `M${at(x, y)}`; },
      lineTo: (x, y) => { path += `${path ? "L" : "M"}${at(x, y)}`; },
      bezierCurveTo: (a, b, c, d, x, y) => { path += `C${at(a, b)} ${at(c, d)} ${at(x, y)}`; },
      rect: (x, y, width, height) => { path += `M${at(x, y)}h${number(width)}v${number(height)}h${number(-width)}Z`; },
      arc(x, y, radius, from, to) {
        const [start, half] = [from, (from + to) / 2].map(angle => at(x + radius * Math.cos(angle), y + radius * Math.sin(angle)));
        const end = at(x + radius * Math.cos(to), y + radius * Math.sin(to)), r = number(radius);
        path += `${path ? "L" : "M"}${start}A${r} ${r} 0 0 1 ${half}A${r} ${r} 0 0 1 ${end}`;
      },
      clip() {
        self.clip = `url(#clip${++clips})`;
        parts.push(`<clipPath id="clip${clips}"><path d="${path}"/></clipPath>`);
      },
      fill: () => put("path", { d: path, fill: self.fillStyle }),
      stroke: () => put("path", { d: path, ...stroked() }),
      fillRect: (x, y, width, height) => put("rect", { ...rectangle(x, y, width, height), fill: self.fillStyle }),
      strokeRect: (x, y, width, height) => put("rect", { ...rectangle(x, y, width, height), ...stroked() }),
      fillText: (text, x, y, most) => letters(text, x, y, most, { fill: self.fillStyle }),
      strokeText: (text, x, y, most) => letters(text, x, y, most, stroked()),
      drawImage: (image, x, y, width, height) => parts.push(cells(image, rectangle(x, y, width, height))),
    };
    return self;
  }

  // The cells of a heat map: runs of one colour in a row, those of a colour in one path.
  function cells(image, { x, y, width, height }) {
    const [columns, rows] = [image.width, image.height];
    const scale = `translate(${x} ${y}) scale(${Number(width) / columns} ${Number(height) / rows})`;
    if (columns * rows > CELLS) return `<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" href="${bitmap(image)}"/>`;
    const pixels = new Uint32Array(image.getContext("2d").getImageData(0, 0, columns, rows).data.buffer), runs = new Map();
    for (let row = 0; row < rows; row++) {
      for (let from = 0, to = 0; from < columns; from = to) {
        const colour = pixels[row * columns + from];
        while (to < columns && pixels[row * columns + to] === colour) to += 1;
        if (colour >>> 24) runs.set(colour, `${runs.get(colour) || ""}M${from} ${row}h${to - from}v1h${from - to}z`);
      }
    }
    const css = colour => `#${[0, 8, 16].map(by => ((colour >>> by) & 255).toString(16).padStart(2, "0")).join("")}`;
    const drawn = [...runs].map(([colour, d]) => `<path fill="${css(colour)}" d="${d}"/>`).join("");
    return `<g transform="${scale}" shape-rendering="crispEdges">${drawn}</g>`;
  }

  function bitmap(image) {
    const shown = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
    shown.getContext("2d").drawImage(image, 0, 0);
    return shown.toDataURL();
  }

  // A view of a model as SVG, with its title, its legend, and the state's text as the description.
  function svg(view, title, model, colours, about) {
    const { width } = SIZE, height = view.height || SIZE.height, plot = canvas(width, height), around = canvas(width, TITLE + height + LEGEND), pen = around.getContext();
    view.draw(plot, colours, model);
    Object.assign(pen, { font: colours.font.replace(/^\d+px/, "15px"), fillStyle: colours.ink });
    pen.fillText(title, 14, 20);
    key(pen, colours, view.legend(model, colours), TITLE + height + 12);
    const size = `width="${width}" height="${TITLE + height + LEGEND}" viewBox="0 0 ${width} ${TITLE + height + LEGEND}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size}><title>${escaped(title)}</title><desc>${escaped(about)}</desc><rect width="100%" height="100%" fill="${colours.ground}"/>${around.parts.join("")}<g transform="translate(0 ${TITLE})">${plot.parts.join("")}</g></svg>`;
  }

  function key(pen, colours, items, y) {
    let x = 60;
    Object.assign(pen, { font: colours.font, textBaseline: "middle" });
    const write = text => {
      pen.fillStyle = colours.soft;
      pen.fillText(text, x, y);
      x += pen.measureText(text).width + 6;
    };
    for (const { ramp, texts, blank, dot, hollow, stroke, dashed, text } of items) {
      if (ramp) {
        write(texts[0]);
        for (const colour of ramp.match(/rgb\([^)]*\)/g)) {
          pen.fillStyle = colour;
          pen.fillRect(x, y - 5, 16, 10);
          x += 16;
        }
        x += 6;
        write(texts[1]);
      } else {
        pen.strokeStyle = pen.fillStyle = stroke || dot || colours.line;
        pen.lineWidth = stroke ? 2.5 : 1.5;
        pen.setLineDash(dashed ? [6, 4] : []);
        pen.beginPath();
        if (dot) pen.arc(x + 8, y, 4.5, 0, 2 * Math.PI);
        else if (blank) pen.rect(x, y - 5, 14, 10);
        else {
          pen.moveTo(x, y);
          pen.lineTo(x + 20, y);
        }
        if (dot && !hollow) pen.fill();
        else pen.stroke();
        pen.setLineDash([]);
        x += 26;
        write(text);
      }
      x += 12;
    }
  }

  async function png(text) {
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    try {
      await image.decode();
      const shown = Object.assign(document.createElement("canvas"), { width: image.width * SHARP, height: image.height * SHARP });
      shown.getContext("2d").drawImage(image, 0, 0, shown.width, shown.height);
      return await new Promise(done => shown.toBlob(done, "image/png"));
    } finally {
      URL.revokeObjectURL(image.src);
    }
  }

  function file(name, blob) {
    const link = posenc.plot.element("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // ------------------------------------------------------------------ a state in another page

  // address: of this page with the state. A page that was opened from a folder is named alone.
  function frame(address) {
    const url = address.startsWith("http") ? address : address.replace(/^[^#]*\//, "");
    return `<iframe src="${escaped(url)}" title="Explorer of positional encodings" width="100%" height="900" loading="lazy"></iframe>`;
  }

  const python = state => `from posenc.report import explorer\n\nexplorer.block(${JSON.stringify(state)})`;

  return { SIZE, svg, png, file, frame, python };
})();
