"use strict";
// The model's vocabulary: text from tokens, and tokens from a text by merging the pair whose piece is the earliest, as SentencePiece.
posenc.pieces = vocabulary => {
  const ids = new Map(vocabulary.map((piece, id) => [piece, id])), BOS = 1, FIRST_BYTE = 3, BYTES = 256;

  function encoded(text) {
    const found = [BOS];
    for (const letter of ` ${text}`) {
      const id = ids.get(letter);
      if (id !== undefined) found.push(id);
      else for (const byte of new TextEncoder().encode(letter)) found.push(FIRST_BYTE + byte);
    }
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 1; i + 1 < found.length; i++) {
        const id = ids.get(vocabulary[found[i]] + vocabulary[found[i + 1]]) ?? Infinity;
        if (id < best) [best, at] = [id, i];
      }
      if (at < 0) return found;
      found.splice(at, 2, best);
    }
  }

  // What each token adds to the text: nothing while the bytes of a letter are not complete.
  function spelled(tokens) {
    let decoder = new TextDecoder();
    return tokens.map((id, at) => {
      if (id < FIRST_BYTE) return "";
      if (id < FIRST_BYTE + BYTES) return decoder.decode(Uint8Array.of(id - FIRST_BYTE), { stream: true });
      decoder = new TextDecoder();
      return at === 1 ? vocabulary[id].replace(/^ /u, "") : vocabulary[id];
    });
  }

  return { encoded, spelled, BOS };
};
