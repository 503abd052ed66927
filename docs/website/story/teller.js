"use strict";
// One beginning and two endings: up to the context length the model writes as trained, then two columns go on from one seed, each
// by its own method; and the surprise of a healthy copy at every token: what the model as trained
// assigns with at most `trained` tokens before it. Its context restarts at half of that, so that it has never less.
posenc.teller = (() => {
  const PLAIN = "none", PIECES = "truncation", TEMPERATURE = 0.8, TOP = 40, FORBIDDEN = 3;  // unknown, begin and end

  // Numbers in [0, 1) that a seed gives: mulberry32 (T. Ettinger, 2017).
  function numbers(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), state | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
    };
  }

  function drawn(logits, number) {
    const best = [];
    for (let id = FORBIDDEN; id < logits.length; id++) {
      if (best.length === TOP && logits[id] <= logits[best[TOP - 1]]) continue;
      let at = best.length === TOP ? TOP - 1 : best.length;
      for (; at > 0 && logits[best[at - 1]] < logits[id]; at--) best[at] = best[at - 1];
      best[at] = id;
    }
    const shares = best.map(id => Math.exp((logits[id] - logits[best[0]]) / TEMPERATURE));
    let left = number * shares.reduce((sum, one) => sum + one, 0);
    return best[shares.findIndex(share => (left -= share) < 0)] ?? best[0];
  }

  function surprise(logits, token) {  // nats
    let top = -Infinity, sum = 0;
    for (const one of logits) if (one > top) top = one;
    for (const one of logits) sum += Math.exp(one - top);
    return top + Math.log(sum) - logits[token];
  }

  function healthy(engine, methods, trained) {
    let [now, next] = [engine.stream(trained), engine.stream(trained)];
    const half = trained >> 1;
    function begin() {
      now.place(methods[PLAIN]);
      next.place(methods[PLAIN]);
    }
    function read(token, wanted = true) {  // logits, or a promise of them
      if (now.length === trained) {
        [now, next] = [next, now];
        next.place(methods[PLAIN]);
      }
      if (now.length >= half) next.read(token, false);
      return now.read(token, wanted);
    }
    return { begin, read };
  }

  function teller(engine, methods, trained, most) {
    const columns = [0, 1].map(() => ({ stream: engine.stream(most), judge: healthy(engine, methods, trained) }));
    let at = 0, random = null, beginning = [], until = most;

    // names: of the columns' methods. tokens: that both begin with. length: where they end.
    function begin({ seed, names, tokens, length }) {
      [random, at, beginning, until] = [numbers(seed), 0, tokens, Math.min(length, most)];
      columns.forEach((column, which) => {
        Object.assign(column, { name: names[which], token: tokens[0], surprise: 0 });
        column.stream.place(methods[names[which]]);
        column.judge.begin();
      });
    }

    // The next token of both: [{token, surprise}, ..], or null at the end. Up to the context length both are the first column's.
    async function step() {
      if (at >= until) return null;
      const found = columns.map(({ token, surprise: cost }) => ({ token, surprise: cost })), shared = at < trained - 1;
      at += 1;
      const number = at < beginning.length ? 0 : random();
      const logits = await Promise.all(columns.map((column, which) => read(column, !(shared && which))));
      columns.forEach((column, which) => {
        const { own, judged } = logits[shared ? 0 : which];
        column.token = at < beginning.length ? beginning[at] : shared && which ? columns[0].token : drawn(own, number);
        column.surprise = surprise(judged, column.token);
      });
      return found;
    }

    // A column's own logits after its token, and those of the healthy copy; wanted: whether anybody looks at them.
    async function read({ name, token, stream, judge }, wanted) {
      const alike = name === PIECES || (name === PLAIN && at <= trained);
      if (name !== PIECES && (alike || !wanted)) stream.read(token, false);  // the healthy copy has the same logits
      const [judged, other] = await Promise.all([judge.read(token, wanted), alike || !wanted ? null : stream.read(token)]);
      return { judged, own: other || judged };
    }

    // The probability of each candidate after a text, by a method: yields how much of the text is read, returns the probabilities.
    async function* answer(name, tokens, candidates) {
      const { stream, judge } = columns[0], read = name === PIECES ? judge.read : stream.read;
      if (name === PIECES) judge.begin();
      else stream.place(methods[name]);
      let logits = null;
      for (let index = 0; index < tokens.length; index++) {
        logits = await read(tokens[index], index === tokens.length - 1);
        yield index / tokens.length;
      }
      return candidates.map(id => Math.exp(-surprise(logits, id)));
    }

    return { begin, step, answer };
  }

  return { teller, numbers };
})();
