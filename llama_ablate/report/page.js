"use strict";
// What the page does: draws the charts, shows one table of the experiment at a time, lights a variant
// everywhere, sorts, filters and copies tables, and opens a panel with the runs of a variant. Nothing
// here computes a number: the data are those of the report.
(async () => {
  // Library and data are packed, the library as it is most of the page; the policy names the hash of
  // what comes out.
  async function unpacked(id) {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  const library = make("script", { textContent: await unpacked("vega") });
  document.head.append(library);

  const { charts, runs } = JSON.parse(await unpacked("data"));
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  function make(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }
  const views = new Map(); // by figure
  const tables = document.getElementById("table");
  const POINTS = 50; // of a run's curve
  let lit = "";

  document.documentElement.classList.add("js");

  // ---- charts

  const faint = "#88888844";
  const config = {
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: null },
    axis: { labelColor: "currentColor", titleColor: "currentColor", titleFontWeight: "normal", titleFontSize: 12,
      labelFontSize: 11, domainColor: "#888888", tickColor: "#888888", gridColor: faint, tickCount: 6 },
    legend: { labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 11, labelLimit: 0, symbolLimit: 60,
      symbolOpacity: 1, symbolStrokeWidth: 2.5, symbolSize: 80 },
    text: { color: "currentColor" },
  };

  const tip = make("div", { id: "tip", hidden: true });
  document.body.append(tip);

  function tooltip(_handler, event, _item, value) {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const list = make("dl");
    for (const [key, text] of Object.entries(Object(value))) {
      if (/^(null|undefined|NaN|)$/.test(String(text))) continue;
      list.append(make("dt", { textContent: key }), make("dd", { textContent: text }));
    }
    tip.replaceChildren(list);
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 4))}px`;
    tip.style.top = `${event.clientY + 14 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 14}px`;
  }

  // Every encoding of a channel, in layers too.
  function encodings(spec, channel) {
    const own = spec.encoding?.[channel];
    return [...(own ? [own] : []), ...(spec.layer ?? []).flatMap((layer) => encodings(layer, channel))];
  }

  function lines(title, most) {
    const at = title.length > most ? title.lastIndexOf(" ", most) : -1;
    return at > 0 ? [title.slice(0, at), ...[lines(title.slice(at + 1), most)].flat()] : title;
  }

  // A chart that has a row for each of a table has its rows in the table's order, as far as it shows them.
  function follow(made, figure) {
    const table = figure.closest("section").querySelector("[data-table]:not([hidden]) table, .beside > div:not([data-table]) table");
    const listed = encodings(made, "y").filter(({ field, scale }) => field === "variant" && scale?.domain);
    if (!table || !listed.length) return;
    const order = all("tbody tr", table).map((row) => row.cells[0].textContent);
    const left = new Set(all("tbody tr[hidden]", table).map((row) => row.cells[0].textContent));
    const at = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
    const domain = listed[0].scale.domain.filter((name) => !left.has(name)).sort((a, b) => at(a) - at(b));
    for (const { scale } of listed) scale.domain = domain;
    for (const [name, rows] of Object.entries(made.datasets)) made.datasets[name] = rows.filter(({ variant }) => domain.includes(variant));
    made.height *= domain.length / (domain.length + left.size || 1);
  }

  function specification({ spec, data }, logarithmic, width, figure) {
    const made = structuredClone(spec);
    made.datasets = structuredClone(data); // a view writes into what it draws
    follow(made, figure);
    made.params = [...(made.params ?? []), { name: "lit", value: lit }];
    for (const channel of logarithmic) {
      for (const encoding of encodings(made, channel)) {
        const field = encoding.field ?? encoding.datum;
        encoding.scale = { ...encoding.scale, type: "log" };
        delete encoding.scale.zero;
        if (typeof field === "string") made.transform = [...(made.transform ?? []), { filter: `!isNumber(datum['${field}']) || datum['${field}'] > 0` }];
      }
    }
    // A title that is longer than its axis has two lines; a legend as many columns as have room.
    const longest = { x: 0.62 * width, y: made.height };
    for (const [channel, room] of Object.entries(longest)) {
      for (const encoding of encodings(made, channel)) {
        if (typeof encoding.title === "string") encoding.title = lines(encoding.title, room / 6.2);
      }
    }
    for (const channel of ["color", "shape", "strokeDash"]) {
      for (const { legend, scale, condition } of encodings(made, channel)) {
        const names = legend?.values ?? scale?.domain ?? condition?.scale?.domain ?? [];
        const wide = 40 + 6.4 * Math.max(8, ...names.map((name) => name.length));
        for (const one of [legend, condition?.legend]) if (one) one.columns = Math.max(1, Math.floor((0.86 * width) / wide));
      }
    }
    return compiled(made, width);
  }

  function compiled(made, width) {
    const axisY = { labelLimit: Math.max(90, 0.42 * width), minExtent: 30 };
    return vega.parse(vega.compile(made, { config: { ...config, axisY } }).spec, null, { ast: true });
  }

  function draw(figure) {
    const plot = figure.querySelector(".plot");
    const controls = figure.querySelector(".controls");
    const kept = Object.fromEntries((views.get(figure)?.kept ?? []).map((name) => [name, views.get(figure).view.signal(name)]));
    views.get(figure)?.view.finalize();
    views.delete(figure);
    const of = charts[figure.dataset.chart];
    const chart = of[tables?.value] ?? of[""];
    figure.hidden = !chart;
    plot.replaceChildren();
    all("form", controls).forEach((form) => form.remove());
    if (!chart) return;
    const logarithmic = all("input[data-log]:checked", controls).map((box) => box.dataset.log);
    if (plot.closest("details:not([open])")) return; // drawn when its part is opened
    const bound = make("form");
    controls.append(bound);
    const view = new vega.View(
      specification(chart, logarithmic, plot.clientWidth, figure),
      { expr: vega.expressionInterpreter, renderer: "svg", container: plot, bind: bound, hover: true, tooltip },
    );
    const names = (chart.spec.params ?? []).map((param) => param.name);
    for (const name of names) if (name in kept) view.signal(name, kept[name]);
    view.addEventListener("click", (_event, item) => { if (item?.datum?.variant) light(item.datum.variant); });
    views.set(figure, { view, kept: names });
    view.run();
  }

  // Of names beside points that lie over one another the first is shown.
  function tidy(plot) {
    const placed = [];
    for (const text of all(".role-mark.mark-text text", plot)) {
      const box = text.getBoundingClientRect();
      const free = placed.every((other) => box.right < other.left || box.left > other.right || box.bottom < other.top || box.top > other.bottom);
      text.setAttribute("visibility", free ? "visible" : "hidden");
      if (free) placed.push(box);
    }
  }

  const figures = all("figure[data-chart]");
  for (const figure of figures) {
    const plot = figure.querySelector(".plot");
    new MutationObserver(() => tidy(plot)).observe(plot, { subtree: true, childList: true, attributes: true, attributeFilter: ["transform"] });
    const controls = figure.querySelector(".controls");
    for (const channel of new Set(Object.values(charts[figure.dataset.chart]).flatMap(({ log }) => log))) {
      const box = make("input", { type: "checkbox", onchange: () => draw(figure) });
      box.dataset.log = channel;
      controls.append(make("label", {}, box, ` logarithmic ${channel} axis`));
    }
  }

  // ---- a variant, lit everywhere

  function light(variant) {
    lit = variant === lit ? "" : variant;
    for (const row of all("tr[data-variant]")) {
      row.classList.toggle("lit", row.dataset.variant === lit);
      row.setAttribute("aria-current", row.dataset.variant === lit);
    }
    for (const { view } of views.values()) view.signal("lit", lit).runAsync();
  }

  for (const row of all("tr[data-variant]")) {
    row.tabIndex = 0;
    row.addEventListener("click", (event) => { if (!event.target.closest("a, button")) light(row.dataset.variant); });
    row.addEventListener("keydown", (event) => {
      if (event.target === row && (event.key === "Enter" || event.key === " ")) {
        event.preventDefault();
        light(row.dataset.variant);
      }
    });
  }

  // ---- the runs of a variant

  const panel = make("dialog", { id: "panel" });
  panel.setAttribute("aria-labelledby", "of-panel");
  document.body.append(panel);
  let opener = null;

  function close() {
    panel.close();
    opener?.focus();
  }

  // Rows of a table of the page that are about a variant, as a table: with some of its columns.
  function copied(section, variant, without, keep = () => true) {
    const table = document.querySelector(`#${section} table`);
    const shown = all("thead th", table).map((head) => !without.includes(head.textContent.trim()));
    const kept = (row) => make("tr", {}, ...[...row.cells].filter((_, at) => shown[at]).map((cell) => {
      const made = make(cell.tagName, { className: cell.className });
      made.append(...(cell.querySelector("a") ? [cell.querySelector("a").cloneNode(true)] : [cell.textContent]));
      return made;
    }));
    const rows = all("tbody tr[data-variant]", table).filter((row) => row.dataset.variant === variant && keep(row)).map(kept);
    return rows.length && make("div", { className: "wide" }, make("table", {}, make("thead", {}, kept(table.tHead.rows[0])), make("tbody", {}, ...rows)));
  }

  function open(variant, button) {
    opener = button;
    const ids = new Set();
    const of = (row) => {
      const id = [...row.cells].map((cell) => cell.textContent.trim()).find((text) => text in runs);
      const own = !tables || !id || runs[id].tables.includes(tables.value);
      if (own && id) ids.add(id);
      return own;
    };
    const seeds = all("#runs thead th").findIndex((head) => head.dataset.name === "seed");
    const seed = {};
    const list = copied("runs", variant, ["variant"], of);
    for (const row of all("#runs tbody tr")) for (const cell of row.cells) if (ids.has(cell.textContent.trim())) seed[cell.textContent.trim()] = row.cells[seeds].textContent;
    const recipe = copied("recipes", variant, ["variant"], (row) => !tables || [...row.cells].some((cell) => cell.textContent === tables.value));
    const plot = make("div", { className: "plot" });
    const points = [...ids].flatMap((run) => runs[run].points.map(([tokens, train, norm, heldout]) => ({ run, seed: `seed ${seed[run]}`, tokens, train, norm, heldout })));
    const most = Math.max(0, ...[...ids].map((id) => runs[id].of));
    panel.replaceChildren(
      make("header", {}, make("h2", { id: "of-panel", textContent: variant }), make("button", { textContent: "close", onclick: close })),
      ...(list ? [make("h3", { textContent: "Runs" }), list] : []),
      ...(points.length ? [plot, make("p", { className: "facts", textContent:
        `Held-out loss (thick, with points), training loss (thin) and norm of the gradient of each run${most > POINTS ? `; of ${most} points of a curve at most ${POINTS} are drawn` : ""}.` })] : []),
      make("h3", { textContent: "What it changes of the baseline's recipe" }), recipe || "Nothing.",
    );
    panel.show();
    panel.querySelector("button").focus();
    if (!points.length) return;
    const width = plot.clientWidth - 70;
    const at = (field, title) => ({ field, type: "quantitative", title, scale: { zero: false }, axis: field === "tokens" ? { format: "~s" } : {} });
    const color = { field: "seed", type: "nominal", title: null, legend: { orient: "bottom", columns: Math.max(1, Math.floor(width / 90)) } };
    const line = (field, title, mark, transform = []) => ({ transform: [{ filter: `isValid(datum.${field})` }, ...transform], mark: { type: "line", ...mark },
      encoding: { x: at("tokens", "tokens"), y: at(field, title), color, detail: { field: "run" }, tooltip: ["run", "seed", "tokens", field].map((name) => ({ field: name })) } });
    const view = (height, ...layer) => ({ width, height, layer });
    const spec = { data: { values: points }, vconcat: [
      view(190, line("train", "loss (nats)", { strokeWidth: 0.7, opacity: 0.6 }), line("heldout", "loss (nats)", { strokeWidth: 2, point: true })),
      view(90, line("norm", "norm of the gradient", { strokeWidth: 1 }))] };
    new vega.View(compiled(spec, width), { expr: vega.expressionInterpreter, renderer: "svg", container: plot, hover: true, tooltip }).run();
  }

  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (panel.open) close();
    else if (lit) light(lit);
  });

  // ---- tables: sorted, filtered, copied, some of their columns hidden

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

  for (const table of all("table")) {
    const heads = all("thead th", table);
    const body = table.tBodies[0];
    const planned = [...body.rows];
    if (planned.length < 2) continue;
    const arranged = () => all("figure[data-chart]", table.closest("section")).forEach(draw);

    heads.forEach((head, at) => {
      head.dataset.name = head.textContent;
      const button = make("button", { textContent: head.textContent, title: head.title });
      const tell = (event) => { if (head.title && button.matches(":focus-visible")) tooltip(null, { clientX: button.getBoundingClientRect().x, clientY: button.getBoundingClientRect().bottom }, null, { [head.dataset.name]: head.title }); };
      button.addEventListener("focus", tell);
      button.addEventListener("blur", () => { tip.hidden = true; });
      button.addEventListener("click", () => {
        const way = { undefined: "ascending", ascending: "descending" }[head.getAttribute("aria-sort") ?? undefined];
        for (const other of heads) other.removeAttribute("aria-sort");
        if (way) head.setAttribute("aria-sort", way);
        const text = (row) => row.cells[at].textContent.trim();
        const known = planned.filter((row) => text(row) && text(row) !== "-");
        const numeric = known.every((row) => !Number.isNaN(number(text(row))));
        const sign = way === "descending" ? -1 : 1;
        const order = (a, b) => sign * (numeric ? number(text(a)) - number(text(b)) : text(a).localeCompare(text(b), "en", { numeric: true }));
        body.append(...(way ? [...known.sort(order), ...planned.filter((row) => !known.includes(row))] : planned));
        arranged();
      });
      head.replaceChildren(button);
    });

    const tools = make("div", { className: "tools" });
    const show = (at, shown) => { for (const row of table.rows) row.cells[at].hidden = !shown; };
    if (heads.some((head) => "more" in head.dataset)) {
      const shown = heads.filter((head) => !("more" in head.dataset)).length;
      const chooser = make("details", { className: "columns" }, make("summary", { textContent: `columns (${shown} of ${heads.length})` }));
      heads.forEach((head, at) => {
        const more = "more" in head.dataset;
        const box = make("input", { type: "checkbox", checked: !more, disabled: at === 0, onchange: () => show(at, box.checked) });
        chooser.append(make("label", {}, box, ` ${head.dataset.name}`));
        if (more) show(at, false);
      });
      tools.append(chooser);
    }
    if (planned.length > 5) {
      const filter = make("input", { type: "search", placeholder: "filter rows", ariaLabel: "filter rows", oninput: () => {
        const words = filter.value.toLowerCase().split(/\s+/);
        for (const row of planned) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
        arranged();
      } });
      tools.append(filter);
    }
    const copy = make("span", { textContent: "copy as" });
    for (const [form, write] of Object.entries(written)) {
      const button = make("button", { textContent: form, onclick: async () => {
        const shown = (cells) => [...cells].filter((cell) => !cell.hidden);
        const rows = [...table.rows].filter((row) => !row.hidden).map((row) => shown(row.cells).map((cell) => cell.dataset.name ?? cell.textContent.trim()));
        await navigator.clipboard.writeText(`${write(rows)}\n`);
        button.textContent = "copied";
        setTimeout(() => { button.textContent = form; }, 1500);
      } });
      copy.append(button);
    }
    tools.append(copy);
    table.parentElement.before(tools);
  }

  // A verdict leads to the runs that it rests on.
  for (const table of all("table")) {
    const at = all("thead th", table).findIndex(({ dataset, textContent }) => (dataset.name ?? textContent) === "verdict");
    if (at < 0) continue;
    for (const row of all("tbody tr[data-variant]", table)) {
      const cell = row.cells[at];
      const button = make("button", { title: "its runs", onclick: () => open(row.dataset.variant, button) }, ...cell.childNodes);
      cell.append(button);
    }
  }

  // ---- one table of the experiment

  function choose() {
    for (const part of all("[data-table]")) part.hidden = part.dataset.table !== tables.value;
    figures.forEach(draw);
  }
  if (tables) {
    tables.closest("label").hidden = false;
    tables.addEventListener("change", choose);
    choose();
  } else {
    figures.forEach(draw);
  }

  // ---- parts that are folded: opened by a link to them, and on paper

  for (const part of all("details.part")) {
    part.addEventListener("toggle", () => {
      for (const figure of all("figure[data-chart]", part)) if (part.open && !views.has(figure)) draw(figure);
    });
  }
  function reveal() {
    const part = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)))?.querySelector("details.part");
    if (part) part.open = true;
  }
  addEventListener("hashchange", reveal);
  for (const link of all("nav a")) link.addEventListener("click", () => setTimeout(reveal));
  reveal();

  const opened = [];
  addEventListener("beforeprint", () => {
    opened.push(...all("details:is(.part, .facts, .note):not([open])"));
    for (const details of opened) details.open = true;
    for (const figure of figures) if (!views.has(figure)) draw(figure);
  });
  addEventListener("afterprint", () => { for (const details of opened.splice(0)) details.open = false; });
})();
