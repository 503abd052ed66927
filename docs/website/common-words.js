// SPDX-License-Identifier: Apache-2.0
// The search finds pages with every word of a query, so the words of a question that say nothing are left out.
{
  const COMMON = new Set("a an and are can do does for how i in is it my of or should that the to what will with you your".split(" "));
  const { postMessage } = Worker.prototype;
  Worker.prototype.postMessage = function (message, ...rest) {
    const query = message?.type === 2 && message.data?.input;
    const words = (query || "").split(/\s+/).filter((word) => !COMMON.has(word.toLowerCase().replace(/\W/g, "")));
    const shorter = words.join("") ? { ...message, data: { ...message.data, input: words.join(" ") } } : message;
    return postMessage.call(this, shorter, ...rest);
  };
}
