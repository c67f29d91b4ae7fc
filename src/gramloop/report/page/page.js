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

/* Copies are taken in the order they were made, in full precision for CSV and as shown for the others. */

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const figure = button.closest("figure");
    await copy(figure.querySelector(`template[data-format="${button.dataset.copy}"]`).content.textContent);
    const status = figure.querySelector(".status");
    status.textContent = "Copied";
    setTimeout(() => { status.textContent = ""; }, 1500);
  });
}

/* Figures open in a dialog; Esc is the browser's own, the arrow keys go on to the next figure. */

const dialog = document.getElementById("zoom");
const figures = [...document.querySelectorAll(".enlarge")];
let shown = 0;

function show(index) {
  shown = (index + figures.length) % figures.length;
  const source = figures[shown].querySelector("img");
  const image = dialog.querySelector("img");
  image.src = source.src;
  image.alt = source.alt;
  document.getElementById("zoom-title").textContent =
    figures[shown].closest("figure").querySelector("h3").textContent;
  if (!dialog.open) dialog.showModal();
}

figures.forEach((button, index) => button.addEventListener("click", () => show(index)));
dialog.querySelector(".close").addEventListener("click", () => dialog.close());
dialog.querySelector(".canvas").addEventListener("click", () => dialog.close());
dialog.addEventListener("keydown", (event) => {
  if (event.key === "ArrowRight") show(shown + 1);
  if (event.key === "ArrowLeft") show(shown - 1);
});
dialog.addEventListener("close", () => {
  dialog.querySelector("img").removeAttribute("src");
  figures[shown].focus();
});

/* Contents: folded away on small screens, and marked where one reads. */

const contents = document.querySelector(".contents details");
const wide = window.matchMedia("(min-width: 75rem)");
const fold = () => { contents.open = wide.matches; };
wide.addEventListener("change", fold);
fold();

const links = new Map([...contents.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
const seen = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
  const current = [...links.keys()].find((id) => seen.has(id));
  for (const [id, link] of links) {
    if (id === current) link.setAttribute("aria-current", "location");
    else link.removeAttribute("aria-current");
  }
}, { rootMargin: "0px 0px -60% 0px" });
for (const id of links.keys()) watcher.observe(document.getElementById(id));
