"use strict";
// The play button: moves one field through its range and back, until it is stopped. Where less motion is preferred, each press
// is one step. Nothing of it is a step of the browser's history.
posenc.play = (() => {
  const { t } = posenc.language;
  const ROUND = 8000, STEPS = 32;  // milliseconds from one end to the other, and how many values it stops at

  // act: {state(), field(): the name of a numeric field or "at", possible(field), change(part), rested(): after it stopped}
  function made(button, act) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)");
    let running = null;

    function show() {
      const name = posenc.play.named(act.field());
      const words = running ? t`Pause` : t`${calm.matches ? t`Step` : t`Play`}: ${name}`;
      if (button.textContent !== words) button.textContent = words;
      button.setAttribute("aria-pressed", Boolean(running));
    }

    function stop() {
      if (!running) return;
      cancelAnimationFrame(running.frame);
      running = null;
      act.rested();
      show();
    }

    function start() {
      const field = act.field(), values = range(field, act.state());
      const at = nearest(values, valueOf(field, act.state()));
      if (calm.matches) return put(field, values[(at + 1) % values.length]);
      running = { field, values, from: performance.now() - (at / (values.length - 1)) * ROUND, latest: at, frame: 0 };
      step();
      show();
    }

    function step() {
      const { field, values, from } = running;
      if (!act.possible(field)) return stop();
      const along = ((performance.now() - from) / ROUND) % 2, share = along > 1 ? 2 - along : along;
      const at = Math.round(share * (values.length - 1));
      if (at !== running.latest) put(field, values[at]);
      running.latest = at;
      running.frame = requestAnimationFrame(step);
    }

    function put(field, value) {
      const state = act.state();
      if (field !== "at") return act.change({ [field]: value });
      const chosen = state.token - 1;
      if (state.at.some((place, index) => place === value && index !== chosen)) return;  // it jumps over the others
      act.change({ at: state.at.map((place, index) => (index === chosen ? value : place)).join(",") });
    }

    button.addEventListener("click", () => (running ? stop() : start()));
    addEventListener("visibilitychange", () => document.hidden && stop());
    calm.addEventListener("change", stop);
    return { show, stop, running: () => Boolean(running) };
  }

  const valueOf = (field, state) => (field === "at" ? state.at[state.token - 1] : state[field]);

  function nearest(values, value) {
    return values.reduce((best, one, at) => (Math.abs(one - value) < Math.abs(values[best] - value) ? at : best), 0);
  }

  // What a field goes through: every place of the line, or values from its least to its largest, by equal factors where its
  // slider is logarithmic.
  function range(field, state) {
    if (field === "at") return Array.from({ length: state.line }, (_, at) => at);
    const { kind, step, log } = posenc.state.FIELDS[field], unit = kind === "integer" ? step || 1 : step;
    const [min, max] = posenc.state.range(field, state), top = field === "head" ? state.heads : max;
    const values = Array.from({ length: STEPS + 1 }, (_, k) => {
      const value = log ? min * (top / min) ** (k / STEPS) : min + ((top - min) * k) / STEPS;
      return unit ? min + Math.round((value - min) / unit) * unit : Number(value.toPrecision(3));
    });
    return [...new Set(values)].filter(value => value >= min && value <= top);
  }

  const named = field => (field === "at" ? t`token` : posenc.state.FIELDS[field].label.toLowerCase());

  return { made, named, range };
})();
