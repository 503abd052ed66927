// Tables of the site that are sorted by a click on a heading and filtered by words: those in a box <div class="sortable" data-find="words
// of the input" data-all="words of the choice of all">, which gets both.
{
  const key = cell => {
    const text = cell.dataset.value ?? ((cell.firstChild?.textContent ?? "").trim() || cell.textContent.trim());
    const found = Number.parseFloat(text.replace("−", "-"));
    return Number.isNaN(found) ? text.toLowerCase() : found;
  };
  const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);

  function sort(found, column, head) {
    const body = found.tBodies[0], up = head.getAttribute("aria-sort") !== "ascending";
    const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(key(a.cells[column]), key(b.cells[column])));
    for (const each of found.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  }

  for (const found of document.querySelectorAll("div.sortable table")) {
    [...found.tHead.rows[0].cells].forEach((head, column) => {
      if (head.dataset.plain !== undefined) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...[...head.childNodes].filter(node => node.nodeName !== "SMALL"));
      button.addEventListener("click", () => sort(found, column, head));
      head.prepend(button);
    });
  }
  for (const box of document.querySelectorAll("div.sortable")) {
    const rows = [...box.querySelector("tbody").rows], input = document.createElement("input"), choice = document.createElement("select");
    const verdict = row => row.cells[1].textContent.trim(), all = rows.map(verdict);
    Object.assign(input, { type: "search", placeholder: box.dataset.find, ariaLabel: box.dataset.find });
    choice.ariaLabel = box.dataset.all;
    choice.append(new Option(box.dataset.all, ""), ...[...new Set(all)].filter(one => all.filter(other => other === one).length > 1).map(one => new Option(one, one)));
    const filter = () => {
      const words = input.value.trim().toLowerCase();
      for (const row of rows) row.hidden = !(row.textContent.toLowerCase().includes(words) && (!choice.value || verdict(row) === choice.value));
    };
    input.addEventListener("input", filter);
    choice.addEventListener("input", filter);
    box.prepend(input, " ", choice);
  }
}
