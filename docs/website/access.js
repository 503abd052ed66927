// SPDX-License-Identifier: Apache-2.0
// What the theme's script puts around tables and code gets a name and the keyboard's focus: boxes that scroll can be scrolled
// by keys, and no two landmarks of a page have the same name. Parts of the explorer are as high as they say.
{
  const scrolls = (box) => box.scrollWidth > box.clientWidth;
  const improve = () => {
    for (const bar of document.querySelectorAll("nav.md-code__nav")) bar.setAttribute("role", "presentation");
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .formulas, .drawings, .wide")) {
      if (scrolls(box)) box.tabIndex = 0;
      else if (!box.matches("pre > code")) box.removeAttribute("tabindex");
    }
  };
  addEventListener("load", improve);
  addEventListener("resize", improve);
  addEventListener("message", ({ source, data }) => {
    for (const frame of document.querySelectorAll(".live iframe")) {
      if (frame.contentWindow === source && data.explorerHeight > 0) frame.style.height = `${data.explorerHeight}px`;
    }
  });
  new MutationObserver(improve).observe(document.documentElement, { childList: true, subtree: true });
}
