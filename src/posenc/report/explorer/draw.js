"use strict";
// What is drawn on canvases: heat maps and lines, with axes and ticks. Each returns a probe, which finds the value under a
// point: {rows, columns, find(x, y) -> {row, column}, place(row, column) -> {x, y, width, height}}.
posenc.draw = (() => {
  const LEVELS = 256;

  function theme(element) {
    const style = getComputedStyle(element);
    const css = name => style.getPropertyValue(name).trim();
    const ramp = names => table(names.map(name => channels(css(name))));
    return {
      ink: css("--ink"), soft: css("--soft"), line: css("--line"), ground: css("--ground"), accent: css("--accent"),
      past: css("--past"), font: `12px ${style.fontFamily}`,
      palette: ["--one", "--two", "--three", "--four", "--five"].map(css),
      around: ramp(["--below-most", "--below", "--even", "--above", "--above-most"]),
      up: ramp(["--least", "--more", "--most"]),
      over: ramp(["--past-least", "--past"]),
    };
  }

  function channels(hex) {
    return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
  }

  function table(stops) {  // colours between the stops, as the 32 bits of a pixel and as CSS
    const pixels = new Uint32Array(LEVELS), css = [];
    for (let i = 0; i < LEVELS; i++) {
      const along = (i / (LEVELS - 1)) * (stops.length - 1), from = Math.min(Math.floor(along), stops.length - 2);
      const [r, g, b] = stops[from].map((c, k) => Math.round(c + (stops[from + 1][k] - c) * (along - from)));
      pixels[i] = 0xff000000 | (b << 16) | (g << 8) | r;
      css.push(`rgb(${r} ${g} ${b})`);
    }
    return { pixels, css };
  }

  function level(share) {
    return Math.max(0, Math.min(LEVELS - 1, Math.round(share * (LEVELS - 1))));
  }

  function gradient(ramp) {
    return `linear-gradient(to right, ${[0, 64, 128, 191, 255].map(i => ramp.css[i]).join(", ")})`;
  }

  // value -> a pixel, from two colours around zero; what is not a number stays blank
  function around(colours, most) {
    const scale = most || 1;
    return value => (Number.isNaN(value) ? 0 : colours.around.pixels[level(0.5 + value / scale / 2)]);
  }

  // value -> a pixel, from zero up to a limit, and in other colours past it
  function upTo(colours, limit, most) {
    const beyond = Math.max(most - limit, 1);
    return value => {
      if (Number.isNaN(value)) return 0;
      if (value < limit) return colours.up.pixels[level(Math.max(value, 0) / limit)];
      return colours.over.pixels[level((value - limit) / beyond)];
    };
  }

  function surface(canvas) {
    const width = canvas.clientWidth, height = canvas.clientHeight, dense = Math.min(window.devicePixelRatio || 1, 3);
    const wide = Math.round(width * dense), high = Math.round(height * dense);
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    const context = canvas.getContext("2d");
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height, dense };
  }

  const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

  function number(value) {
    if (value === null || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e9)) return exponential(value).replace("-", "−");
    return (size >= 1000 ? grouped.format(value) : String(Number(value.toPrecision(4)))).replace("-", "−");
  }

  function exponential(value) {
    const [digits, power] = value.toExponential(2).split("e");
    return `${Number(digits)}e${Number(power)}`;
  }

  function ticks(low, high, most) {
    const rough = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find(m => m * power >= rough * 0.999) * power, found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return found;
  }

  function powers(low, high, most) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first + 1) / most)), found = [];
    for (let power = first; power <= last; power += step) found.push(10 ** power);
    return found;
  }

  function whole(count, room) {  // ticks between 0 and count - 1
    return ticks(0, Math.max(count - 1, 1), Math.max(2, room)).filter(at => Number.isInteger(at) && at < count);
  }

  const binary = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

  function wholes(count, room) {  // powers of two where there are many positions: they are what lengths are counted in
    if (count < 16) return whole(count, room);
    const step = binary.find(s => count / s <= room + 1) || 1024;
    return Array.from({ length: Math.ceil(count / step) }, (_, k) => k * step);
  }

  function frame(canvas, colours, left) {
    const { context, width, height, dense } = surface(canvas);
    const box = { x: left, y: 10, width: Math.max(width - left - 12, 10), height: Math.max(height - 10 - 40, 10) };
    context.font = colours.font;
    return { context, box, dense };
  }

  function labels(context, box, colours, x, y) {
    context.fillStyle = colours.soft;
    context.textBaseline = "top";
    context.textAlign = "center";
    for (const [at, text] of x.ticks) {
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(at, box.x + box.width + 10 - half), box.y + box.height + 6);
    }
    context.fillText(x.label, box.x + box.width / 2, box.y + box.height + 23);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [at, text] of y.ticks) context.fillText(text, box.x - 6, at);
    context.save();
    context.translate(9, box.y + box.height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(y.label, 0, 0);
    context.restore();
  }

  // {rows, columns, values: row by row, pixel(value), x, y: labels, limit: the distance that training went to,
  // half: of which only what lies before the query is marked}
  function heat(canvas, colours, { rows, columns, values, pixel, x, y, limit, half }) {
    const { context, box, dense } = frame(canvas, colours, 50);
    const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < pixels.length; at++) pixels[at] = pixel(values[at]);
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = rows > box.height * dense || columns > box.width * dense;
    context.imageSmoothingQuality = "high";
    context.drawImage(small, box.x, box.y, box.width, box.height);
    context.strokeStyle = colours.line;
    context.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
    const wide = box.width / columns, high = box.height / rows;
    const across = wholes(columns, box.width / 55), down = wholes(rows, box.height / 34);
    labels(
      context, box, colours,
      { label: x, ticks: across.map(at => [box.x + (at + 0.5) * wide, String(at)]) },
      { label: y, ticks: down.map(at => [box.y + (at + 0.5) * high, String(at)]) },
    );
    if (limit !== undefined && limit < columns && rows === columns) {  // pairs as far apart as training went
      context.save();
      context.beginPath();
      context.rect(box.x, box.y, box.width, box.height);
      context.clip();
      context.setLineDash([4, 4]);
      context.strokeStyle = colours.ink;
      context.beginPath();
      for (const [c, r] of half ? [[0, limit]] : [[0, limit], [limit, 0]]) {
        context.moveTo(box.x + c * wide, box.y + r * high);
        context.lineTo(box.x + (c + columns) * wide, box.y + (r + columns) * high);
      }
      context.stroke();
      context.restore();
    }
    return {
      rows, columns,
      find: (px, py) => ({
        row: clamp(Math.floor((py - box.y) / high), rows), column: clamp(Math.floor((px - box.x) / wide), columns),
      }),
      place: (row, column) => ({ x: box.x + column * wide, y: box.y + row * high, width: wide, height: high }),
    };
  }

  // {series: [{values, colour, width, dash, points}], from, to: of the horizontal axis, low, high: of the vertical one,
  // log, x, y: labels, marks: [{x or y, label}], past: from where the ground is shaded}
  function lines(canvas, colours, { series, x, y, low, high, log, marks, past, whole: counted }) {
    const { context, box } = frame(canvas, colours, log ? 66 : 56);
    const columns = Math.max(...series.map(s => s.values.length)), last = Math.max(columns - 1, 1);
    const inset = counted ? 0.5 : 0;
    const across = at => box.x + ((at + inset) / (last + 2 * inset)) * box.width;
    const share = log ? v => Math.log(v / low) / Math.log(high / low) : v => (v - low) / (high - low);
    const down = value => box.y + box.height * (1 - Math.max(-0.02, Math.min(1.02, share(value))));
    if (past !== undefined && past <= last) {
      context.globalAlpha = 0.07;
      context.fillStyle = colours.past;
      context.fillRect(across(past), box.y, box.x + box.width - across(past), box.height);
      context.globalAlpha = 1;
    }
    const up = log ? powers(low, high, box.height / 30) : ticks(low, high, box.height / 42);
    context.lineWidth = 1;
    for (const value of up) {
      context.strokeStyle = value === 0 ? colours.soft : colours.line;
      stroke(context, [[box.x, Math.round(down(value)) + 0.5], [box.x + box.width, Math.round(down(value)) + 0.5]]);
    }
    labels(
      context, box, colours,
      { label: x, ticks: wholes(columns, box.width / 55).map(at => [across(at), String(at)]) },
      { label: y, ticks: up.map(value => [down(value), tidy(value)]) },
    );
    for (const one of series) {
      context.strokeStyle = one.colour;
      context.lineWidth = one.width || 1.8;
      context.setLineDash(one.dash || []);
      if (one.points) {
        one.values.forEach((value, at) => dot(context, across(at), down(Math.min(value, high)), one, at, box));
      } else {
        const drawn = [];
        one.values.forEach((value, at) => { if (!Number.isNaN(value)) drawn.push([across(at), down(value)]); });
        stroke(context, drawn);
      }
    }
    context.setLineDash([]);
    for (const mark of marks || []) drawMark(context, colours, box, mark, across, down);
    return {
      rows: series.length, columns,
      find: (px, py) => {
        const column = clamp(Math.round(((px - box.x) / box.width) * (last + 2 * inset) - inset), columns);
        const off = series.map(s => Math.abs(down(s.values[column]) - py));
        return { column, row: off.reduce((best, d, i) => (d < off[best] ? i : best), 0) };
      },
      place: (row, column) => ({ x: across(column) - 4, y: down(series[row].values[column]) - 4, width: 8, height: 8 }),
    };
  }

  function drawMark(context, colours, box, mark, across, down) {
    const shown = mark.y === undefined ? across(mark.x) : down(mark.y);
    context.strokeStyle = context.fillStyle = colours.past;
    context.lineWidth = 1.2;
    context.setLineDash([5, 4]);
    const ends = mark.y === undefined
      ? [[shown, box.y], [shown, box.y + box.height]]
      : [[box.x, shown], [box.x + box.width, shown]];
    stroke(context, ends);
    context.setLineDash([]);
    const wide = context.measureText(mark.label).width;
    context.textAlign = "left";
    context.textBaseline = mark.y === undefined ? "top" : "bottom";
    if (mark.y === undefined) {
      const fits = shown + 6 + wide <= box.x + box.width;
      written(context, colours, mark.label, fits ? shown + 6 : shown - 6 - wide, box.y + 2);
    } else written(context, colours, mark.label, box.x + box.width - 4 - wide, shown + 16);
  }

  function written(context, colours, text, x, y) {  // over lines, with the ground around it
    context.lineJoin = "round";
    context.lineWidth = 4;
    context.strokeStyle = colours.ground;
    context.strokeText(text, x, y);
    context.fillText(text, x, y);
  }

  function dot(context, x, y, one, at, box) {
    const colour = one.colours ? one.colours[at] : one.colour;
    context.beginPath();
    if (Number.isFinite(one.values[at])) context.arc(x, Math.max(y, box.y), one.radius || 3.2, 0, 2 * Math.PI);
    else for (const [dx, dy] of [[-4, 6], [4, 6], [0, 0]]) context.lineTo(x + dx, box.y + dy);
    context.closePath();
    context.fillStyle = context.strokeStyle = colour;
    if (one.hollow) context.stroke();
    else context.fill();
  }

  function stroke(context, points) {
    context.beginPath();
    for (const [x, y] of points) context.lineTo(x, y);
    context.stroke();
  }

  function tidy(value) {
    return number(Math.abs(value) < 1e-12 ? 0 : value);
  }

  function clamp(at, count) {
    return Math.max(0, Math.min(count - 1, at));
  }

  // one row of colours, a cell each: a token's code
  function strip(canvas, values, pixel) {
    const { context, width, height } = surface(canvas);
    const image = new ImageData(values.length, 1), pixels = new Uint32Array(image.data.buffer);
    values.forEach((value, at) => { pixels[at] = pixel(value); });
    const small = new OffscreenCanvas(values.length, 1);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, width, height);
  }

  // arcs over a line of tokens: [{from, to: in pixels, share: 0 .. 1}], the baseline at the bottom
  function arcs(canvas, colours, shown) {
    const { context, width, height } = surface(canvas);
    for (const { from, to, share } of shown) {
      const high = Math.min(height - 6, 14 + (Math.abs(to - from) / width) * height * 1.5);
      context.strokeStyle = colours.around.css[225];
      context.globalAlpha = 0.25 + 0.75 * share;
      context.lineWidth = 1 + 7 * share;
      context.beginPath();
      context.moveTo(from, height);
      context.bezierCurveTo(from, height - high * 1.33, to, height - high * 1.33, to, height);
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  return { theme, gradient, around, upTo, heat, lines, strip, arcs, number, level };
})();
