"use strict";
// The line of tokens: each is a slider on the positions, moved by mouse, finger or keys. A token put on another's place
// changes places with it. What the chosen one shares with the others stands below in numbers.
posenc.tokens = (() => {
  const { say, t } = posenc.language, { number } = posenc.draw, { row, data } = posenc.plot;
  const GAP = 3;  // pixels between rows of labels
  const quoted = word => `“\u2068${word}\u2069”`;  // apart from the sentence, which a word from right to left would turn

  // root: the section. act: {move(index, position, done), choose(index)}, which change the state and redraw.
  function made(root, act) {
    const find = selector => root.querySelector(selector);
    const track = find(".track"), scale = find(".scale"), ruler = find(".ruler");
    let state = null, buttons = [], drag = null, pointed = -1, near = () => -1, redrawn = () => {};

    const across = at => ((at + 0.5) / state.line) * 100;
    const under = event => {
      const box = track.getBoundingClientRect();
      return Math.max(0, Math.min(state.line - 1, Math.floor(((event.clientX - box.left) / box.width) * state.line)));
    };

    track.addEventListener("pointerdown", event => {
      const index = buttons.indexOf(event.target.closest(".token"));
      if (index < 0 || event.button > 0) return;
      event.preventDefault();
      buttons[index].focus({ preventScroll: true });
      buttons[index].setPointerCapture(event.pointerId);
      drag = { index, from: state.at, at: state.at, id: event.pointerId };
      act.choose(index);
    });
    track.addEventListener("pointermove", event => {
      if (!drag || event.pointerId !== drag.id) return;
      drag.at = placed(drag.from, drag.index, under(event));
      act.move(drag.at, false);
    });
    for (const over of ["pointerup", "pointercancel"]) {
      track.addEventListener(over, event => {
        if (!drag || event.pointerId !== drag.id) return;
        const { at, from } = drag;
        drag = null;
        act.move(over === "pointerup" ? at : from, true);
      });
    }
    track.addEventListener("focusin", event => {
      const index = buttons.indexOf(event.target);
      if (index >= 0 && index !== state.token - 1) act.choose(index);
    });
    track.addEventListener("keydown", event => {
      const index = buttons.indexOf(event.target), at = state.at[index], last = state.line - 1;
      const to = {
        ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - 8, PageUp: at + 8, Home: 0, End: last,
      }[event.key];
      if (index < 0 || to === undefined) return;
      event.preventDefault();
      act.move(placed(state.at, index, Math.max(0, Math.min(last, to))), true);
    });

    // The token whose arc is labelled: that of the arc under the pointer, of the token, or of the row of the table.
    function point(index) {
      if (index === pointed) return;
      pointed = index;
      redrawn();
    }
    ruler.addEventListener("pointermove", event => {
      const token = buttons.indexOf(event.target.closest(".token")), box = ruler.getBoundingClientRect();
      point(token >= 0 ? token : near(event.clientX - box.left, event.clientY - box.top));
    });
    ruler.addEventListener("pointerdown", event => event.target.closest(".arcs") && point(near(event.offsetX, event.offsetY)));
    ruler.addEventListener("pointerleave", () => point(-1));
    find(".scores").addEventListener("pointerover", event => point([...find(".scores tbody").rows].indexOf(event.target.closest("tr"))));
    find(".scores").addEventListener("pointerleave", () => point(-1));

    function show(now, model, colours) {
      state = now;
      if (buttons.length !== now.tokens.length) {
        track.replaceChildren(...now.tokens.map(() => Object.assign(document.createElement("div"), { className: "token" })));
        buttons = [...track.children];
      }
      const chosen = now.token - 1, rows = posenc.words.attention(now, model);
      buttons.forEach((button, index) => {
        const at = now.at[index], word = now.tokens[index], past = at >= now.trained;
        if (button.textContent !== word) button.textContent = word;
        button.classList.toggle("past", past);
        const beyond = past ? t`, beyond the training length` : "";
        const weight = index === chosen ? "" : rows[index].hidden ? t`, hidden from the query` : t`, ${percent(rows[index].weight)} of the query’s attention`;
        for (const [name, value] of Object.entries({
          role: "slider", tabindex: 0, "aria-label": t`Token ${word}`, "aria-valuemin": 0, "aria-valuemax": now.line - 1,
          "aria-valuenow": at, "aria-valuetext": t`position ${at}${beyond}${weight}`, "aria-current": index === chosen,
        })) button.setAttribute(name, value);
      });
      // what is measured and drawn comes before what changes the page's layout: measuring after a change is slow
      const width = track.clientWidth, halves = buttons.map(button => button.offsetWidth / 2), lane = buttons[0].offsetHeight + GAP;
      redrawn = () => { near = arcs(ruler.querySelector(".arcs"), width, chosen, rows, model, colours, pointed); };
      redrawn();
      code(chosen, model, colours);
      arrange(width, halves, lane);
      ticks(width);
      numbers(chosen, rows, model);
      legend(chosen, rows, model, colours);
    }

    // Where labels stand, {centre: of the position, middle: of the label, lane}, by index: those that would cover each other go to
    // lower rows. halves: half the width of each.
    function lanes(width, halves) {
      const ends = [], found = [], byPlace = state.at.map((_, index) => index).sort((a, b) => state.at[a] - state.at[b]);
      for (const index of byPlace) {
        const half = halves[index], centre = (across(state.at[index]) / 100) * width;
        const middle = Math.max(half, Math.min(width - half, centre));
        let lane = ends.findIndex(end => end <= middle - half);
        if (lane < 0) lane = ends.length;
        ends[lane] = middle + half + 4;
        found[index] = { centre, middle, lane };
      }
      return { found, count: ends.length };
    }

    function arrange(width, halves, high) {
      const { found, count } = lanes(width, halves);
      found.forEach(({ centre, middle, lane }, index) => {
        const { style } = buttons[index];
        style.left = `${middle - halves[index]}px`;
        style.top = `${8 + lane * high}px`;
        style.setProperty("--stem", `${8 + lane * high}px`);
        style.setProperty("--lean", `${Math.round(centre - middle)}px`);
      });
      track.style.height = `${12 + count * high}px`;
    }

    let ticked = "";
    function ticks(width) {
      if (ticked === `${width} ${state.line}`) return;
      ticked = `${width} ${state.line}`;
      scale.replaceChildren(...marked(width).map(at => {
        const tick = Object.assign(document.createElement("span"), { textContent: at });
        tick.style.left = `${across(at)}%`;
        return tick;
      }));
    }

    function marked(width) {  // positions that have their number below the line
      const step = [1, 2, 4, 8, 16, 32, 64].find(s => (width / state.line) * s >= 26) || 128;
      return Array.from({ length: Math.ceil(state.line / step) }, (_, k) => k * step);
    }

    // Gives the token whose arc is near a place, or -1.
    function arcs(canvas, width, chosen, rows, model, colours, strong = -1) {
      const place = at => (across(at) / 100) * width, { trained, line } = state, others = [...rows.keys()].filter(index => index !== chosen);
      const shown = others.map(index => {
        const { position, share, past } = rows[index];
        return { from: place(state.at[chosen]), to: place(position), share, past, label: label(state.tokens[index], rows[index], model) };
      });
      const limit = trained < line ? { x: (trained / line) * width, label: t`training length` } : null;
      const found = posenc.draw.arcs(canvas, colours, shown, limit, others.indexOf(strong));
      return (x, y) => others[found(x, y)] ?? -1;
    }

    function numbers(chosen, rows, model) {
      const s = state, [more, heading] = extra(model), content = model.kind !== "distance" || !s.position_only;
      find("#explorer-scores-title").textContent = t`Attention of ${quoted(s.tokens[chosen])} at position ${s.at[chosen]}`;
      const head = [t`key`, t`position`, t`distance`, ...(more ? [heading] : []), ...(content ? [t`dot product`] : []), ...(model.kind === "distance" ? [model.bucketed ? t`bucket` : t`bias`] : []), t`weight`], headings = row("th", head);
      headings.lastChild.colSpan = 2;  // as a number and as a bar
      find(".scores thead").replaceChildren(headings);
      find(".scores tbody").replaceChildren(...rows.map((one, index) => {
        const line = row("td", [
          String(one.position), number(one.distance), ...(more ? [more(one)] : []), ...(content ? [data(one.product)] : []),
          ...(model.kind === "distance" ? [data(one.bucket ?? one.bias)] : []), one.hidden ? t`hidden` : weight(one), bar(one),
        ]);
        if (index === chosen) line.className = "itself";
        line.prepend(Object.assign(document.createElement("th"), { scope: "row", textContent: s.tokens[index] }));
        return line;
      }));
      find("#explorer-line-see").textContent = sentence(chosen, rows, model);
      find("#explorer-line-words").textContent = vectors(model);
    }

    function sentence(chosen, rows, model) {
      const word = quoted(state.tokens[chosen]), alone = state.position_only;
      const others = rows.map((one, index) => ({ ...one, index })).filter(one => one.index !== chosen && !one.hidden);
      if (state.encoding === "none" && alone) return t`Move ${word} anywhere: without an encoding nothing changes, and no order of the words differs from another.`;
      if (state.encoding === "none") return t`Move ${word} anywhere: without an encoding its weights stay as they are, and equal words get equal weights.`;
      const move = t`Move ${word}, with the pointer or the arrow keys. ${alone ? t`Positions alone count here, whatever the words` : t`Words and positions count`}:`;
      if (others.length === 0) return t`${move} ${rows.length > 1 ? t`all other keys are hidden, so it attends to itself` : t`it is the only token`}.`;
      if (model.bucketed) {
        return t`${move} each distance falls into a bucket, for which the model learns a number. It starts near 0 and is drawn as 0: ${alone ? t`all weights are equal` : t`the words alone decide the weights`}.`;
      }
      const best = others.reduce((most, one) => (one.weight > most.weight ? one : most)), far = Math.abs(best.distance);
      const alike = others.filter(one => one.weight > best.weight * (1 - 1e-9)).length > 1;
      const where = say(`{0}, {1} position${far === 1 ? "" : "s"} ${best.distance > 0 ? "before" : "after"} it`, quoted(state.tokens[best.index]), far);
      const why = best.bias === null ? t`dot product ${number(best.product)}` : t`bias ${number(best.bias)}`;
      if (others.length === 1) return t`${move} ${where}, gets ${percent(best.weight)} of its attention (${why}).`;
      return t`${move} of the other keys, ${where}, gets ${alike ? t`as much as any other` : t`the most`}: ${percent(best.weight)} of its attention (${why}).`;
    }

    function vectors(model) {
      const { dim, position_only: alone } = state, root = `√${dim}`;
      const learned = t`No weights are trained here.`, scores = t`Scores are dot products over ${root}`;
      const own = t`Each word has a fixed random vector of ${dim} channels; equal words have equal vectors, capitals aside.`;
      if (model.rotates) return t`${alone ? t`Every word has the same vector here, of ${dim} ones.` : own} Query and key are that vector, turned by the position. ${scores}. ${learned}`;
      if (model.kind === "position") return t`${alone ? t`Words have no vectors here: query and key are the codes of their positions.` : t`${own} Query and key are that vector plus the code of the position.`} ${scores}. ${learned}`;
      const times = model.softmax.scale(state.at[state.token - 1]);
      if (model.kind === "nothing") return alone ? t`Words have no vectors here: every score is 0.` : t`${own} Query and key are that vector. ${scores}${times === 1 ? "" : t`, times ${number(times)}`}. ${learned}`;
      if (model.measured) return alone ? t`Words have no vectors here: scores are the mean of what training added at their distance.` : t`${own} Query and key are that vector. ${scores}, plus the mean of what training added at their distance.`;
      if (alone) return t`Words have no vectors here: scores are the bias alone.`;
      if (state.encoding === "t5") return t`${own} Key is that vector, and query that vector over ${root}, since T5 does not divide its scores${model.bucketed ? "" : t`; the bias is added`}.${model.bucketed ? ` ${learned}` : ""}`;
      return t`${own} Query and key are that vector. ${scores}, plus the bias. ${learned}`;
    }

    function marks(chosen, rows, model, colours) {  // what the legend explains
      const others = rows.filter((_, index) => index !== chosen), most = Math.max(0, ...others.map(one => one.weight));
      const items = [{ stroke: colours.around.css[225], text: t`attention weight, as thickness and colour: the thickest is ${percent(most)}` }];
      if (others.some(one => one.past)) items.push({ stroke: colours.past, text: model.bucketed ? t`a bucket that training did not use` : model.rotates ? t`at an angle that training did not have` : t`a distance that training did not have` });
      if (others.some(one => one.hidden)) items.push({ stroke: colours.soft, dashed: true, text: t`hidden from the query` });
      return items;
    }

    function legend(chosen, rows, model, colours) {
      find(".ruler-legend").replaceChildren(...marks(chosen, rows, model, colours).map(posenc.plot.legend));
      const labels = { range: t`Point at an arc for its distance, and what the slowest and the fastest pair make of it.`, map: t`Point at an arc for its distance, and what the score sees it as.`, bucket: t`Point at an arc for its bucket.` }[labelled(model)] || t`Point at an arc for its distance and weight.`;
      find("#explorer-line-signs").textContent = t`${weighed(rows, model)} ${labels} Distance is the query’s position minus the key’s, in every panel. ${posenc.views.direction(model)}`.replace("  ", " ");
    }

    function code(chosen, model, colours) {
      const s = state, values = model.codesAt(Float64Array.of(s.at[chosen])), absent = find(".code .absent");
      absent.hidden = Boolean(values);
      find(".strip").hidden = find(".code details").hidden = !values;
      if (values) {
        posenc.draw.strip(find(".strip"), values, posenc.draw.around(colours, values.reduce((a, v) => Math.max(a, Math.abs(v)), 0)));
        if (find(".code details").open) channels(values);
        latest = values;
      } else absent.textContent = posenc.views.codes.absent(model);
      find("#explorer-code-title").textContent = model.rotates ? t`A vector of ones at position ${s.at[chosen]}` : t`The code of position ${s.at[chosen]}`;
    }

    let latest = null;
    function channels(values) {
      find(".channels").start = 0;
      find(".channels").replaceChildren(...Array.from(values, value => {
        const item = document.createElement("li");
        item.append(data(value));
        return item;
      }));
    }
    find(".code details").addEventListener("toggle", () => latest && channels(latest));

    // The line as a view that can be saved: {title, height, draw(canvas, colours), legend(model, colours)}.
    function picture(model, width) {
      const chosen = state.token - 1, rows = posenc.words.attention(state, model), halves = buttons.map(button => button.offsetWidth / 2);
      const { found, count } = lanes(width, halves), top = 200, high = 24, row = high + GAP, bottom = top + 12 + count * row;
      function draw(canvas, colours) {
        const context = canvas.getContext("2d");
        arcs({ ...canvas, clientHeight: top }, width, chosen, rows, model, colours);
        Object.assign(context, { font: colours.font, textAlign: "center", textBaseline: "middle", lineWidth: 1, fillStyle: colours.line });
        context.fillRect(0, top, width, 2);
        found.forEach(({ centre, middle, lane }, index) => {
          const half = halves[index], y = top + 8 + lane * row;
          context.fillStyle = colours.soft;
          context.fillRect(centre, top, 1, y - top);
          context.fillStyle = index === chosen ? colours.accent : colours.ground;
          context.strokeStyle = state.at[index] >= state.trained ? colours.past : colours.line;
          context.fillRect(middle - half, y, 2 * half, high);
          context.strokeRect(middle - half, y, 2 * half, high);
          context.fillStyle = index === chosen ? colours.ground : colours.ink;
          context.fillText(state.tokens[index], middle, y + high / 2, 2 * half - 4);
        });
        context.fillStyle = colours.soft;
        for (const at of marked(width)) context.fillText(String(at), (across(at) / 100) * width, bottom + 8);
      }
      return { title: find("#explorer-scores-title").textContent, height: bottom + 22, draw, legend: (_, colours) => marks(chosen, rows, model, colours) };
    }

    return { show, picture };
  }

  // How scores became weights, and how much no key got.
  function weighed(rows, { softmax: { sticks, sink } }) {
    const rest = percent(Math.max(0, 1 - rows.reduce((sum, one) => sum + one.weight, 0)));
    if (sticks) return t`From the nearest key on, each takes sigmoid(score) of what is left; ${rest} is left over.`;
    return t`Weights are the softmax of the scores over all keys, with the query’s own${sink === -Infinity ? "" : t`, and a sink, which gets ${rest}`}.`;
  }

  // The places after one token moved: whoever was there takes its old one.
  function placed(from, index, to) {
    const found = [...from], other = from.indexOf(to);
    if (other >= 0) found[other] = from[index];
    found[index] = to;
    return found;
  }

  const percent = share => (share > 0 && share < 0.001 ? "<0.1\u00a0%" : `${Number((100 * share).toPrecision(share < 0.1 ? 2 : 3))}\u00a0%`);
  const labelled = model => (model.bucketed ? "bucket" : model.mapped ? "map" : model.stretch.low !== 1 || model.stretch.high !== 1 ? "range" : null);

  // What pairs make of a distance under a schedule: the slowest and the fastest, as a share of their speed in training.
  function span(distance, { low, high }) {
    const [a, b] = [distance * low, distance * high].map(rounded);
    return a === b ? a : `${a}…${b}`;
  }

  const rounded = value => number(Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(2)));

  function label(word, one, model) {
    const as = { bucket: () => t`, bucket ${one.bucket}`, map: () => ` → ${number(one.seen)}`, range: () => ` → ${span(one.distance, model.stretch)}` }[labelled(model)];
    return one.hidden ? t`${word}: hidden` : t`${word}: distance ${number(one.distance)}${as ? as() : ""}, ${percent(one.weight)}`;
  }

  // A column of the table for what a method makes of the distance, and its heading.
  function extra(model) {
    if (model.mapped) return [one => data(one.seen), t`effective`];
    return labelled(model) === "range" ? [one => span(one.distance, model.stretch), t`effective`] : [null, ""];
  }

  function weight(one) {
    return Object.assign(document.createElement("data"), { value: String(one.weight), textContent: percent(one.weight) });
  }

  function bar(one) {
    const found = Object.assign(document.createElement("span"), { className: "bar" });
    if (one.share === null) return found;
    const inside = document.createElement("i");
    inside.style.width = `${100 * one.share}%`;
    if (one.past) inside.className = "past";
    found.append(inside);
    return found;
  }

  return { made };
})();
