"use strict";
// The line of tokens: each is a slider on the positions, moved by mouse, finger or keys. A token put on another's place
// changes places with it. What the chosen one shares with the others stands below in numbers.
posenc.tokens = (() => {
  const { number } = posenc.draw;
  const LANE = 27;  // pixels from one row of labels to the next
  const quoted = word => `“\u2068${word}\u2069”`;  // apart from the sentence, which a word from right to left would turn

  // root: the section. act: {move(index, position, done), choose(index)}, which change the state and redraw.
  function made(root, act) {
    const find = selector => root.querySelector(selector);
    const track = find(".track"), scale = find(".scale"), ruler = find(".ruler");
    let state = null, buttons = [], drag = null;

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

    function show(now, model, colours) {
      state = now;
      if (buttons.length !== now.tokens.length) {
        track.replaceChildren(...now.tokens.map(() => Object.assign(document.createElement("div"), { className: "token" })));
        buttons = [...track.children];
      }
      const chosen = now.token - 1, scores = compared(now, model);
      buttons.forEach((button, index) => {
        const at = now.at[index], word = now.tokens[index];
        if (button.textContent !== word) button.textContent = word;
        const told = index === chosen ? "" : `, ${said(scores[index], model)} with ${now.tokens[chosen]}`;
        for (const [name, value] of Object.entries({
          role: "slider", tabindex: 0, "aria-label": `Token ${word}`, "aria-valuemin": 0, "aria-valuemax": now.line - 1,
          "aria-valuenow": at, "aria-valuetext": `position ${at}${told}`, "aria-current": index === chosen,
        })) button.setAttribute(name, value);
      });
      arrange();
      arcs(chosen, scores, colours);
      ticks();
      numbers(chosen, scores, model);
      code(chosen, model, colours);
    }

    function arrange() {  // labels that would cover each other go to lower rows
      const width = track.clientWidth, ends = [];
      const byPlace = state.at.map((_, index) => index).sort((a, b) => state.at[a] - state.at[b]);
      for (const index of byPlace) {
        const button = buttons[index], half = button.offsetWidth / 2, centre = (across(state.at[index]) / 100) * width;
        const shown = Math.max(half, Math.min(width - half, centre));
        let lane = ends.findIndex(end => end <= shown - half);
        if (lane < 0) lane = ends.length;
        ends[lane] = shown + half + 4;
        button.style.left = `${shown}px`;
        button.style.top = `${8 + lane * LANE}px`;
        button.style.setProperty("--stem", `${8 + lane * LANE}px`);
        button.style.setProperty("--lean", `${Math.round(centre - shown)}px`);
      }
      track.style.height = `${12 + ends.length * LANE}px`;
    }

    function ticks() {
      const width = track.clientWidth, step = [1, 2, 4, 8, 16, 32, 64].find(s => (width / state.line) * s >= 26) || 128;
      const shown = Array.from({ length: Math.ceil(state.line / step) }, (_, k) => k * step);
      scale.replaceChildren(...shown.map(at => {
        const tick = Object.assign(document.createElement("span"), { textContent: at });
        tick.style.left = `${across(at)}%`;
        return tick;
      }));
    }

    function arcs(chosen, scores, colours) {
      const width = track.clientWidth, top = greatest(scores);
      posenc.draw.arcs(ruler.querySelector(".arcs"), colours, scores.flatMap((score, index) => {
        if (index === chosen || score === null || Number.isNaN(score)) return [];
        return [{ from: (across(state.at[chosen]) / 100) * width, to: (across(state.at[index]) / 100) * width, share: score / top }];
      }));
    }

    function numbers(chosen, scores, model) {
      const s = state, top = greatest(scores), bias = model.kind === "distance", column = unit(model);
      const signed = scores.some(score => score < 0);
      const what = { bias: `What head ${s.head} adds to the score of`, bucket: "T5’s bucket of the distance from" }[column] || "Dot products of";
      const with_ = column === "bucket" ? "to" : "with";
      find("#explorer-scores-title").textContent = `${what} ${quoted(s.tokens[chosen])}, at position ${s.at[chosen]}, ${with_}`;
      find(".scores thead").replaceChildren(row("th", ["token", "position", "distance", ...(model.map ? ["seen as"] : []), column, ""]));
      find(".scores tbody").replaceChildren(...s.tokens.flatMap((word, index) => {
        if (index === chosen) return [];
        const apart = s.at[chosen] - s.at[index], seen = model.map ? [model.scoredAt(s.at[chosen], s.at[index])] : [];
        const line = row("td", [String(s.at[index]), number(bias ? apart : Math.abs(apart)), ...seen.map(data), data(scores[index]), bar(scores[index], top, signed)]);
        line.prepend(Object.assign(document.createElement("th"), { scope: "row", textContent: word }));
        return [line];
      }));
      find("#explorer-line-see").textContent = sentence(chosen, scores, model);
    }

    function sentence(chosen, scores, model) {
      const word = quoted(state.tokens[chosen]), others = scores.map((score, index) => [score, index]);
      const known = others.filter(([score, index]) => index !== chosen && score !== null && !Number.isNaN(score));
      if (model.kind === "nothing") return `Move ${word} anywhere: without an encoding nothing changes, and no order of the words differs from another.`;
      if (unit(model) === "bucket") return `Move ${word}, with the pointer or the arrow keys: each distance falls into a bucket, and the model learns one number for it.`;
      if (known.length === 0) return `Move ${word}, with the pointer or the arrow keys: its code moves with it.`;
      const [score, index] = known.reduce((best, one) => (one[0] > best[0] ? one : best));
      const apart = Math.abs(state.at[chosen] - state.at[index]), other = quoted(state.tokens[index]);
      const most = model.kind === "distance" ? `the most to its score with ${other}` : `the largest dot product with ${other}`;
      const has = model.kind === "distance" ? `head ${state.head} adds` : "it has";
      return `Move ${word}, with the pointer or the arrow keys: where it is now ${has} ${most}, ${apart} ${apart === 1 ? "position" : "positions"} away (${number(score)}).`;
    }

    function code(chosen, model, colours) {
      const s = state, values = model.codesAt(Float64Array.of(s.at[chosen])), absent = find(".code .absent");
      find("#explorer-code-title").textContent = `The code of position ${s.at[chosen]}`;
      absent.hidden = Boolean(values);
      find(".strip").hidden = find(".code details").hidden = !values;
      if (!values) {
        absent.textContent = posenc.views.codes.absent(model);
        return;
      }
      const top = values.reduce((a, v) => Math.max(a, Math.abs(v)), 0);
      posenc.draw.strip(find(".strip"), values, posenc.draw.around(colours, top));
      if (find(".code details").open) channels(values);
      latest = values;
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

    return { show };
  }

  // The places after one token moved: whoever was there takes its old one.
  function placed(from, index, to) {
    const found = [...from], other = from.indexOf(to);
    if (other >= 0) found[other] = from[index];
    found[index] = to;
    return found;
  }

  // The score of the chosen token with each: of bias, as its query; else of the later one with the earlier.
  function compared(state, model) {
    return state.at.map(at => model.score(state.at[state.token - 1], at));
  }

  const greatest = scores => scores.reduce((top, s) => (Math.abs(s) > top ? Math.abs(s) : top), 0) || 1;

  function said(score, model) {
    if (Number.isNaN(score)) return "hidden";
    return score === null ? "no score" : `${unit(model)} ${number(score)}`;
  }

  function unit(model) {
    if (model.kind !== "distance") return "dot product";
    return model.state.encoding === "t5" ? "bucket" : "bias";
  }

  function row(cell, contents) {
    const found = document.createElement("tr");
    found.append(...contents.map(content => {
      const one = document.createElement(cell);
      one.append(content);
      return one;
    }));
    return found;
  }

  function data(value) {
    if (value === null || Number.isNaN(value)) return Number.isNaN(value) ? "hidden" : "–";
    return Object.assign(document.createElement("data"), { value: String(value), textContent: number(value) });
  }

  function bar(score, top, signed) {  // from the left, or from the middle where some are below zero
    const found = Object.assign(document.createElement("span"), { className: `bar ${signed ? "signed" : ""}` });
    if (score === null || Number.isNaN(score) || score === 0) return found;
    const inside = document.createElement("i"), share = (Math.abs(score) / top) * (signed ? 50 : 100);
    inside.className = score < 0 ? "less" : "";
    inside.style.width = `${share}%`;
    inside.style.left = `${signed ? (score < 0 ? 50 - share : 50) : 0}%`;
    found.append(inside);
    return found;
  }

  return { made, compared, row, data };
})();
