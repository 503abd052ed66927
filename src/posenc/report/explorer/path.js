"use strict";
// The guided path: states with a title, a sentence and one control to move. Its view of a state is `state.step`, 0 beside the
// path; what the reader moves stays within the step.
posenc.path = (() => {
  const { t } = posenc.language, { element } = posenc.plot, { PATH } = posenc.state;
  const KEYS = { ArrowLeft: -1, ArrowRight: 1 };
  const PLACES = { at: ".ruler" };

  // go(step): 0 leaves the path. begun(control): a step begins that asks for it. embedded: keys belong to the page around it,
  // unless the path has the focus.
  function made(root, { go, begun, embedded }) {
    const card = root.querySelector(".path");
    let now = { step: 0 };
    const text = element("div", { ariaLive: "polite" });
    const button = (words, turn, className = "") => {
      const found = element("button", { type: "button", className }, words);
      found.addEventListener("click", () => go(turn()));
      return found;
    };
    const start = button(t`Start the guided path`, () => 1, "main"), leave = button(t`Leave`, () => 0);
    const back = button(t`Back`, () => now.step - 1), next = button(t`Next`, () => (now.step + 1) % (PATH.length + 1), "main");
    const again = button(t`Restore this step`, () => now.step, "again"), all = element("ol", { className: "steps", ariaLabel: t`Steps` });
    PATH.forEach(({ title }, index) => {
      const one = button(String(index + 1), () => index + 1);
      one.setAttribute("aria-label", t`Step ${index + 1}: ${title}`);
      all.append(element("li", {}, one));
    });
    card.append(text, element("div", { className: "turn" }, start, back, next, all, again, leave));

    const turned = event => {
      const to = now.step + KEYS[event.key];
      if (!now.step || !(to >= 1 && to <= PATH.length) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      go(to);
    };
    card.addEventListener("keydown", turned);
    if (!embedded) addEventListener("keydown", event => event.target === document.body && turned(event));

    function show(state) {
      const { step } = state, one = PATH[step - 1];
      const changed = Boolean(one) && Object.keys(posenc.state.plain(state)).some(name => ![...allowed(one), "step", "lang"].includes(name));
      again.hidden = !changed;
      if (step === now.step && text.firstChild) return;
      now = state;
      card.classList.toggle("resting", !one);
      start.hidden = Boolean(one);
      for (const part of [back, next, all, leave]) part.hidden = !one;
      back.disabled = step === 1;
      next.textContent = step === PATH.length ? t`Explore freely` : t`Next`;
      [...all.querySelectorAll("button")].forEach((each, index) => {
        if (index + 1 === step) each.setAttribute("aria-current", "step");
        else each.removeAttribute("aria-current");
      });
      const heading = element("h3", {}, one ? t`${step} of ${PATH.length}: ${one.title}` : t`New to this?`);
      heading.setAttribute("aria-level", root.querySelector("#explorer-line-title").getAttribute("aria-level"));
      const says = one ? one.says : t`${PATH.length} short steps, from text without positions to texts longer than training. Or change anything below.`;
      text.replaceChildren(heading, element("p", {}, says), ...(one ? [element("p", { className: "ask" }, one.ask)] : []));
      for (const asked of root.querySelectorAll(".asked")) asked.classList.remove("asked");
      if (one) {
        asked(root, one.control).classList.add("asked");
        begun(one.control);
      }
    }

    function reveal() {
      const { top } = card.getBoundingClientRect();
      if (top < 0 || top > innerHeight / 4) card.scrollIntoView({ block: "start" });
    }

    return { show, reveal };
  }

  const allowed = ({ control }) => (control === "at" ? ["at", "token"] : [control]);

  const asked = (root, control) => root.querySelector(PLACES[control] || `[data-field="${control}"]`);

  return { made };
})();
