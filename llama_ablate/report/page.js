"use strict";
// Hover, sort, filter, copy, save. Without this script all tables and pictures stand as they are.
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const byId = (id) => document.getElementById(id);
const names = JSON.parse(byId("variants").textContent);
const root = document.documentElement;
const rows = all("tbody tr[data-v]");

// ---- hover a mark or a row: its variant is lit everywhere
const about = {};
for (const row of rows) {
  about[row.dataset.v] ??= all("td:not(.forest)", row).slice(0, 2).map((cell) => cell.textContent).join(" ");
}
let lit = null;
function light(key) {
  if (key === lit) return;
  lit = key;
  root.classList.toggle("some", key !== null);
  for (const mark of all("[data-v]")) mark.classList.toggle("lit", mark.dataset.v === key);
}
const near = [[0, 0], [4, 0], [-4, 0], [0, 4], [0, -4]];
function markAt(x, y) {
  const found = near.map(([dx, dy]) => document.elementFromPoint(x + dx, y + dy)?.closest("figure [data-v]"));
  return found.find(Boolean);
}
document.addEventListener("pointermove", (event) => {
  const tip = byId("tip");
  const mark = markAt(event.clientX, event.clientY);
  light(mark?.dataset.v ?? event.target.closest?.("tr[data-v]")?.dataset.v ?? null);
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = `${names[mark.dataset.v]}\n${about[mark.dataset.v] ?? ""}`;
  const below = event.clientY + 16;
  const above = event.clientY - tip.offsetHeight - 8;
  tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4)}px`;
  tip.style.top = `${below + tip.offsetHeight > innerHeight ? above : below}px`;
});

// ---- sort a table by a column: ascending, descending, as planned
const number = (text) => parseFloat(text.replace(/^[<>~]\s*|,/g, ""));
function sort(head) {
  const table = head.closest("table");
  const body = table.tBodies[0];
  const way = { ascending: -1, descending: 0 }[head.getAttribute("aria-sort")] ?? 1;
  for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
  if (way) head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
  const text = (row) => row.cells[head.cellIndex].textContent.trim();
  const compare = (a, b) => way * (number(a) - number(b) || a.localeCompare(b, "en", { numeric: true }));
  body.planned ??= [...body.rows];
  const sorted = [...body.planned].sort((a, b) => !text(a) - !text(b) || compare(text(a), text(b)));
  table.classList.add("all-rows");
  body.append(...(way ? sorted : body.planned));
}
for (const head of all("thead th:not(.forest)")) {
  head.addEventListener("click", () => sort(head));
  head.addEventListener("keydown", (event) => event.key === "Enter" && sort(head));
}

// ---- rows and columns that are shown
for (const button of all("button.all")) {
  button.addEventListener("click", () => {
    button.hidden = true;
    button.previousElementSibling.querySelector("table").classList.add("all-rows");
  });
}
byId("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const table of all("table")) table.classList.add("all-rows");
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !row.matches(".base") && !words.every((word) => text.includes(word));
  }
  const shown = new Set(rows.filter((row) => !row.hidden).map((row) => row.dataset.v));
  for (const mark of all("figure [data-v]")) mark.toggleAttribute("data-off", !shown.has(mark.dataset.v));
});
byId("columns").addEventListener("change", (event) => root.classList.toggle("all-columns", event.target.checked));
const chooser = byId("table");
function choose() {
  for (const part of all("[data-table]")) part.hidden = part.dataset.table !== "" && part.dataset.table !== chooser.value;
}
chooser?.addEventListener("change", choose);
if (chooser) choose();

// ---- copy the first table, with formulas of spreadsheets as text
const plain = (cell) => (/^[=@\t\r]|^[+-].*[(|!&"']/s.test(cell) ? `'${cell}` : cell);
const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
const special = { "\\": "\\textbackslash{}", "~": "$\\sim$", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$", "±": "$\\pm$" };
const escaped = (cell) => cell.replace(/[&%$#_{}]|[\\~^<>±]/g, (sign) => special[sign] ?? `\\${sign}`);
const writers = {
  CSV: (lines) => lines.map((line) => line.map((cell) => quoted(plain(cell))).join(",")),
  Markdown: (lines) =>
    [lines[0], lines[0].map(() => "---"), ...lines.slice(1)].map(
      (line) => `| ${line.map((cell) => cell.replaceAll("|", "\\|").replaceAll("<", "&lt;")).join(" | ")} |`,
    ),
  LaTeX: (lines) => lines.map((line) => `${line.map(escaped).join(" & ")} \\\\`),
};
for (const button of all("button.copy")) {
  button.addEventListener("click", () => {
    const table = all("main section table").find((one) => one.offsetParent);
    const seen = (cell) => cell.offsetParent && !cell.matches(".forest");
    const text = (row) => [...row.cells].filter(seen).map((cell) => cell.textContent.trim().replace(/\s+/g, " "));
    const lines = [...table.rows].filter((row) => row.offsetParent).map(text);
    navigator.clipboard.writeText(writers[button.textContent](lines).join("\n"));
  });
}

// ---- save a picture
for (const button of all("button.save")) {
  button.addEventListener("click", async () => {
    const figure = button.closest("figure");
    const svg = figure.querySelector("svg");
    const link = document.createElement("a");
    link.href = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
    if (button.textContent === "PNG") {
      const image = Object.assign(new Image(), { src: link.href });
      await image.decode();
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [3 * image.width, 3 * image.height];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      link.href = canvas.toDataURL("image/png");
    }
    link.download = `${figure.dataset.name}.${button.textContent.toLowerCase()}`;
    link.click();
  });
}
