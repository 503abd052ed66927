// Tables of the site that are sorted by a click on a heading and filtered by words: those in a box <div class="sortable" data-find="words
// of the input" data-all="words of the choice of all">, which gets both.
{
  for (const found of document.querySelectorAll("div.sortable table")) posenc.sorting.sortable(found);
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
