"use strict";
// What pictures and tables of the page do together. A variant is `data-v` wherever it stands, a seed
// `data-seed`. Nothing here computes a result: the numbers are those of the report. Without this script
// the first pictures and all tables stand as they are, and browsers show the titles of marks.
(async () => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, given = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), given);
    made.append(...children);
    return made;
  };
  const bytes = Uint8Array.from(atob(document.getElementById("data").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { variants, pictures, curves } = JSON.parse(await new Response(unpacked).text());
  const nameOf = (v) => variants[v.slice(1)];
  const root = document.documentElement;
  const tables = document.getElementById("table");
  const tip = make("div", { id: "tip", hidden: true });
  const panel = make("dialog", { id: "panel" });
  document.body.append(tip, panel);
  root.classList.add("js");

  // ---- pictures: put in their places

  const stem = (figure) => figure.id.replace("figure-", "");
  // The runs behind a mark of the loss curves, as [variant, seed, index of places, losses]: one, or all of a median.
  const runsOf = (mark, { v, seed: own } = mark.dataset) =>
    (curves.runs[stem(mark.closest("figure"))] ?? []).filter(([variant, seed]) => variant === v && (own ?? `${seed}`) === `${seed}`);

  // A title would show a second time beside the tip.
  function prepare(picture) {
    for (const title of all("title", picture)) {
      title.parentNode.dataset.title = title.textContent;
      title.remove();
    }
  }

  function place(figure) {
    if (!("packed" in figure.dataset) || figure.closest("details:not([open]), [hidden]")) return;
    delete figure.dataset.packed;
    const picture = figure.querySelector(".picture");
    picture.innerHTML = pictures[stem(figure)];
    prepare(picture);
    apply();
  }

  // ---- hover: what lies below the pointer, or at most six pixels from it

  const ring = [0, 3, 6].flatMap((far) => [...Array(far ? 8 : 1).keys()].map((turn) => [far, (turn * Math.PI) / 4]));
  function near({ clientX, clientY }) {
    const found = ring
      .flatMap(([far, angle]) => document.elementsFromPoint(clientX + far * Math.cos(angle), clientY + far * Math.sin(angle)))
      .map((element) => element.closest("svg [data-title]"));
    const unlike = new Map(found.filter((mark) => mark && !mark.closest("[data-off]")).map((mark) => [mark.dataset.title, mark]));
    return [...unlike.values()].slice(0, 8);
  }

  // Where a value stands along an axis: its ends in the picture and in numbers, and whether it is logarithmic.
  const placed = ([from, to, low, high, log], value) =>
    from + (to - from) * (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const median = (values) => {
    const sorted = [...values].sort((a, b) => a - b);
    return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
  };

  // The loss of a run, or the median of a variant's runs, at the pointer.
  function lossAt(mark, { clientX, clientY }) {
    const axes = mark.closest("[data-raw]");
    const own = axes && mark.dataset.end === undefined ? runsOf(mark) : [];
    if (!own.length) return "";
    const { x } = new DOMPoint(clientX, clientY).matrixTransform(axes.getScreenCTM().inverse());
    const reads = curves.places[own[0][2]];
    const far = reads.map((read) => Math.abs(placed(JSON.parse(axes.dataset.scale).x, read) - x));
    const at = far.indexOf(Math.min(...far));
    return `: ${median(own.map(([, , , losses]) => losses[at] ?? losses.at(-1))).toFixed(3)} at ${reads[at].toLocaleString("en")}`;
  }

  let pinned = null;
  let lit = null;
  function light(v) {
    if (v === lit) return;
    lit = v;
    root.classList.toggle("some", v !== null);
    for (const seed of all(".seeds")) seed.remove();
    for (const element of all("[data-v]")) element.classList.toggle("lit", element.dataset.v === v);
    for (const line of v === null ? [] : all("[data-raw=medians] path.lit")) drawSeeds(line);
  }
  function pin(v) {
    pinned = v === pinned ? null : v;
    for (const row of all("tr[data-v]")) row.setAttribute("aria-current", row.dataset.v === pinned);
    light(pinned);
  }

  document.addEventListener("pointermove", (event) => {
    const marks = near(event);
    light(pinned ?? [...marks, event.target.closest?.("tr[data-v]:not([data-off])")].find((one) => one?.dataset.v)?.dataset.v ?? null);
    tip.hidden = !marks.length;
    if (tip.hidden) return;
    tip.textContent = marks.map((mark) => mark.dataset.title + lossAt(mark, event)).join("\n");
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 4))}px`;
    tip.style.top = `${event.clientY + 14 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 14}px`;
  });

  // ---- loss curves: smoothed, with logarithmic axes, and the seeds behind a median

  function outline(axes, places, losses, share) {
    const { x, y } = JSON.parse(axes.dataset.scale);
    let last = losses[0];
    const points = losses.map((loss, i) => {
      last = share * last + (1 - share) * loss;
      return `${placed(x, places[i]).toFixed(1)} ${placed(y, last).toFixed(1)}`;
    });
    return `M${points.join("L")}`;
  }

  function drawSeeds(line) {
    const { stroke } = getComputedStyle(line);
    const paths = runsOf(line).map(([, , at, losses]) => outline(line.closest("[data-raw]"), curves.places[at], losses, 0));
    line.insertAdjacentHTML("beforebegin", paths.map((d) => `<path class="seeds" fill="none" stroke="${stroke}" stroke-width=".6" d="${d}"/>`).join(""));
  }

  function smooth(figure, share) {
    for (const mark of all("[data-raw] [data-v]:not([data-end])", figure)) {
      const path = mark.matches("path") ? mark : mark.querySelector("path");
      const own = runsOf(mark);
      if (!path || !own.length) continue;
      path.dataset.d ??= path.getAttribute("d");
      const losses = own[0][3].map((_, i) => median(own.map((run) => run[3][i] ?? run[3].at(-1))));
      path.setAttribute("d", share ? outline(mark.closest("[data-raw]"), curves.places[own[0][2]], losses, share) : path.dataset.d);
    }
  }

  function addCurveTools(figure, tools) {
    const slider = make("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: () => smooth(figure, +slider.value) });
    const logarithmic = pictures[stem(figure).replace("loss_curves", "loss_curves_log")]; // none while runs train
    const box = make("input", { type: "checkbox", onchange: () => {
      const picture = figure.querySelector(".picture");
      if (picture.children.length === 1) picture.insertAdjacentHTML("beforeend", logarithmic);
      prepare(picture);
      [...picture.children].forEach((drawn, i) => drawn.toggleAttribute("data-off", (i === 1) !== box.checked));
      smooth(figure, +slider.value);
      apply();
    } });
    tools.append(make("label", {}, "smooth ", slider), ...(logarithmic ? [make("label", {}, box, " logarithmic axes")] : []));
    tools.append(make("button", { textContent: "CSV", onclick: () => {
      const rows = curves.runs[stem(figure)].flatMap(([v, seed, at, losses]) => losses.map((loss, i) => [nameOf(v), seed, curves.places[at][i], loss]));
      download(written.CSV([["variant", "seed", "read", "training loss"], ...rows].map((row) => row.map(String))), "text/csv", `${stem(figure)}.csv`);
    } }));
  }

  // ---- pictures saved

  function download(content, type, name) {
    const link = make("a", { href: URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type })), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
  }
  const seen = (figure) => all("svg", figure).find((svg) => svg.getBoundingClientRect().width);

  // A picture as a file: as it is shown, in its own colours, with the letters that the page holds once.
  function alone(svg) {
    const copy = svg.cloneNode(true);
    for (const element of all("[data-off], .seeds", copy)) element.remove();
    for (const element of all("[data-title]", copy)) {
      element.insertAdjacentHTML("afterbegin", "<title></title>");
      element.firstChild.textContent = element.dataset.title;
    }
    const used = new Set(all("use", copy).map((use) => use.getAttribute("href")));
    const letters = all("#letters path").filter(({ id }) => used.has(`#${id}`)).map(({ outerHTML }) => outerHTML);
    copy.insertAdjacentHTML("afterbegin", `<defs>${letters.join("")}</defs>`);
    const [, , width, height] = copy.getAttribute("viewBox").split(" ");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    return { text: new XMLSerializer().serializeToString(copy), width, height };
  }

  async function save(figure, kind) {
    const { text, width, height } = alone(seen(figure));
    if (kind === "svg") return download(text, "image/svg+xml", `${stem(figure)}.svg`);
    const image = make("img", { src: `data:image/svg+xml,${encodeURIComponent(text)}` }); // the policy refuses blobs
    await image.decode();
    const canvas = make("canvas", { width: 3 * width, height: 3 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(blob, "image/png", `${stem(figure)}.png`));
  }

  const figures = all("figure[id]");
  for (const figure of figures) {
    prepare(figure);
    const tools = make("div", { className: "tools" });
    for (const kind of ["svg", "png"]) tools.append(make("button", { textContent: kind.toUpperCase(), title: "save", onclick: () => save(figure, kind) }));
    if (curves.runs[stem(figure)]) addCurveTools(figure, tools);
    figure.prepend(tools);
  }

  // ---- tables and pictures show the same variants, in one order

  const off = new Set();
  const filter = document.getElementById("filter");

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of all("main tbody tr")) {
      const text = row.textContent.toLowerCase();
      row.hidden = row.dataset.base === undefined && !words.every((word) => text.includes(word));
      row.toggleAttribute("data-off", off.has(row.dataset.v));
    }
    const found = new Set(all("main tr[data-v]:not([hidden])").map((row) => row.dataset.v));
    const isOff = (v) => off.has(v) || (filter.value && !found.has(v));
    for (const mark of all("svg [data-v]")) mark.toggleAttribute("data-off", isOff(mark.dataset.v));
    for (const svg of all("svg[data-rows]")) order(svg, isOff);
  }

  // Rows of a picture stand in the order of the table beside it.
  function order(svg, isOff) {
    const table = all("table", svg.closest("section")).find((one) => !one.closest("[data-table][hidden]"));
    if (!table) return;
    const names = all("[data-y]", svg);
    const from = Object.fromEntries(names.map(({ dataset }) => [dataset.v, +dataset.y]));
    const rows = all("tbody tr[data-v]", table).map((row) => row.dataset.v).filter((v) => v in from && !isOff(v));
    if (!rows.length) return;
    const places = names.map(({ dataset }) => +dataset.y).sort((a, b) => a - b);
    for (const mark of all("[data-v]", svg)) {
      const at = rows.indexOf(mark.dataset.v);
      if (at >= 0) mark.setAttribute("transform", `translate(0 ${(places[at] - from[mark.dataset.v]).toFixed(1)})`);
    }
  }
  filter.addEventListener("input", apply);
  filter.closest("label").hidden = false;

  for (const row of all("tr[data-v]")) {
    row.tabIndex = 0;
    row.addEventListener("click", (event) => { if (!event.target.closest("a, button")) pin(row.dataset.v); });
    row.addEventListener("keydown", (event) => { if (event.target === row && event.key === "Enter") pin(row.dataset.v); });
    const dash = row.querySelector(".dash");
    if (!dash || row.dataset.base !== undefined) continue;
    const button = make("button", { title: "show or hide in all pictures", ariaPressed: "true", onclick: () => {
      off[off.has(row.dataset.v) ? "delete" : "add"](row.dataset.v);
      for (const other of all(`tr[data-v=${row.dataset.v}] .switch`)) other.ariaPressed = `${!off.has(row.dataset.v)}`;
      apply();
    }, className: "switch" });
    dash.replaceWith(button);
    button.append(dash);
  }

  // ---- tables: sorted, copied, some of their columns hidden

  const number = (text) => parseFloat(text.replace(/^[<>]\s*|,/g, ""));
  const tex = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const written = {
    CSV: (rows) => rows.map((row) => row.map((cell) => (/^[=@\t\r]|^[+-].*[(|!&"']/.test(cell) ? `'${cell}` : cell))
      .map((cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(",")).join("\n"),
    Markdown: (rows) => rows.toSpliced(1, 0, rows[0].map(() => "---"))
      .map((row) => `| ${row.map((cell) => cell.replaceAll("|", "\\|").replaceAll("<", "&lt;")).join(" | ")} |`).join("\n"),
    LaTeX: (rows) => {
      const [head, ...body] = rows.map((row) => `${row.map((cell) => cell.replace(/[\\{}$&#_%~^]/g, (c) => tex[c] ?? `\\${c}`)).join(" & ")} \\\\`);
      return [`\\begin{tabular}{l${"r".repeat(rows[0].length - 1)}}`, "\\toprule", head, "\\midrule", ...body, "\\bottomrule", "\\end{tabular}"].join("\n");
    },
  };

  function sort(table, planned, head, at) {
    const way = { undefined: "ascending", ascending: "descending" }[head.getAttribute("aria-sort") ?? undefined];
    for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
    if (way) head.setAttribute("aria-sort", way);
    const text = (row) => row.cells[at].textContent.trim();
    const known = planned.filter((row) => text(row) && text(row) !== "-");
    const numeric = known.every((row) => !Number.isNaN(number(text(row))));
    const sign = way === "descending" ? -1 : 1;
    const compare = (a, b) => sign * (numeric ? number(text(a)) - number(text(b)) : text(a).localeCompare(text(b), "en", { numeric: true }));
    table.tBodies[0].append(...(way ? [...known.sort(compare), ...planned.filter((row) => !known.includes(row))] : planned));
    apply();
  }

  for (const table of all("main table")) {
    const heads = all("thead th", table);
    const planned = [...table.tBodies[0].rows];
    heads.forEach((head, at) => {
      head.dataset.name = head.textContent;
      if (planned.length > 1) head.replaceChildren(make("button", { textContent: head.textContent, onclick: () => sort(table, planned, head, at) }));
    });
    const tools = make("div", { className: "tools" });
    const more = heads.flatMap((head, at) => ("more" in head.dataset ? [at] : []));
    const show = (all) => { for (const row of table.rows) for (const at of more) row.cells[at].hidden = !all; };
    show(false);
    if (more.length) {
      const box = make("input", { type: "checkbox", onchange: () => show(box.checked) });
      tools.append(make("label", {}, box, ` all ${heads.length} columns`));
    }
    const copy = make("span", { textContent: "copy as" });
    for (const [form, write] of Object.entries(written)) {
      const button = make("button", { textContent: form, onclick: async () => {
        const shown = (cells) => [...cells].filter((cell) => !cell.hidden);
        const rows = [...table.rows].filter((row) => !row.hidden).map((row) => shown(row.cells).map((cell) => cell.dataset.name ?? ((cell.scope === "row" && cell.title) || cell.textContent.trim())));
        await navigator.clipboard.writeText(`${write(rows)}\n`);
        button.textContent = "copied";
        setTimeout(() => { button.textContent = form; }, 1500);
      } });
      copy.append(button);
    }
    tools.append(copy);
    table.parentElement.before(tools);
    // A verdict leads to the runs that it rests on.
    const at = heads.findIndex(({ dataset }) => dataset.name === "verdict");
    for (const row of at < 0 ? [] : planned.filter((one) => one.dataset.v)) {
      const button = make("button", { title: "its runs", onclick: () => open(row.dataset.v, button) }, ...row.cells[at].childNodes);
      row.cells[at].append(button);
    }
  }

  // ---- the runs of a variant, its curves, and what it changes


  // The rows of a table of the page that are about a variant; nothing where there are none.
  function copied(section, v) {
    const table = document.querySelector(`#${section} table`).cloneNode(true);
    const at = all("thead th", table).findIndex((head) => head.dataset.name === "table");
    for (const button of all("button", table)) button.replaceWith(...button.childNodes);
    for (const row of table.tBodies[0].querySelectorAll("tr")) {
      row.hidden = false;
      if (row.dataset.v !== v || (tables && at >= 0 && row.cells[at].textContent !== tables.value)) row.remove();
    }
    return table.tBodies[0].rows.length && make("div", { className: "wide" }, table);
  }

  function open(v, button) {
    panel.onclose = () => button.focus();
    const figure = figures.find((one) => curves.runs[stem(one)]?.length && one.getClientRects().length);
    if (figure) place(figure);
    const picture = figure && seen(figure)?.cloneNode(true);
    const base = document.querySelector("tr[data-base]")?.dataset.v;
    for (const mark of picture ? all("[data-v]", picture) : []) {
      if (![v, base].includes(mark.dataset.v)) mark.remove();
      mark.removeAttribute("data-off");
    }
    const runs = copied("runs", v);
    panel.replaceChildren(
      make("header", {}, make("h2", { id: "of-panel", textContent: nameOf(v) }), make("button", { textContent: "close", onclick: () => panel.close() })),
      ...(runs ? [make("h3", { textContent: "Runs" }), runs] : []),
      ...(picture ? [make("h3", { textContent: "Training loss, beside the baseline's" }), picture] : []),
      make("h3", { textContent: "What it changes of the baseline's recipe" }), copied("recipes", v) || "Nothing.",
    );
    panel.show();
    panel.querySelector("button").focus();
  }
  panel.setAttribute("aria-labelledby", "of-panel");
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (panel.open) panel.close();
    else if (pinned) pin(pinned);
  });

  // ---- one table of the experiment; parts that are folded, opened by a link to them and on paper

  function choose() {
    for (const part of all("[data-table]")) part.hidden = part.dataset.table !== tables.value;
    for (const figure of figures) place(figure);
    apply();
  }
  if (tables) {
    tables.closest("label").hidden = false;
    tables.addEventListener("change", choose);
    choose();
  }
  for (const part of all("details.part")) part.addEventListener("toggle", () => { for (const figure of all("figure", part)) place(figure); });
  function reveal() {
    const part = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)))?.querySelector("details.part");
    if (part) part.open = true;
  }
  addEventListener("hashchange", reveal);
  for (const link of all("nav a")) link.addEventListener("click", () => setTimeout(reveal));
  reveal();
  for (const figure of figures) place(figure);

  const opened = [];
  addEventListener("beforeprint", () => {
    opened.push(...all("details:is(.part, .facts, .note):not([open])"));
    for (const details of opened) details.open = true;
    for (const figure of figures) place(figure);
  });
  addEventListener("afterprint", () => { for (const details of opened.splice(0)) details.open = false; });
})();
