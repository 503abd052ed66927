// SPDX-License-Identifier: Apache-2.0
// The order of the search's results. The theme's worker shows a section whose title has the words before any other, so that the
// names of functions come before the guides. Here sections are ranked by BM25 over title, keywords and text, pages by their best
// section and by their kind: guides before encodings before the API. Sections without a word of the query are not shown; the
// words of a question that say nothing are left out, and "2-D" is "2d".
{
  const COMMON = new Set("a an and any are at be by can do does for from get has have how i if in into is it make me my no not of on one or our should so than that the their then there this to up use used using versus vs want we what when where which who why will with you your".split(" "));
  const KINDS = [[/^guides\//, 1.5], [/^(encodings\/(?!index)|frequencies|position_maps)/, 1.15], [/^reference\/commands/, 0.7], [/^(reference|project|examples)\//, 0.5], [/^index\.html/, 0.6], [/./, 1.35]];
  const FIELDS = { title: 3, keywords: 2.5, text: 1 };
  const SATURATED = 1.2, LENGTH = 0.5, SHOWN = 30, NAMED = 2.5;
  const HAN = /\p{Script=Han}/u, OTHER = 0.5; // of a page in the language that is not asked in

  const page = (location) => location.replace(/#(?!lang=).*/, "");
  const plain = (html) => html.replace(/<[^>]*>/g, " ").replace(/&\w+;/g, " ");
  const stem = (word) => (HAN.test(word) || word.length < 5 ? word : word.replace(/(?<=\w{3})(?:ies|ing|ed|es|s|e|ation|ations|ion)$/, ""));
  const joined = (text) => text.toLowerCase().replace(/\b([123])-d\b/g, "$1d").replace(/fine-tun/g, "finetun");
  const words = (text) => [...joined(text).matchAll(/\p{Script=Han}|[\p{L}\p{N}_]+(?:\.[\p{L}\p{N}_]+)*/gu)].flatMap(([word]) => [...new Set([stem(word), ...word.split(/[._]/).filter((part) => part.length > 1).map(stem)])]);

  class Ranking {
    constructor(items) {
      this.items = items;
      this.found = new Map(); // word -> [[item, how much of it]]
      const counts = items.map((item) => {
        const of = new Map();
        for (const [field, weight] of Object.entries(FIELDS))
          for (const word of words(plain(item[field] ?? ""))) of.set(word, (of.get(word) ?? 0) + weight);
        return of;
      });
      const sizes = counts.map((of) => [...of.values()].reduce((sum, many) => sum + many, 0));
      const mean = sizes.reduce((sum, size) => sum + size, 0) / Math.max(1, sizes.length);
      counts.forEach((of, at) => {
        const norm = SATURATED * (1 - LENGTH + (LENGTH * sizes[at]) / mean);
        for (const [word, many] of of) {
          if (!this.found.has(word)) this.found.set(word, []);
          this.found.get(word).push([at, (many * (SATURATED + 1)) / (many + norm)]);
        }
      });
      this.known = [...this.found.keys()];
    }

    // What a query's words are in the index, with how telling each is: the last may be the beginning of one.
    terms(input) {
      let asked = [...new Set(words(input))];
      const telling = asked.filter((word) => !COMMON.has(word));
      if (telling.length) asked = telling;
      return asked.map((word, at) => {
        const open = at === asked.length - 1 && word.length > 2 && !this.found.has(word);
        const same = open ? this.known.filter((other) => other.startsWith(word)) : [word];
        const of = new Map();
        for (const other of same)
          for (const [item, much] of this.found.get(other) ?? []) of.set(item, Math.max(of.get(item) ?? 0, much));
        return { word, of, weight: of.size ? Math.log(1 + this.items.length / of.size) : 0 };
      });
    }

    // The sections of a query, best first, those of a page together.
    rank(input) {
      const terms = this.terms(input), all = terms.reduce((sum, { weight }) => sum + weight, 0), scores = new Map(), covered = new Map();
      for (const { of, weight } of terms)
        for (const [item, much] of of) {
          scores.set(item, (scores.get(item) ?? 0) + weight * much);
          covered.set(item, (covered.get(item) ?? 0) + weight);
        }
      const pages = new Map(); // address -> its sections and the words that any of them has
      for (const [item, score] of scores) {
        const address = page(this.items[item].location);
        if (!pages.has(address)) pages.set(address, []);
        pages.get(address).push([item, score * (covered.get(item) / all) ** 2]);
      }
      const asked = new Set(terms.map(({ word }) => word));
      const called = (address) => words(address.replace(/^.*[/#]|\.html$/g, "").replaceAll("_", " ")); // by the name of its file, or of a schedule's section
      const named = (address, sections) => (/^(frequencies|position_maps)\./.test(address) ? sections.map(([item]) => this.items[item].location) : []);
      const language = (address) => (/\.zh\.|#lang=zh/.test(address) === HAN.test(input) ? 1 : HAN.test(input) && /^encodings\//.test(address) ? 1 : OTHER);
      const ranked = [...pages].map(([address, sections]) => {
        sections.sort(([, one], [, two]) => two - one);
        const rest = sections.slice(1, 4).reduce((sum, [, score]) => sum + score, 0);
        return { sections: sections.slice(0, 3), score: (sections[0][1] + 0.15 * rest) * KINDS.find(([kind]) => kind.test(address))[1] * ([address, ...named(address, sections)].some((each) => called(each).every((word) => asked.has(word))) ? NAMED : 1) * language(address) };
      });
      ranked.sort((one, two) => two.score - one.score);
      return { terms, ids: ranked.flatMap(({ sections }) => sections.map(([item]) => item)).slice(0, SHOWN) };
    }

    // As the theme's worker answers: of each section where its title and text have the words.
    answer(input) {
      const { terms, ids } = this.rank(input);
      const parts = terms.map(({ word }) => word.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")).filter(Boolean);
      const of = (text) => (parts.length ? [...text.matchAll(new RegExp(`(?<![\\p{L}\\p{N}])(?:${parts.join("|")})[\\p{L}\\p{N}]*(?![^<>]*>)`, "giu"))] : []);
      const match = (id, field, text) => ({ id, field, score: 0, value: { text: {}, highlight: { ranges: of(text).slice(0, 40).map((found) => ({ start: found.index, end: found.index + found[0].length, value: found[0].length })) } } });
      const items = ids.map((id) => ({ id, matches: ["title", "path", "text"].map((field, at) => match(4 * id + at, field, field === "path" ? "" : (this.items[id][field] ?? ""))) }));
      return { items, query: { values: [] }, pagination: { total: items.length } };
    }
  }

  const { postMessage } = Worker.prototype;
  const rankings = new WeakMap();
  Worker.prototype.postMessage = function (message, ...rest) {
    if (message?.type === 0 && message.data?.items) rankings.set(this, new Ranking(message.data.items));
    const ranking = rankings.get(this), input = message?.data?.input;
    if (message?.type !== 2 || typeof input !== "string" || !input.trim() || !ranking) return postMessage.call(this, message, ...rest);
    queueMicrotask(() => this.onmessage?.({ data: { type: 3, data: ranking.answer(input) } }));
  };
}
