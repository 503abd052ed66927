"use strict";
// What reports and the explorer draw on canvases: heat maps and lines, with axes and ticks. Each returns a probe, which finds
// values by place: {find(x, y) -> {row, column}, move({row, column}, down, right) -> the same, place(row, column) -> {x, y,
// width, height}}. An axis is {label, low, high, log, ticks: [[value, text]], names: of the cells of a heat map, counted: of
// how many positions}; all but the label may be left out.
var posenc = posenc || {};
posenc.draw = (() => {
  const LEVELS = 256, COARSE = 256;  // of a heat map, about so many rows and columns while something moves

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

  function gradient(ramp, down) {
    const stops = [0, 64, 128, 191, 255].map(i => ramp.css[down ? 255 - i : i]);
    return `linear-gradient(to right, ${stops.join(", ")})`;
  }

  // value -> a pixel, from a table, `first + value * scale` entries along it; called for each pair of positions
  function lookup({ pixels }, first, scale) {
    return value => {
      const at = first + value * scale + 0.5;
      return pixels[at < 0 ? 0 : at > LEVELS - 1 ? LEVELS - 1 : at | 0];
    };
  }

  // value -> a pixel, from two colours around zero; what is not a number stays blank
  function around(colours, most) {
    const of = lookup(colours.around, (LEVELS - 1) / 2, (LEVELS - 1) / 2 / (most || 1));
    return value => (value !== value ? 0 : of(value));
  }

  // value -> a pixel, between two values; down: the least value has the strongest colour
  function between(colours, low, high, down) {
    const share = value => (value - low) / (high - low || 1);
    return value => (Number.isFinite(value) ? colours.up.pixels[level(down ? 1 - share(value) : share(value))] : 0);
  }

  // value -> a pixel, from zero up to a limit, and in other colours past it
  function upTo(colours, limit, most) {
    const scale = (LEVELS - 1) / Math.max(most - limit, 1);
    const below = lookup(colours.up, 0, (LEVELS - 1) / limit), beyond = lookup(colours.over, -limit * scale, scale);
    return value => (value !== value ? 0 : value < limit ? below(value) : beyond(value));
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

  const STEPS = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]];

  function powers(low, high, most) {  // of ten, and between them where they are few
    const first = Math.floor(Math.log10(low)), last = Math.floor(Math.log10(high) + 1e-9);
    const every = Array.from({ length: last - first + 1 }, (_, k) => 10 ** (first + k));
    const inside = steps => every.flatMap(p => steps.map(m => m * p)).filter(v => v >= low * 0.999 && v <= high * 1.001);
    const found = STEPS.map(inside).filter(values => values.length <= Math.max(most, 2));
    if (found.length) return found[found.length - 1];
    const tens = inside([1]), step = Math.ceil(tens.length / Math.max(most, 2));
    return tens.filter((_, at) => at % step === 0);
  }

  const binary = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

  function counts(count, room) {  // powers of two where there are many positions: they are what lengths are counted in
    if (count < 16) return ticks(0, Math.max(count - 1, 1), Math.max(2, room)).filter(at => Number.isInteger(at) && at < count);
    const step = binary.find(s => count / s <= room + 1) || 1024;
    return Array.from({ length: Math.ceil(count / step) }, (_, k) => k * step);
  }

  // An axis over these values: where it begins and ends, a value's share of it, and its ticks. room: for how many.
  function axis(given, values, room) {
    const seen = values.filter(Number.isFinite), { log } = given;
    const to = log ? Math.log : v => v, back = log ? Math.exp : v => v;
    let low = to(given.low ?? Math.min(...seen)), high = to(given.high ?? Math.max(...seen));
    if (!Number.isFinite(low + high)) [low, high] = [0, 1];
    const pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
    if (given.low === undefined) low -= pad;
    if (given.high === undefined) high += pad;
    const [from, until] = [back(low), back(high)];
    const found = given.ticks || (given.counted ? counts(given.counted, room) : log ? powers(from, until, room) : ticks(from, until, room)).map(v => [v, tidy(v)]);
    const share = value => (to(value) - low) / (high - low);
    return { label: given.label, share, ticks: found.filter(([v]) => share(v) > -1e-6 && share(v) < 1 + 1e-6) };
  }

  // The box of a drawing between the labels of its axes. x, y: [{label, texts}]. right: room for what stands there.
  function frame(canvas, colours, { label, texts, right = 12 }) {
    const { context, width, height, dense } = surface(canvas);
    context.font = colours.font;
    const left = Math.min(Math.max(...texts.map(text => context.measureText(text).width), 0), width * 0.4) + (label ? 26 : 12);
    return { context, dense, box: { x: left, y: 12, width: Math.max(width - left - right, 10), height: Math.max(height - 52, 10) } };
  }

  function labels(context, box, colours, x, y) {  // x, y: {label, ticks: [[pixel, text]]}
    context.fillStyle = colours.soft;
    context.textBaseline = "top";
    context.textAlign = "center";
    let free = 0;
    for (const [at, text] of x.ticks) {
      const half = context.measureText(text).width / 2, middle = Math.min(at, box.x + box.width + 10 - half);
      if (middle - half < free) continue;
      context.fillText(text, middle, box.y + box.height + 6);
      free = middle + half + 6;
    }
    context.fillText(x.label, box.x + box.width / 2, box.y + box.height + 23);
    context.textBaseline = "middle";
    context.textAlign = "right";
    let last = NaN;
    for (const [at, text] of y.ticks) {
      if (Math.abs(at - last) < 12) continue;
      context.fillText(text, box.x - 6, at, box.x - 8);
      last = at;
    }
    context.save();
    context.translate(9, box.y + box.height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(y.label, 0, 0, box.height + 30);
    context.restore();
  }

  // {rows, columns, values: row by row, or value(row, column), pixel(value), texts: of the cells, x, y: axes, marks: [{x: between columns, label}],
  // limit: the distance that training went to, half: of which only what lies before the query is marked}. colours.coarse: few cells are drawn, while something moves
  function heat(canvas, colours, { rows, columns, values, value = (row, column) => values[row * columns + column], pixel, texts, x, y, marks, limit, half }) {
    const downwards = counts(rows, canvas.clientHeight / 40), named = y.names || downwards.map(String);
    const { context, box, dense } = frame(canvas, colours, { label: y.label, texts: named });
    const each = count => (colours.coarse ? Math.max(1, Math.floor(count / COARSE)) : 1), [rowStep, columnStep] = [each(rows), each(columns)];
    const [tall, broad] = [Math.ceil(rows / rowStep), Math.ceil(columns / columnStep)];
    const image = new ImageData(broad, tall), pixels = new Uint32Array(image.data.buffer);
    for (let r = 0, at = 0; r < tall; r++) for (let c = 0; c < broad; c++, at++) pixels[at] = pixel(value(r * rowStep, c * columnStep));
    const small = new OffscreenCanvas(broad, tall);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = tall > box.height * dense || broad > box.width * dense;
    context.imageSmoothingQuality = "high";
    context.drawImage(small, box.x, box.y, box.width, box.height);
    context.strokeStyle = colours.line;
    context.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
    const wide = box.width / columns, high = box.height / rows;
    const across = x.names ? x.names.map((_, at) => at) : counts(columns, box.width / 55), down = y.names ? y.names.map((_, at) => at) : downwards;
    labels(
      context, box, colours,
      { label: x.label, ticks: across.map(at => [box.x + (at + 0.5) * wide, x.names ? x.names[at] : String(at)]) },
      { label: y.label, ticks: down.map(at => [box.y + (at + 0.5) * high, y.names ? y.names[at] : String(at)]) },
    );
    if (texts) written(context, colours, { box, wide, high, columns, texts, pixels });
    for (const mark of marks || []) drawMark(context, colours, box, mark, at => box.x + at * wide);
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
      find: (px, py) => ({
        row: clamp(Math.floor((py - box.y) / high), rows), column: clamp(Math.floor((px - box.x) / wide), columns),
      }),
      move: ({ row, column }, down, right) => ({ row: clamp(row + down, rows), column: clamp(column + right, columns) }),
      place: (row, column) => ({ x: box.x + column * wide, y: box.y + row * high, width: wide, height: high }),
    };
  }

  function written(context, colours, { box, wide, high, columns, texts, pixels }) {  // in each cell of a heat map, with gaps between them
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.strokeStyle = colours.ground;
    context.lineWidth = 2;
    texts.forEach((text, at) => {
      const left = box.x + (at % columns) * wide, top = box.y + Math.floor(at / columns) * high, pixel = pixels[at];
      const light = 0.3 * (pixel & 255) + 0.6 * ((pixel >> 8) & 255) + 0.1 * ((pixel >> 16) & 255) > 135;
      context.strokeRect(left, top, wide, high);
      context.fillStyle = pixel === 0 ? colours.soft : light ? "#10151c" : "#ffffff";
      if (context.measureText(text).width < wide - 2) context.fillText(text, left + wide / 2, top + high / 2);
    });
  }

  // {series: [{x: 0, 1, ... if left out, y, low, high: of intervals, quiet: not drawn,
  // colour, colours: of each point, width, dash, dots: also its points, points: only those, radius, hollow, label: at its end, true: its name}], x, y: axes, marks: [{x or y, label}], past: from where the ground is shaded,
  // spread: series side by side, so that their intervals do not coincide}
  function lines(canvas, colours, { series, x, y, marks, past, spread }) {
    const places = series.map(one => Array.from(one.x || one.y.keys()));
    const heights = series.flatMap(one => [...one.y, ...(one.quiet ? [] : [...(one.low || []), ...(one.high || [])])]), marked = (marks || []).map(mark => mark.y);
    const down = axis(y, [...heights, ...marked], canvas.clientHeight / (y.log ? 30 : 45));
    const ends = series.filter(one => one.label && !one.points), measure = canvas.getContext("2d");
    measure.font = colours.font;
    const wanted = Math.max(0, ...ends.map(one => measure.measureText(title(one)).width)) + 28;
    const labelled = ends.length > 0 && wanted < canvas.clientWidth * 0.36;
    const { context, box } = frame(canvas, colours, { label: y.label, texts: down.ticks.map(([, text]) => text), right: labelled ? wanted : 14 });
    const across = axis(x, [...places.flat(), ...(marks || []).map(mark => mark.x)], box.width / (x.log ? 42 : 58));
    const px = value => box.x + box.width * across.share(value);
    const py = value => box.y + box.height * (1 - Math.max(-0.02, Math.min(1.02, down.share(value))));
    const beside = row => (spread ? Math.min(3, 20 / series.length) * (row - (series.length - 1) / 2) : 0);
    const spots = series.map((one, row) => places[row].map((at, k) => (seen(one.y[k]) ? [px(at) + beside(row), py(one.y[k])] : null)));
    if (past !== undefined && across.share(past) < 1) {
      context.globalAlpha = 0.07;
      context.fillStyle = colours.past;
      context.fillRect(px(past), box.y, box.x + box.width - px(past), box.height);
      context.globalAlpha = 1;
    }
    context.lineWidth = 1;
    for (const [value] of down.ticks) {
      context.strokeStyle = value === 0 && !y.log && !y.ticks ? colours.soft : colours.line;
      stroke(context, [[box.x, Math.round(py(value)) + 0.5], [box.x + box.width, Math.round(py(value)) + 0.5]]);
    }
    labels(
      context, box, colours,
      { label: x.label, ticks: across.ticks.map(([value, text]) => [px(value), text]) },
      { label: y.label, ticks: down.ticks.map(([value, text]) => [py(value), text]) },
    );
    for (const mark of marks || []) drawMark(context, colours, box, mark, px, py);
    series.forEach((one, row) => {
      const drawn = spots[row].filter(Boolean);
      if (one.low && !one.quiet) intervals(context, one, places[row], at => px(at) + beside(row), py);
      context.strokeStyle = one.colour;
      context.lineWidth = one.width || 1.8;
      if (!one.points) {
        context.setLineDash(one.dash || []);
        stroke(context, drawn);
        context.setLineDash([]);
      }
      if (one.points || one.dots) spots[row].forEach((spot, at) => spot && dot(context, ...spot, one, at, box));
    });
    if (labelled) namedAtEnds(context, colours, box, ends.map(one => ({ one, from: spots[series.indexOf(one)].findLast(Boolean) })));
    namedBeside(context, colours, box, series, spots);
    const scattered = series.every(one => one.points && one.y.length === 1);
    const off = ([sx, sy], x, y) => (scattered ? Math.hypot(sx - x, sy - y) : Math.abs(sx - x) + 10 * Math.max(0, Math.abs(sx - x) - 8) + Math.abs(sy - y));
    const nearest = (x, y, rows) => {
      let best = { row: rows[0] ?? 0, column: 0 }, least = Infinity;
      for (const row of rows) {
        spots[row].forEach((spot, column) => {
          const apart = spot ? off(spot, x, y) : Infinity;
          if (apart < least) [best, least] = [{ row, column }, apart];
        });
      }
      return best;
    };
    return {
      labelled,
      find: (x, y) => nearest(x, y, [...series.keys()]),
      move({ row, column }, down, right) {
        if (right) return { row, column: clamp(column + right, places[row].length) };
        const next = clamp(row + down, series.length), at = spots[row][column];
        return at ? nearest(at[0], at[1], [next]) : { row: next, column: 0 };
      },
      place(row, column) {
        const [x, y] = spots[row][column] || [box.x, box.y];
        return { x: x - 4, y: y - 4, width: 8, height: 8 };
      },
    };
  }

  function intervals(context, { low, high, colour }, places, px, py) {
    context.strokeStyle = colour;
    context.globalAlpha = 0.55;
    context.lineWidth = 1.3;
    places.forEach((at, k) => {
      if (seen(low[k])) stroke(context, [[px(at), py(low[k])], [px(at), py(high[k])]]);
    });
    context.globalAlpha = 1;
  }

  const title = one => (one.label === true ? one.name : one.label);

  const APART = 14;  // pixels between two names

  function namedAtEnds(context, colours, box, named) {  // names at the ends of lines, moved apart; the first where not all fit
    const most = Math.floor(box.height / APART) + 1, right = box.x + box.width;
    const found = named.filter(({ from }) => from).slice(0, most).map(({ one, from }) => ({ one, from, y: from[1] })).sort((a, b) => a.y - b.y);
    found.forEach((one, k) => { if (k) one.y = Math.max(one.y, found[k - 1].y + APART); });
    found.reduceRight((below, one) => (one.y = Math.min(one.y, below - APART)), box.y + box.height + APART);
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (const { one, from, y } of found) {
      context.strokeStyle = one.colour;
      context.lineWidth = 1;
      stroke(context, [[from[0] + 5, from[1]], [right + 10, y], [right + 16, y]]);
      context.fillStyle = colours.ink;
      context.fillText(title(one), right + 20, y);
    }
  }

  function namedBeside(context, colours, box, series, spots) {  // names beside points, where there is room
    const taken = spots.flat().filter(Boolean).map(([x, y]) => [x - 4, y - 4, x + 4, y + 4]);
    const free = ([a, b, c, d]) => a > box.x && c < box.x + box.width + 12 && !taken.some(([e, f, g, h]) => a < g && e < c && b < h && f < d);
    context.textAlign = "left";
    context.textBaseline = "middle";
    series.forEach((one, row) => {
      const spot = spots[row][0];
      if (!one.label || !one.points || !spot) return;
      const wide = context.measureText(title(one)).width, [x, y] = spot;
      const corners = [[x + 8, y], [x - 8 - wide, y], [x - wide / 2, y - 13], [x - wide / 2, y + 13], [x + 6, y - 11], [x + 6, y + 11]];
      const at = corners.find(([left, middle]) => free([left, middle - 6, left + wide, middle + 6]));
      if (!at) return;
      taken.push([at[0], at[1] - 6, at[0] + wide, at[1] + 6]);
      context.fillStyle = colours.ink;
      lettered(context, colours, title(one), ...at);
    });
  }

  function drawMark(context, colours, box, mark, across, down) {
    const upright = mark.y === undefined, shown = upright ? across(mark.x) : down(mark.y);
    context.strokeStyle = context.fillStyle = colours.past;
    context.lineWidth = 1.2;
    context.setLineDash([5, 4]);
    stroke(context, upright ? [[shown, box.y], [shown, box.y + box.height]] : [[box.x, shown], [box.x + box.width, shown]]);
    context.setLineDash([]);
    if (!mark.label) return;
    const wide = context.measureText(mark.label).width, fits = shown + 6 + wide <= box.x + box.width;
    const [x, y] = upright ? [fits ? shown + 6 : shown - 6 - wide, box.y + 2] : [box.x + 4, shown < box.y + 14 ? shown + 16 : shown - 2];
    context.textAlign = "left";
    context.textBaseline = upright ? "top" : "bottom";
    lettered(context, colours, mark.label, x, y);
  }

  function lettered(context, colours, text, x, y) {  // over lines, with the ground around it
    context.lineJoin = "round";
    context.lineWidth = 4;
    context.strokeStyle = colours.ground;
    context.strokeText(text, x, y);
    context.fillText(text, x, y);
  }

  function dot(context, x, y, one, at, box) {
    const colour = one.colours ? one.colours[at] : one.colour;
    context.beginPath();
    if (Number.isFinite(one.y[at])) context.arc(x, Math.max(y, box.y), one.radius || 3.2, 0, 2 * Math.PI);
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

  function seen(value) {
    return value !== null && value !== undefined && !Number.isNaN(value);
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

  // arcs over a line of tokens: [{from, to: in pixels, share: 0 .. 1, null if hidden, past: in the other colour, label}], the
  // baseline at the bottom. limit: {x, label}, from where the ground is shaded.
  // shown: [{from, to, share, past, label}]. pointed: the one that is drawn strong and labelled. Gives the arc near a place, or -1.
  function arcs(canvas, colours, shown, limit, pointed) {
    const { context, width, height } = surface(canvas), box = { x: 0, y: 0, width, height };
    if (limit) {
      context.fillStyle = colours.past;
      context.globalAlpha = 0.07;
      context.fillRect(limit.x, 0, width - limit.x, height);
      context.globalAlpha = 1;
    }
    const tops = shown.map(({ from, to }) => 14 + Math.sqrt(Math.abs(to - from) / width) * (height - 42));
    shown.forEach(({ from, to, share, past }, at) => {
      context.strokeStyle = share === null ? colours.soft : past ? colours.past : colours.around.css[225];
      context.globalAlpha = at === pointed ? 1 : share === null ? 0.5 : 0.2 + 0.8 * share;
      context.lineWidth = share === null ? 1 : Math.max(0.8 + 7.2 * share, at === pointed ? 3 : 0);
      context.setLineDash(share === null ? [3, 4] : []);
      context.beginPath();
      context.moveTo(from, height);
      context.bezierCurveTo(from, height - tops[at] * 1.33, to, height - tops[at] * 1.33, to, height);
      context.stroke();
    });
    context.globalAlpha = 1;
    context.setLineDash([]);
    context.font = colours.font;
    if (limit) drawMark(context, colours, box, limit, x => x);
    if (shown[pointed]) {
      const { from, to, label } = shown[pointed], half = context.measureText(label).width / 2 + 3;
      Object.assign(context, { fillStyle: colours.ink, textAlign: "center", textBaseline: "middle" });
      lettered(context, colours, label, Math.max(half, Math.min(width - half, (from + to) / 2)), Math.max(8, height - tops[pointed]));
    }
    return (x, y) => nearest(shown.map(({ from, to }, at) => along(t => [
      from + (to - from) * (3 * t * t - 2 * t * t * t), height - 4 * tops[at] * (t - t * t),
    ], x, y)));
  }

  const REACH = 14;  // pixels from an arc to what points at it

  function along(curve, x, y) {
    return Math.min(...Array.from({ length: 41 }, (_, k) => Math.hypot(curve(k / 40)[0] - x, curve(k / 40)[1] - y)));
  }

  function nearest(distances) {
    const least = Math.min(...distances);
    return least <= REACH ? distances.indexOf(least) : -1;
  }

  return { theme, gradient, around, between, upTo, heat, lines, strip, arcs, number, level };
})();
