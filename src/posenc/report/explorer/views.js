"use strict";
// What each view shows of a model: one sentence, a drawing, its legend, what is read under the pointer, and a small table.
// `absent` says why a view has nothing to show.
posenc.views = (() => {
  const { say, t } = posenc.language, { number } = posenc.draw;
  const POWERS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1023];
  const count = new Intl.NumberFormat("en").format;
  const most = values => values.reduce((top, v) => (Math.abs(v) > top ? Math.abs(v) : top), 0);
  const sampled = n => [...new Set([...POWERS.filter(at => at < n), n - 1])];
  const several = (k, one) => say(`{0} ${one}${k === 1 ? "" : "s"}`, count(k));
  const percent = share => (share > 0 && share < 0.01 ? t`less than 1 %` : `${Math.round(100 * share)} %`);

  const BOTH = t`In both directions: a decoder hides the keys after the query.`;
  const CAUSAL = t`Causal: a query sees no key after itself.`;

  const direction = m => (m.causal ? CAUSAL : BOTH);

  const positions = (m, label, counted = m.n) => ({ label, counted, low: 0, high: Math.max(counted - 1, 1) });
  const ramp = (css, texts) => ({ ramp: css, texts });
  const stroke = (colour, text, dashed) => ({ stroke: colour, text, dashed });

  function noCodes(m) {
    return m.kind === "distance"
      ? t`${title(m)} gives positions no codes: it adds a number to each score, by distance. That is in “Bias per head”.`
      : elsewhere(m) || t`Without an encoding there are no codes: every position is the same to attention.`;
  }

  const title = m => posenc.settings.names[m.state.encoding].replace(/,? \(.*|, .*/, "");

  // Of an encoding that gives pairs nothing of their own, what it does instead; else "".
  function elsewhere(m) {
    if (m.kind !== "nothing" || m.state.encoding === "none") return "";
    return m.map ? t`${title(m)} hides keys and changes nothing else: which ones is in “Effective relative position” and on the line of tokens.`
      : t`${title(m)} acts on how scores become weights, which the line of tokens shows.`;
  }

  const codes = {
    absent: m => (m.codes ? "" : noCodes(m)),
    see(m) {
      const d = m.state.dim;
      if (m.waves) {
        const waves = m.wavelengths, turning = waves.filter(Number.isFinite), last = turning[turning.length - 1];
        const what = m.rotates ? t`A vector of ones, turned at each position` : t`Each row is the code of one position`;
        const turn = t`the first pair of channels is back where it was after ${number(waves[0])} positions, the last after ${number(last)}`;
        return t`${what}: ${turn}.`;
      }
      if (m.state.encoding === "binary") return t`Each row is a position in binary: channel 0 flips at every step, each next one half as often.`;
      if (m.state.encoding === "learned") return t`Each row is the code of one position, as it was learned: neighbours are no more alike than the text made them, and past the last row there is none.`;
      const top = m.codesTop;
      return t`All of the code is in one channel (of ${d}; the library learns its direction): it goes up to ${number(top)} at position ${m.n - 1}.`;
    },
    draw(canvas, colours, m) {
      return posenc.draw.heat(canvas, colours, {
        rows: m.n, columns: m.state.dim, values: m.codes, pixel: posenc.draw.around(colours, m.codesTop), x: { label: t`channel` }, y: { label: t`position` },
      });
    },
    legend: (m, colours) => aroundZero(m.codesTop, colours),
    read: (m, row, column) => t`position ${row}, channel ${column}: ${number(m.codes[row * m.state.dim + column])}`,
    table(m) {
      const d = m.state.dim, columns = [...new Set([0, 1, 2, 3, d / 2, d / 2 + 1, d - 2, d - 1])].filter(c => c < d);
      const rows = sampled(m.n).map(at => [String(at), ...columns.map(c => m.codes[at * d + c])]);
      return { caption: t`Some positions, some channels`, head: [t`position`, ...columns.map(c => t`channel ${c}`)], rows };
    },
  };

  function aroundZero(top, colours) {
    return [ramp(posenc.draw.gradient(colours.around), [number(-top), number(top)])];
  }

  const products = {
    absent: m => elsewhere(m) || (m.kind !== "nothing" ? "" : t`Without an encoding, every pair gets the same from its positions: nothing.`),
    see(m) {
      if (m.bucketed) return t`The bucket of each pair: long distances share one${m.state.encodingOptions.bidirectional && !m.causal ? t`, and keys after the query have separate buckets` : ""}. ${direction(m)}`;
      if (m.measured) return t`The mean of what head ${m.state.head} adds at each distance. What it adds to one pair depends on the words: distance explains ${percent(explained(m)[m.state.head - 1])} of the differences. ${CAUSAL}`;
      if (m.state.encoding === "fire") return t`What head ${m.state.head} adds to each pair after training: up to the position that it learned, about 76, a diagonal has one colour; later queries stretch it over all that they see. ${CAUSAL}`;
      if (m.kind === "distance") return t`What head ${m.state.head} adds to the score of each query with each key: every diagonal is one distance, and has one colour. ${direction(m)}`;
      const apart = off(m) / (m.productsTop || 1);
      if (m.map) {
        const { hidden } = m.seen;
        const rest = hidden ? t`; ${percent(hidden)} of the pairs before the query are hidden` : "";
        return apart < 1e-9
          ? t`Scores of equal vectors at the distances that the map gives: still one colour a diagonal${rest}. ${direction(m)}`
          : t`Scores of equal vectors at the distances that the map gives: pairs equally far apart differ by up to ${number(off(m))}${rest}. ${direction(m)}`;
      }
      const sentence = apart < 1e-9
        ? t`Every diagonal has one colour: ${m.state.encoding === "xpos" ? t`the score of two equal vectors` : t`the dot product of two codes`} depends on how far apart they are, not on where they are.`
        : t`Diagonals change colour: at one distance the products still differ by ${number(off(m))} or more, so they say where as well as how far.`;
      return t`${sentence} ${direction(m)}`;
    },
    draw: (canvas, colours, m) => posenc.draw.heat(canvas, colours, {
      rows: m.n, columns: m.n, value: m.product, pixel: posenc.draw.around(colours, m.productsTop),
      x: { label: t`key’s position` }, y: { label: t`query’s position` }, limit: m.state.trained, half: m.causal,
    }),
    legend: (m, colours) => [...aroundZero(m.productsTop, colours), ...hiddenMark(m), ...beyondMark(m, colours)],
    read: (m, i, j) => pairRead(m, i, j, m.product(i, j)),
    table(m) {
      const at = sampled(m.n), rows = at.map(i => [String(i), ...at.map(j => m.product(i, j))]);
      return { caption: t`Queries down, keys across`, head: [t`position`, ...at.map(String)], rows };
    },
  };

  function off(m) {  // the largest spread at one distance, twice: from least to greatest at least that
    if (m.kernel && !m.map) return 0;  // made of the distance alone
    return 2 * most(m.ofDistance.spread.filter(v => !Number.isNaN(v)));
  }

  const hiddenMark = m => (m.causal ? [{ blank: true, text: t`hidden from the query` }] : []);
  const beyondMark = (m, colours) => (m.state.trained < m.n ? [stroke(colours.ink, t`${count(m.state.trained)} apart`, true)] : []);

  function pairRead(m, i, j, value) {
    const where = t`query ${i}, key ${j}`;
    return Number.isNaN(value) ? t`${where}: hidden` : t`${where}, distance ${number(i - j)}: ${number(value)}`;
  }

  const decay = {
    absent: m => (m.decay ? "" : noCodes(m)),
    see(m) {
      const values = m.decay.mean, below = values.findIndex(v => v < 0), last = values[lastSeen(values)];
      const half = values.findIndex(v => v < values[0] / 2), swings = turns(values);
      if (m.state.encoding === "integer" || m.state.encoding === "normalized") return t`The product of two numbers grows with both: on average over pairs, it says nothing clear about distance.`;
      const fall = half > 0 ? t`It falls to half by distance ${half}` : t`It never falls to half within ${count(m.n)} positions`;
      const sign = below > 0 ? t`, below zero first at ${below}` : t`, and never below zero`;
      return t`${fall}${sign}; on the way it turns up again ${several(swings, "time")}, and at distance ${lastSeen(values)} it is ${number(last)} of ${number(values[0])}.`;
    },
    draw(canvas, colours, m) {
      const series = decaySeries(m, colours), all = series.flatMap(s => [...s.y]).filter(v => !Number.isNaN(v));
      const low = Math.min(0, ...all), high = Math.max(...all, low + 1e-9), pad = (high - low) * 0.04;
      return posenc.draw.lines(canvas, colours, {
        series, x: positions(m, t`distance`), y: { label: t`dot product`, low: low - pad, high: high + pad }, past: m.state.trained,
        marks: m.state.trained < m.n ? [{ x: m.state.trained, label: t`training length` }] : [],
      });
    },
    legend: (m, colours) => decaySeries(m, colours).map(s => stroke(s.colour, s.name, Boolean(s.dash))),
    read(m, row, column) {
      const plain = m.decayPlain ? t`, as trained ${number(m.decayPlain[column])}` : "";
      return t`distance ${column}: ${number(m.decay.mean[column])}${plain}`;
    },
    table(m) {
      const head = [t`distance`, t`dot product`, ...(m.decayPlain ? [t`as trained`] : [])];
      const rows = sampled(m.n).map(at => [String(at), m.decay.mean[at], ...(m.decayPlain ? [m.decayPlain[at]] : [])]);
      return { caption: t`The mean over pairs at each distance`, head, rows };
    },
  };

  function decaySeries(m, colours) {
    const name = m.changed ? t`with ${m.state.method}` : m.kernel ? t`dot product` : t`mean dot product`;
    const own = { name, y: m.decay.mean, colour: colours.palette[0], width: 2 };
    return m.decayPlain ? [{ name: t`as trained`, y: m.decayPlain, colour: colours.soft, width: 1.3, dash: [3, 3] }, own] : [own];
  }

  function lastSeen(values) {
    return values.findLastIndex(v => !Number.isNaN(v));
  }

  function turns(values) {
    let found = 0;
    for (let i = 2; i < values.length; i++) found += values[i] > values[i - 1] && values[i - 1] <= values[i - 2];
    return found;
  }

  const waves = {
    absent: m => elsewhere(m) || (m.waves ? "" : m.kind === "nothing" ? t`Without an encoding nothing turns.` : t`${title(m)} has no waves: nothing in it turns.`),
    see(m) {
      const before = m.wavelengthsPlain || m.wavelengths, pairs = before.length, one = k => (k === 1 ? "s" : "");
      const unfinished = before.filter(w => w > m.state.trained).length, beyond = farther(m).filter(Boolean).length;
      const sentence = t`${count(unfinished)} of ${several(pairs, "pair")} ${pairs === 1 || unfinished === 1 ? "does" : "do"} not complete a full rotation within the ${count(m.state.trained)} positions of training`;
      const then = t`at the length shown, ${count(beyond)} of them turn${one(beyond)} farther than they did there`;
      const shown = t`${sentence}${unfinished ? t`; ${then}` : t`: every angle was met`}.`;
      if (!m.wavelengthsPlain) return shown;
      const slower = m.wavelengths.reduce((top, w, c) => Math.max(top, w / before[c]), 0);
      const unchanged = m.wavelengths.filter((w, c) => Math.abs(w / before[c] - 1) < 1e-9).length;
      return t`${shown} With ${m.state.method}, ${several(unchanged, "pair")} turn${one(unchanged)} as before, and the one slowed down most ${Number.isFinite(slower) ? t`turns ${number(slower)} times slower` : t`stands still`}.`;
    },
    draw(canvas, colours, m) {
      const shown = [...m.wavelengths, ...(m.wavelengthsPlain || [])].filter(Number.isFinite), trained = m.state.trained;
      const low = Math.min(...shown, trained) / 1.6, high = Math.max(...shown, trained) * 1.6;
      const colour = farther(m).map(beyond => colours.palette[beyond ? 1 : 0]);
      const now = { name: t`now`, y: m.wavelengths, points: true, colours: colour };
      const before = m.wavelengthsPlain && { name: t`as trained`, y: m.wavelengthsPlain, points: true, hollow: true, colour: colours.soft };
      return posenc.draw.lines(canvas, colours, {
        series: [...(before ? [before] : []), now], x: { ...positions(m, t`pair of channels`, now.y.length), low: -0.5, high: now.y.length - 0.5 }, y: { label: t`wavelength (positions)`, low, high, log: true },
        marks: [{ y: trained, label: t`training length` }],
      });
    },
    legend(m, colours) {
      const found = [{ dot: colours.palette[0], text: t`at angles of training` }, { dot: colours.palette[1], text: t`turns farther` }];
      return m.wavelengthsPlain ? [...found, { dot: colours.soft, hollow: true, text: t`as trained` }] : found;
    },
    read(m, row, column) {
      const plain = m.wavelengthsPlain ? t`, as trained in ${number(m.wavelengthsPlain[column])}` : "";
      const wave = m.wavelengths[column];
      return Number.isFinite(wave) ? t`pair ${column}: a turn in ${number(wave)} positions${plain}` : t`pair ${column} does not turn${plain}`;
    },
    table(m) {
      const head = [t`pair`, t`wavelength (positions)`, t`turns in training`, ...(m.wavelengthsPlain ? [t`as trained`] : [])];
      const before = m.wavelengthsPlain || m.wavelengths;
      const rows = [...m.wavelengths].map((w, c) => [String(c), w, m.state.trained / before[c], ...(m.wavelengthsPlain ? [before[c]] : [])]);
      return { caption: t`Every pair of channels`, head, rows };
    },
  };

  // Of each pair, whether the farthest distance (or position) shown turns it beyond all that it met in training.
  function farther(m) {
    const reach = m.relative ? m.seen.top : m.n - 1;
    return [...m.wavelengths].map((_, c) => posenc.model.newAngle(m, c, reach));
  }

  const relative = {
    absent(m) {
      if (m.relative) return "";
      if (elsewhere(m)) return elsewhere(m);
      return m.kind === "nothing" ? t`Without an encoding, scores see no distance at all.` : t`These codes are added to the input: scores see them only through learned weights, not as a distance.`;
    },
    see(m) {
      const { top, past, hidden } = m.seen;
      const what = m.map ? t`With ${m.mapped ? m.state.method : title(m)}, the` : t`The`;
      const far = t`${what} largest distance that a score sees is ${number(top)}`;
      const rest = past ? t`${percent(past)} of the visible pairs are at distances that training on ${count(m.state.trained)} positions never showed` : t`training showed every one of them`;
      return t`${far}: ${rest}${hidden ? t`, and ${percent(hidden)} of all pairs are hidden` : ""}. ${CAUSAL}`;
    },
    draw(canvas, colours, m) {
      return posenc.draw.heat(canvas, colours, {
        rows: m.n, columns: m.n, values: m.relative, pixel: posenc.draw.upTo(colours, m.state.trained, m.seen.top), x: { label: t`key’s position` }, y: { label: t`query’s position` },
      });
    },
    legend(m, colours) {
      const { top } = m.seen, past = top >= m.state.trained;
      const seen = ramp(posenc.draw.gradient(colours.up), ["0", past ? count(m.state.trained - 1) : number(Math.max(top, m.state.trained - 1))]);
      const beyond = past ? [ramp(posenc.draw.gradient(colours.over), [t`never trained`, number(top)])] : [];
      return [seen, ...beyond, { blank: true, text: t`hidden` }];
    },
    read(m, i, j) {
      const r = m.relative[i * m.n + j];
      return Number.isNaN(r) ? t`query ${i}, key ${j}: hidden` : t`query ${i}, key ${j}, distance ${number(i - j)}: seen as ${number(r)}`;
    },
    table(m) {
      const at = sampled(m.n), rows = at.map(i => [String(i), ...at.map(j => m.relative[i * m.n + j])]);
      return { caption: t`Queries down, keys across; a dash is hidden`, head: [t`position`, ...at.map(String)], rows };
    },
  };

  const bias = {
    absent(m) {
      if (m.bias) return "";
      if (elsewhere(m)) return elsewhere(m);
      if (m.kind === "nothing") return t`Without an encoding, nothing is added to the scores.`;
      return t`${title(m)} acts ${m.rotates ? t`on queries and keys` : t`at the input`}: it adds nothing to the scores.`;
    },
    see(m) {
      const end = m.n - 1, of = head => m.bias[head * m.n + end];
      if (m.state.encoding === "t5" && !m.bucketed) return t`A learned number per head and bucket: near distances have one each, far ones share. At distance ${end} head ${m.state.head} adds ${number(of(m.state.head - 1))}.`;
      if (m.bucketed) {
        const own = m.bias.slice(0, m.n).findIndex((b, at) => at > 0 && b === m.bias[at - 1]);
        const buckets = new Set(m.bias.slice(0, m.n)).size;
        return t`The bucket of each distance, of which the model learns a number per head: ${own < 0 ? t`each distance has its own` : t`the first ${own} distances have their own`}, and all ${count(m.n)} share ${several(buckets, "bucket")}.`;
      }
      if (m.measured) {
        const shares = explained(m), [low, high] = [Math.min(...shares), Math.max(...shares)].map(percent);
        return t`After training, the mean of what position adds: at distance ${end} ${number(of(0))} in head 1 and ${number(of(3))} in head 4. Distance explains ${low} to ${high} of it, the words the rest.`;
      }
      const one = m.state.heads === 1, alike = !one && Math.abs(of(0) - of(m.state.heads - 1)) < 1e-12;
      const learned = { kerple: t` before training`, sines: t` before training` }[m.state.encoding] || "";
      if (one || alike) return t`${one ? t`Its head adds` : t`All ${m.state.heads} heads add the same${learned}:`} ${number(of(0))} at distance ${end}.`;
      return t`At distance ${end}, head 1 adds ${number(of(0))} and head ${m.state.heads} ${number(of(m.state.heads - 1))}: some heads look near, others far.`;
    },
    draw(canvas, colours, m) {
      const series = heads(m, colours), low = m.bias.reduce((a, b) => Math.min(a, b), 0), high = m.bias.reduce((a, b) => Math.max(a, b), 0);
      const pad = (high - low || 1) * 0.04;
      return posenc.draw.lines(canvas, colours, {
        series, x: positions(m, t`distance`), y: { label: m.bucketed ? t`bucket` : t`added to the score`, low: low - pad, high: high + pad },
        past: m.state.trained, marks: m.state.trained < m.n ? [{ x: m.state.trained, label: t`training length` }] : [],
      });
    },
    legend(m, colours) {
      if (m.bucketed) return [stroke(colours.palette[1], t`every head`)];
      const own = stroke(colours.palette[1], t`head ${m.state.head}, shown above`);
      return m.state.heads === 1 ? [own] : [ramp(posenc.draw.gradient(colours.up), [t`head ${1}`, t`head ${m.state.heads}`]), own];
    },
    read: (m, row, column) => t`${m.bucketed ? "" : t`head ${order(m)[row] + 1}, `}distance ${column}: ${number(m.bias[order(m)[row] * m.n + column])}`,
    table(m) {
      const every = Array.from({ length: m.state.heads }, (_, head) => head);
      const rows = sampled(m.n).map(at => [String(at), ...every.map(head => m.bias[head * m.n + at])]);
      return { caption: t`Every head`, head: [t`distance`, ...every.map(head => t`head ${head + 1}`)], rows };
    },
  };

  const explained = m => Array.from(posenc.options.trained(`${m.state.encoding}/explained`));

  function order(m) {  // the head shown is drawn last, over the others
    const others = Array.from({ length: m.state.heads }, (_, head) => head).filter(head => head !== m.state.head - 1);
    return [...others, m.state.head - 1];
  }

  function heads(m, colours) {
    return order(m).map(head => {
      const own = head === m.state.head - 1, along = m.state.heads === 1 ? 1 : head / (m.state.heads - 1);
      const colour = own ? colours.palette[1] : colours.up.css[posenc.draw.level(0.25 + 0.75 * along)];
      return { name: t`head ${head + 1}`, y: m.bias.subarray(head * m.n, (head + 1) * m.n), colour, width: own ? 2.4 : 1.5 };
    });
  }

  return { elsewhere, codes, products, decay, waves, relative, bias, direction };
})();
