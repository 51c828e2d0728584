"use strict";
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    const say = (words) => {
      button.textContent = words;
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    try {
      await navigator.clipboard.writeText(source.textContent);
      say("Copied");
    } catch {
      const selection = window.getSelection();
      selection.selectAllChildren(source);
      say(document.execCommand("copy") ? "Copied" : "Selected");
    }
  });
}
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const sign = falling ? -1 : 1;
        const [m, n] = [Number(x), Number(y)];
        return sign * (Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y) : m - n);
      };
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort(order));
    });
  });
}
for (const set of document.querySelectorAll("fieldset[data-filters]")) {
  set.hidden = false;
  set.addEventListener("change", () => {
    const shown = new Set([...set.querySelectorAll("input:checked")].map((box) => box.value));
    for (const row of document.getElementById(set.dataset.filters).tBodies[0].rows) {
      row.hidden = !shown.has(row.dataset.outcome);
    }
  });
}
