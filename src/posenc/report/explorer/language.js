"use strict";
// The words of the page in English or Chinese: t`...` is an English sentence with its values, whose Chinese one is in chinese.json.
posenc.language = (() => {
  const asked = /[#&:]lang=(en|zh)\b/.exec(location.hash);
  const name = asked ? asked[1] : JSON.parse(document.getElementById("explorer-state").textContent).lang || "en";
  const words = name === "zh" ? posenc.chinese : {};

  const say = (english, ...values) => (words[english] ?? english).replace(/\{(\d)\}/g, (_, at) => values[at]);
  const t = (texts, ...values) => say(texts.reduce((key, text, at) => `${key}{${at - 1}}${text}`), ...values);
  const sentence = text => text[0].toUpperCase() + text.slice(1) + (/[.!。]$/.test(text) ? "" : /[\p{Script=Han}）]$/u.test(text) ? "。" : ".");

  // What stands in the page before scripts fill it.
  function page(root) {
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const text = node.textContent.trim().replace(/\s+/g, " ");
      if (words[text] && !node.parentElement.closest("script, style")) node.textContent = ` ${words[text]} `;
    }
    for (const element of root.querySelectorAll("[aria-label]")) element.ariaLabel = say(element.ariaLabel);
    const button = root.querySelector("[data-do=language]");
    if (button) Object.assign(button, { textContent: "English", lang: "en" });
  }

  if (name === "zh") {
    const { path, presets, fields, encodings } = posenc.settings, named = { path: ["title", "says", "ask"], presets: ["name", "says"] };
    for (const [list, keys] of [[path, named.path], [presets, named.presets], [Object.values(fields), ["label", "meaning"]]]) {
      for (const one of list) for (const key of keys) if (one[key]) one[key] = say(one[key]);
    }
    posenc.settings.encodings = Object.fromEntries(Object.entries(encodings).map(([family, keys]) => [say(family), keys]));
    const root = document.getElementById("explorer");
    document.title = say(document.title);
    page(root.dataset.embedded === "yes" ? root : document.body);
    if (root.dataset.embedded !== "yes") document.documentElement.lang = "zh-Hans";
  }

  return { name, other: name === "zh" ? "en" : "zh", say, t, sentence };
})();
