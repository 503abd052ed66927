// SPDX-License-Identifier: Apache-2.0
// The search finds pages with every word of a query. The words of a question that say nothing are left out, "2-D" is "2d", and
// where no page has all words, those with all but one are shown, and so on to those with any.
{
  const COMMON = new Set("a an and are can do does for how i in is it my of or should that the to versus vs what will with you your".split(" "));
  const MOST = 6;
  const bare = (word) => word.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");

  // All words; then all but one, the shortest left out first; and so on, of a long query with its longest words.
  function queries(input) {
    let words = input.replace(/\b([23])-d\b/gi, "$1d").split(/\s+/).filter(Boolean);
    const telling = words.filter((word) => !COMMON.has(bare(word)));
    if (telling.length) words = telling;
    const all = words.join(" ");
    if (words.length > MOST) {
      const longest = [...words].sort((one, two) => two.length - one.length).slice(0, MOST);
      words = words.filter((word) => longest.includes(word)).slice(0, MOST);
    }
    const subsets = Array.from({ length: 2 ** words.length - 1 }, (_, mask) => words.filter((_, at) => (mask + 1) & (1 << at)));
    const letters = (subset) => subset.join("").length;
    subsets.sort((one, two) => two.length - one.length || letters(two) - letters(one));
    return [...new Set([all, ...subsets.map((subset) => subset.join(" "))])].filter(Boolean);
  }

  const { postMessage } = Worker.prototype;
  const waiting = new WeakMap();
  Worker.prototype.postMessage = function (message, ...rest) {
    if (message?.type !== 2 || typeof message.data?.input !== "string" || message.data.page) return postMessage.call(this, message, ...rest);
    const left = queries(message.data.input);
    const ask = (input) => postMessage.call(this, { ...message, data: { ...message.data, input } }, ...rest);
    if (!waiting.has(this)) {
      const show = this.onmessage;
      this.onmessage = (event) => {
        const { left, ask } = waiting.get(this);
        const none = event.data?.type === 3 && !event.data.data.items.length;
        return none && left.length ? ask(left.shift()) : show?.call(this, event);
      };
    }
    waiting.set(this, { left, ask });
    return ask(left.shift() ?? message.data.input);
  };
}
