"use strict";

/* Tables: a click sorts upwards, the next downwards, the third restores the order they came in. */

const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

function keyOf(row, column, numeric) {
  const cell = row.cells[column];
  if (!numeric) return cell.textContent.trim();
  return "value" in cell.dataset ? Number(cell.dataset.value) : null;
}

function sortBy(table, header, direction) {
  const body = table.tBodies[0];
  const numeric = header.dataset.kind === "number";
  const sign = direction === "descending" ? -1 : 1;
  const rows = [...body.rows].sort((a, b) => a.dataset.order - b.dataset.order);
  if (direction !== "none") {
    rows.sort((a, b) => {
      const [x, y] = [a, b].map((row) => keyOf(row, header.cellIndex, numeric));
      if (x === null || y === null) return (x === null) - (y === null); /* what is missing stays last */
      return sign * (numeric ? x - y : x.localeCompare(y, "en", { numeric: true }));
    });
  }
  body.append(...rows);
  for (const other of header.parentElement.cells) other.ariaSort = other === header ? direction : "none";
}

for (const table of document.querySelectorAll(".table table")) {
  if (!table.tBodies.length) continue;
  [...table.tBodies[0].rows].forEach((row, index) => { row.dataset.order = index; });
  for (const header of table.tHead.rows[0].cells) {
    header.querySelector("button").addEventListener("click", () => {
      sortBy(table, header, NEXT[header.ariaSort]);
    });
  }
}

/* What is folded is printed too. */

window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
