"use strict";
// The words and drawings about what was read. `found`: {state, tokens, shown, plain, pieces}: what each byte costs as chosen,
// without an extension, and read in pieces of the training length; functions of a byte's number from 0, in nats.
posenc.predicted = (() => {
  const { t } = posenc.language, { trained, named, method } = posenc.chosen, { number } = posenc.draw, AROUND = 16, BIN = 32;

  function character(bytes, at) {  // a byte as it is shown; of a character of several bytes, all of it on the first
    const one = bytes[at];
    if (one === 10) return "↵";
    if (one === 32) return "␣";
    if (one < 128) return one > 32 && one < 127 ? String.fromCharCode(one) : "▯";
    if ((one & 0xc0) === 0x80) return "·";
    const size = one >= 0xf0 ? 4 : one >= 0xe0 ? 3 : 2;
    return new TextDecoder().decode(bytes.slice(at, at + size));
  }

  const SPOKEN = { "↵": t`a new line`, "␣": t`a space`, "·": t`a part of a character`, "▯": t`a control character` };
  const spoken = shown => SPOKEN[shown] || t`“${shown}”`;

  function mean(of, from, until) {
    let sum = 0;
    for (let at = from; at < until; at++) sum += of(at);
    return until > from ? sum / (until - from) : NaN;
  }

  const nats = value => value.toFixed(2);
  const model = state => (state.encoding === "none" ? t`the model without an encoding` : t`the ${named[state.encoding].title} model`);

  function apart(difference) {
    if (Math.abs(difference) < 0.005) return t`nothing`;
    const value = nats(Math.abs(difference));
    return difference > 0 ? t`${value} nats per byte more` : t`${value} nats per byte less`;
  }

  // What reading past the training length costs: the means of the bytes that are predicted from more bytes than training had.
  function past({ tokens, shown, plain, pieces }) {
    const of = loss => mean(loss, trained + 1, tokens.length);
    return { shown: of(shown), plain: of(plain), pieces: of(pieces) };
  }

  function headline(found) {
    const { state, tokens } = found;
    if (tokens.length < 2) return t`There is nothing to predict: choose a text, or type one.`;
    if (tokens.length <= trained + 1) return t`This text has ${tokens.length} bytes, and training had ${trained}: choose or type a longer one to see what comes past them.`;
    const { shown, plain, pieces } = past(found);
    if (Number.isNaN(shown + plain + pieces)) return "";
    const start = Math.abs(plain - pieces) < 0.005
      ? t`Past ${trained} bytes, ${model(state)} loses nothing against reading the same bytes in pieces of ${trained}`
      : t`Past ${trained} bytes, ${model(state)} loses ${apart(plain - pieces)} than reading the same bytes in pieces of ${trained}`;
    if (state.method === "none") return t`${start}: ${nats(plain)}, and ${nats(pieces)} in pieces.`;
    return t`${start}; with ${method(state)}, ${apart(shown - pieces)}.`;
  }

  // ------------------------------------------------------------------ the loss over the text

  // The mean of the bytes around each one, at the text's ends of fewer; of those before and past the training length apart.
  function smooth(loss, count) {
    return Array.from({ length: count }, (_, at) => {
      const [first, last] = at <= trained ? [1, Math.min(trained + 1, count)] : [trained + 1, count];
      return at ? mean(loss, Math.max(first, at - AROUND), Math.min(last, at + AROUND + 1)) : NaN;
    });
  }

  function curves({ state, tokens, shown, plain, pieces }, colours) {
    const many = tokens.length > trained + 1, extended = state.method !== "none";
    const chosen = extended ? method(state) : named[state.encoding].title;
    return [
      { name: t`in pieces of ${trained}`, loss: pieces, colour: colours.soft, dash: [3, 3], shown: many },
      { name: t`without an extension`, loss: plain, colour: colours.palette[1], dash: [7, 4], shown: extended },
      { name: chosen, loss: shown, colour: colours.palette[0], width: 2.6, shown: true },
    ].filter(one => one.shown).map(one => ({ ...one, y: smooth(one.loss, tokens.length) }));
  }

  function draw(canvas, colours, found) {
    const series = curves(found, colours), count = found.tokens.length;
    const marks = count > trained ? [{ x: trained, label: t`trained on ${trained}` }] : [];
    return posenc.draw.lines(canvas, colours, {
      series, marks, past: count > trained ? trained : undefined,
      x: { label: t`bytes read`, low: 0, high: Math.max(count, 2) }, y: { label: t`nats per byte`, low: 0 },
    });
  }

  const legend = (found, colours) => curves(found, colours).map(one => ({ stroke: one.colour, dashed: Boolean(one.dash), text: one.name }));

  function read(found, colours, row, column) {
    const one = curves(found, colours)[row];
    return one && column < found.tokens.length
      ? t`${one.name}, byte ${column + 1} (${spoken(character(found.tokens, column))}): ${number(one.y[column])} nats per byte around it, ${number(one.loss(column))} for it` : "";
  }

  function table(found, colours) {
    const series = curves(found, colours), count = found.tokens.length, rows = [];
    for (let from = 0; from < count; from += BIN) {
      const until = Math.min(from + BIN, count);
      if (until > 1) rows.push([t`${from + 1} to ${until}`, ...series.map(one => mean(one.loss, Math.max(from, 1), until))]);
    }
    return { caption: t`Nats per byte, the mean of ${BIN} bytes.`, head: [t`bytes`, ...series.map(one => one.name)], rows };
  }

  // ------------------------------------------------------------------ the next byte

  // The likeliest bytes after one, and what followed: {byte, share, followed}.
  function guesses(shares, tokens, at, count = 8) {
    const order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, count), next = tokens[at + 1];
    if (next !== undefined && !order.includes(next)) order[count - 1] = next;
    return order.map(byte => ({ byte, share: shares[byte], followed: byte === next }));
  }

  function expects(shares, tokens, at) {
    const next = tokens[at + 1];
    if (next === undefined) return t`The text ends here: this is what the model would write next.`;
    const rank = shares.reduce((before, share) => before + (share > shares[next]), 1);
    const shown = spoken(character(tokens, at + 1));
    return rank === 1 ? t`What followed is ${shown}, to which it gave ${percent(shares[next])}, its first guess.`
      : t`What followed is ${shown}, to which it gave ${percent(shares[next])}, its guess number ${rank}.`;
  }

  const percent = share => (share < 0.001 ? t`less than 0.1 %` : `${number(Number((100 * share).toPrecision(3)))} %`);

  // ------------------------------------------------------------------ attention

  const name = ({ heads }, row) => t`layer ${Math.floor(row / heads) + 1}, head ${(row % heads) + 1}`;

  function beyond(row, at) {  // the share of what is farther away than any two bytes were in training
    return row.slice(0, Math.max(0, at - trained + 1)).reduce((sum, share) => sum + share, 0);
  }

  function looks(rows, at) {
    const shares = rows.map(row => beyond(row, at)), all = shares.reduce((sum, share) => sum + share, 0) / rows.length;
    if (at < trained) return t`Byte ${at + 1} has fewer than ${trained} bytes before it: no distance is new.`;
    return t`Of what its heads look at, ${percent(all)} is ${trained} bytes away or more, farther than anything in training.`;
  }

  function heat(canvas, colours, model, rows, at) {
    const values = Float64Array.from(rows.flatMap(row => {
      const top = Math.max(...row);
      return Array.from(row, share => share / top);
    }));
    const names = rows.map((_, row) => `${Math.floor(row / model.heads) + 1}.${(row % model.heads) + 1}`);
    return posenc.draw.heat(canvas, colours, {
      rows: rows.length, columns: at + 1, values, pixel: posenc.draw.between(colours, 0, 1),
      x: { label: t`the byte looked at, from 0` }, y: { label: t`layer.head`, names },
      marks: at >= trained ? [{ x: at - trained + 1, label: t`${trained} away` }] : [],
    });
  }

  const looksAt = (model, tokens, rows, at, row, column) =>
    t`${name(model, row)}: ${percent(rows[row][column])} on byte ${column + 1} (${spoken(character(tokens, column))}), ${at - column} before`;

  function tableOf(model, tokens, rows, at) {
    return {
      caption: t`Where byte ${at + 1} looks.`, head: [t`head`, t`most on byte`, t`share`, t`how far before`, t`${trained} or more before`],
      rows: rows.map((row, index) => {
        const top = row.indexOf(Math.max(...row));
        return [name(model, index), top + 1, percent(row[top]), at - top, percent(beyond(row, at))];
      }),
    };
  }

  return { character, spoken, nats, past, headline, draw, legend, read, table, guesses, expects, percent, looks, heat, looksAt, tableOf };
})();
