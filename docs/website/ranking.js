// SPDX-License-Identifier: Apache-2.0
// The order of the search's results. The theme's worker shows a section whose title has the words before any other, so that the
// names of functions come before the guides. Here a page is ranked by BM25 over all of it and over its best section, and by its
// kind: guides before encodings before the API. What a query names comes earlier: a file, a keyword, a name of the API. Sections
// without a word of the query are not shown; the words of a question that say nothing are left out, and "2-D" is "2d".
{
  const COMMON = new Set("a an and any are at be by can do does for from get has have how i if in into is it make me my no not of on one or our should so than that the their then there this to up use used using versus vs want we what when where which who why will with you your".split(" "));
  const KINDS = [[/^guides\//, 1.5], [/^(encodings\/(?!index)|frequencies|position_maps)/, 1.3], [/^reference\/commands/, 0.7], [/^(reference|project|examples)\//, 0.5], [/^index\.html/, 0.6], [/./, 1.35]];
  const OF_SECTION = { title: 3, keywords: 2.5, text: 1 }, OF_PAGE = { title: 8, heading: 3, keywords: 10, text: 1 }; // weights
  const SATURATED = 1.2, LENGTH = 0.75, SHOWN = 30; // of BM25, and sections
  const NAMED = 4, KEYWORD = 1.5, MEANT = 3, DECLARED = 100; // factors of a page that a query names, or means
  const WHY = /\bwhy\b|为什么/i, CHAPTERS = /^position-/, CHOICE = /^(guides\/choose|leaderboard)\./;
  const CODE = /\w[._]\w|[a-z][A-Z]/;
  const HAN = /\p{Script=Han}/u, OTHER = 0.5; // of a page in the language that is not asked in

  const page = (location) => location.replace(/#(?!lang=).*/, "");
  const plain = (html) => html.replace(/<[^>]*>/g, " ").replace(/&\w+;/g, " ");
  const stem = (word) => (HAN.test(word) || word.length < 5 ? word : word.replace(/(?<=\w{3})(?:ies|ing|ed|es|s|e|y|er|ers|ation|ations|ion|ions)$/, ""));
  const joined = (text) => text.replace(/\b([123])-d\b/gi, "$1d").replace(/fine-tun/gi, "finetun");
  const inner = (word) => [...word.split(/[._]/).filter((part) => part.length > 1), ...word.split(/[._]|(?<=[a-z])(?=[A-Z])/).filter((part) => part.length > 3)]; // MultiheadAttention
  const pairs = (han) => [...han, ...[...han].slice(1).map((second, at) => [...han][at] + second)]; // Chinese has no spaces: characters, and two by two
  const words = (text) => [...joined(text).matchAll(/\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{L}\p{N}_])+(?:\.(?:(?!\p{Script=Han})[\p{L}\p{N}_])+)*/gu)].flatMap(([word]) => (HAN.test(word) ? pairs(word) : [...new Set([word, ...inner(word)].map((each) => stem(each.toLowerCase())))]));
  const name = (text) => [...new Set(words(text))].filter((word) => !COMMON.has(word));
  const spelled = (location) => location.replace(/^.*[/#]|\.html$/g, "").split("_");
  const ofFile = (location) => name(spelled(location).join(" "));

  // BM25 of texts, each a count of its words: word -> [[number of a text, how much of it]].
  const indexed = (texts) => {
    const found = new Map(), sizes = texts.map((of) => [...of.values()].reduce((sum, many) => sum + many, 0));
    const mean = sizes.reduce((sum, size) => sum + size, 0) / Math.max(1, sizes.length);
    texts.forEach((of, at) => {
      const norm = SATURATED * (1 - LENGTH + (LENGTH * sizes[at]) / mean);
      for (const [word, many] of of) {
        if (!found.has(word)) found.set(word, []);
        found.get(word).push([at, (many * (SATURATED + 1)) / (many + norm)]);
      }
    });
    return found;
  };

  // What a word of a query is in an index of so many texts, with how telling it is. same: the words that count as it.
  const term = (index, same, many) => {
    const of = new Map();
    for (const word of same)
      for (const [at, much] of index.get(word) ?? []) of.set(at, Math.max(of.get(at) ?? 0, much));
    return { of, weight: of.size ? Math.log(1 + many / of.size) : 0 };
  };

  // What each text scores that has a word of the query: the more of the query it has, the more.
  const scored = (terms) => {
    const all = terms.reduce((sum, { weight }) => sum + weight, 0), scores = new Map(), covered = new Map();
    for (const { of, weight } of terms)
      for (const [at, much] of of) {
        scores.set(at, (scores.get(at) ?? 0) + weight * much);
        covered.set(at, (covered.get(at) ?? 0) + weight);
      }
    return [...scores].map(([at, score]) => [at, score * (covered.get(at) / all)]);
  };

  class Ranking {
    constructor(items) {
      this.items = items;
      this.addresses = [...new Set(items.map(({ location }) => page(location)))];
      const number = new Map(this.addresses.map((address, at) => [address, at])), pages = this.addresses.map(() => new Map());
      const add = (of, text, weight) => words(plain(text ?? "")).forEach((word) => of.set(word, (of.get(word) ?? 0) + weight));
      this.names = this.addresses.map((address) => ({ files: [ofFile(address)], keywords: [] })); // of each page, as words
      const sections = items.map(({ location, title, keywords, text }) => {
        const section = new Map(), address = page(location), at = number.get(address);
        for (const [field, value] of Object.entries({ title, keywords, text })) {
          add(section, value, OF_SECTION[field]);
          add(pages[at], value, OF_PAGE[field === "title" && location !== address ? "heading" : field]);
        }
        if (keywords) this.names[at].keywords.push(...keywords.split(/,\s*/).map(name));
        if (/^(frequencies|position_maps|reference\/commands)\./.test(address)) this.names[at].files.push(ofFile(location)); // a schedule's section
        return section;
      });
      this.found = indexed(sections);
      this.pages = indexed(pages);
      this.known = [...this.found.keys()];
    }

    // The words of a query in sections and in pages: the last may be the beginning of one.
    terms(input) {
      const telling = name(input), asked = telling.length ? telling : [...new Set(words(input))];
      return asked.map((word, at) => {
        const open = at === asked.length - 1 && word.length > 2 && !this.found.has(word);
        const same = open ? this.known.filter((other) => other.startsWith(word)) : [word];
        return { word, section: term(this.found, same, this.items.length), page: term(this.pages, same, this.addresses.length) };
      });
    }

    // By how much a page comes earlier for what it is and what the query names: a function of the page's number.
    factor(input, terms) {
      const weights = new Map(terms.map(({ word, section }) => [word, section.weight])), all = [...weights.values()].reduce((sum, weight) => sum + weight, 0);
      const share = (named) => (named.length && named.every((word) => weights.has(word)) ? named.reduce((sum, word) => sum + weights.get(word), 0) / all : 0); // of the query
      const most = (names) => Math.max(0, ...names.map(share));
      const spoken = new Set(joined(input).toLowerCase().match(/[\p{L}\p{N}]+/gu)); // an encoding has its name: "learning" does not mean `learned`
      const called = (at) => (/^encodings\//.test(this.addresses[at]) && !spelled(this.addresses[at]).every((word) => spoken.has(word)) ? 0 : most(this.names[at].files));
      const several = this.addresses.filter((address, at) => /^encodings\//.test(address) && called(at)).length > 1;
      const meant = [...(WHY.test(input) ? [CHAPTERS] : []), ...(several ? [CHOICE] : [])];
      const chinese = HAN.test(input);
      return (at) => {
        const address = this.addresses[at], { keywords } = this.names[at];
        const edition = this.addresses.includes(address.replace(/\.html$/, ".zh.html")), named = keywords.some((each) => each.some((word) => HAN.test(word)));
        const foreign = /\.zh\.|#lang=zh/.test(address) !== chinese && !(chinese && named && !edition); // an English page is found by its Chinese keywords
        return KINDS.find(([kind]) => kind.test(address))[1] * NAMED ** called(at) * KEYWORD ** most(keywords) * (meant.some((pages) => pages.test(address)) ? MEANT : 1) * (foreign ? OTHER : 1);
      };
    }

    // The sections of a query, best first, those of a page together.
    rank(input) {
      const terms = this.terms(input), factor = this.factor(input, terms), sections = new Map(); // address -> [[section, score]]
      for (const [at, score] of scored(terms.map(({ section }) => section))) {
        const address = page(this.items[at].location);
        if (!sections.has(address)) sections.set(address, []);
        sections.get(address).push([at, score]);
      }
      const declared = CODE.test(input) && input.trim().split(".").at(-1); // a name of the API
      const declares = (address) => declared && /^reference\//.test(address) && sections.get(address).some(([at]) => this.items[at].location.split(".").at(-1) === declared);
      const ranked = scored(terms.map((each) => each.page)).filter(([at]) => sections.has(this.addresses[at])).map(([at, score]) => {
        const address = this.addresses[at], best = sections.get(address).sort(([, one], [, two]) => two - one);
        return { best: best.slice(0, 3), score: (best[0][1] + score) * (declares(address) ? DECLARED : factor(at)) };
      });
      ranked.sort((one, two) => two.score - one.score);
      return { terms, ids: ranked.flatMap(({ best }) => best.map(([at]) => at)).slice(0, SHOWN) };
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
