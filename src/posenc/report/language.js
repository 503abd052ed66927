"use strict";
// The words of a page in English or Chinese: t`...` is an English sentence with its values, whose Chinese one is in the page's
// chinese.json. A page's block has the language that it starts in, data-lang; "lang=zh" in the address goes before.
posenc.language = (() => {
  const root = document.querySelector(".posenc[data-lang]"), usual = root.dataset.lang;
  const of = address => (/[#&:]lang=(en|zh)\b/.exec(address) || [])[1] || usual;
  const name = of(location.hash), words = name === "zh" ? posenc.chinese : {};

  const say = (english, ...values) => (words[english] ?? english).replace(/\{(\d)\}/g, (_, at) => values[at]);
  const t = (texts, ...values) => say(texts.reduce((key, text, at) => `${key}{${at - 1}}${text}`), ...values);
  const sentence = text => text[0].toUpperCase() + text.slice(1) + (/[.!。]$/.test(text) ? "" : /[\p{Script=Han}）]$/u.test(text) ? "。" : ".");

  // A text that stands in the page before scripts fill it, whose integers may be values; undefined: it has no Chinese one.
  function stated(text) {
    const values = [], key = text.replace(/\d+/g, value => `{${values.push(value) - 1}}`);
    return words[text] ?? (words[key] && say(key, ...values));
  }

  function page(root) {
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const found = stated(node.textContent.trim().replace(/\s+/g, " "));
      if (found && !node.parentElement.closest("script, style")) node.textContent = ` ${found} `;
    }
    for (const element of root.querySelectorAll("[aria-label]")) element.ariaLabel = say(element.ariaLabel);
    const button = root.querySelector("[data-do=language]");
    if (button) Object.assign(button, { textContent: "English", lang: "en" });
  }

  for (const one of document.querySelectorAll("[data-in]")) one.hidden = one.dataset.in !== name;  // what differs by more than words
  if (name === "zh") {
    document.title = say(document.title);
    page(root.dataset.embedded === "yes" ? root : document.body);
    if (root.dataset.embedded !== "yes") document.documentElement.lang = "zh-Hans";
  }

  return { name, usual, other: name === "zh" ? "en" : "zh", of, say, t, sentence };
})();
