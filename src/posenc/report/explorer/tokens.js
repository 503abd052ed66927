"use strict";
// The line of tokens: each is a slider on the positions, moved by mouse, finger or keys. A token put on another's place
// changes places with it. What the chosen one shares with the others stands below in numbers.
posenc.tokens = (() => {
  const { number } = posenc.draw, { row, data } = posenc.plot;
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
        const told = index === chosen ? "" : `, ${said(scores[index], model)} with position ${now.at[chosen]}`;
        for (const [name, value] of Object.entries({
          role: "slider", tabindex: 0, "aria-label": `Token ${word}`, "aria-valuemin": 0, "aria-valuemax": now.line - 1,
          "aria-valuenow": at, "aria-valuetext": `position ${at}${told}`, "aria-current": index === chosen,
        })) button.setAttribute(name, value);
      });
      arrange();
      arcs(chosen, strengths(scores, chosen, model), colours);
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

    function arcs(chosen, shares, colours) {
      const width = track.clientWidth;
      posenc.draw.arcs(ruler.querySelector(".arcs"), colours, shares.flatMap((share, index) => {
        if (share === null) return [];
        return [{ from: (across(state.at[chosen]) / 100) * width, to: (across(state.at[index]) / 100) * width, share }];
      }));
    }

    function numbers(chosen, scores, model) {
      const s = state, column = unit(model), shares = strengths(scores, chosen, model);
      const what = { bias: `What head ${s.head} adds to the score of`, bucket: "T5’s bucket of the distance from" }[column] || "Dot products of";
      const with_ = column === "bucket" ? "to" : "with";
      find("#explorer-scores-title").textContent = `${what} ${quoted(s.tokens[chosen])}, at position ${s.at[chosen]}, ${with_}`;
      find(".scores thead").replaceChildren(row("th", ["token", "position", "distance back", ...(model.map ? ["seen as"] : []), column, column === "bucket" ? "" : "strength"]));
      find(".scores tbody").replaceChildren(...s.tokens.flatMap((word, index) => {
        if (index === chosen) return [];
        const apart = s.at[chosen] - s.at[index], seen = model.map ? [Math.sign(apart) * model.scoredAt(s.at[chosen], s.at[index])] : [];
        const line = row("td", [String(s.at[index]), number(apart), ...seen.map(data), data(scores[index]), bar(column === "bucket" ? null : shares[index])]);
        line.prepend(Object.assign(document.createElement("th"), { scope: "row", textContent: word }));
        return [line];
      }));
      find("#explorer-line-see").textContent = sentence(chosen, scores, model);
    }

    function sentence(chosen, scores, model) {
      const word = quoted(state.tokens[chosen]), others = scores.map((score, index) => [score, index]);
      const known = others.filter(([score, index]) => index !== chosen && score !== null && !Number.isNaN(score));
      if (model.kind === "nothing") return `Move ${word} anywhere: without an encoding nothing changes, and no order of the words differs from another.`;
      const move = `Move ${word}, with the pointer or the arrow keys. Positions alone count here, whatever the words:`;
      if (unit(model) === "bucket") return `${move} each distance falls into a bucket, for which the model learns a number. It is not known before training, so all arcs are alike.`;
      if (known.length === 0) return `${move} the code moves with the token.`;
      const [score, index] = known.reduce((best, one) => (one[0] > best[0] ? one : best));
      const apart = state.at[chosen] - state.at[index], far = Math.abs(apart), other = state.at[index];
      const where = `${far} ${far === 1 ? "position" : "positions"} ${apart > 0 ? "before it" : "after it"} (${number(score)})`;
      return model.kind === "distance"
        ? `${move} head ${state.head} adds the most to the score of position ${state.at[chosen]} with position ${other}, ${where}.`
        : `${move} the code of position ${state.at[chosen]} has its largest dot product with that of position ${other}, ${where}.`;
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

  // How much each of the others gains by its score, next to the others: 1 for the largest score, FAINT for the smallest; null
  // where there is none. A bucket's number is no score, so those are all as faint.
  const FAINT = 0.1;
  function strengths(scores, chosen, model) {
    const known = scores.filter((score, index) => index !== chosen && score !== null && !Number.isNaN(score));
    const low = Math.min(...known), high = Math.max(...known);
    return scores.map((score, index) => {
      if (index === chosen || score === null || Number.isNaN(score) || model.kind === "nothing") return null;
      if (unit(model) === "bucket") return FAINT;
      return high > low ? FAINT + ((1 - FAINT) * (score - low)) / (high - low) : 1;
    });
  }

  function said(score, model) {
    if (Number.isNaN(score)) return "hidden";
    return score === null ? "no score" : `${unit(model)} ${number(score)}`;
  }

  function unit(model) {
    if (model.kind !== "distance") return "dot product";
    return model.state.encoding === "t5" ? "bucket" : "bias";
  }

  function bar(share) {
    const found = Object.assign(document.createElement("span"), { className: "bar" });
    if (share === null) return found;
    const inside = document.createElement("i");
    inside.style.width = `${100 * share}%`;
    found.append(inside);
    return found;
  }

  return { made, compared, strengths };
})();
