"use strict";
// What the page does: draws the charts, shows one table of the experiment at a time, lights a variant
// everywhere, and hides columns. Nothing here computes a number: the data are those of the report.
(async () => {
  // The library is packed, as it is most of the page; the policy names the hash of what comes out.
  const packed = Uint8Array.from(atob(document.getElementById("vega").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const library = document.createElement("script");
  library.textContent = await new Response(unpacked).text();
  document.head.append(library);

  const { data, specs, charts } = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const views = new Map(); // by figure
  const tables = document.getElementById("table");
  let lit = "";

  document.documentElement.classList.add("js");

  // ---- data: columns, in which a text that repeats stands once

  const datasets = data.map(({ n, columns }) => {
    const names = Object.keys(columns);
    const at = (column, i) => (column.texts ? column.texts[column.of[i]] : column[i]);
    return Array.from({ length: n }, (_, i) => Object.fromEntries(names.map((k) => [k, at(columns[k], i)])));
  });

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

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  function tooltip(_handler, event, _item, value) {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const list = document.createElement("dl");
    for (const [key, text] of Object.entries(Object(value))) {
      if (/^(null|undefined|NaN|)$/.test(String(text))) continue;
      list.append(Object.assign(document.createElement("dt"), { textContent: key }));
      list.append(Object.assign(document.createElement("dd"), { textContent: text }));
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

  function specification({ spec, data: names }, logarithmic, width) {
    const made = structuredClone(specs[spec]);
    made.datasets = Object.fromEntries(Object.entries(names).map(([name, at]) => [name, datasets[at]]));
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
      for (const { legend, condition } of encodings(made, channel)) {
        for (const one of [legend, condition?.legend]) if (one) one.columns = Math.max(1, Math.floor(width / 150));
      }
    }
    const axisY = { labelLimit: Math.max(90, 0.36 * width), minExtent: 30 };
    return vega.compile(made, { config: { ...config, axisY } }).spec;
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
    const bound = document.createElement("form");
    controls.append(bound);
    const view = new vega.View(
      vega.parse(specification(chart, logarithmic, plot.clientWidth), null, { ast: true }),
      { expr: vega.expressionInterpreter, renderer: "svg", container: plot, bind: bound, hover: true, tooltip },
    );
    const names = (specs[chart.spec].params ?? []).map((param) => param.name);
    for (const name of names) if (name in kept) view.signal(name, kept[name]);
    view.addEventListener("click", (_event, item) => { if (item?.datum?.variant) light(item.datum.variant); });
    views.set(figure, { view, kept: names });
    view.run();
  }

  const figures = all("figure[data-chart]");
  for (const figure of figures) {
    const controls = figure.querySelector(".controls");
    for (const channel of new Set(Object.values(charts[figure.dataset.chart]).flatMap(({ log }) => log))) {
      const box = Object.assign(document.createElement("input"), { type: "checkbox" });
      box.dataset.log = channel;
      box.addEventListener("change", () => draw(figure));
      const label = document.createElement("label");
      label.append(box, ` logarithmic ${channel} axis`);
      controls.append(label);
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
    row.addEventListener("click", (event) => { if (!event.target.closest("a")) light(row.dataset.variant); });
    row.addEventListener("keydown", (event) => {
      if (event.target === row && (event.key === "Enter" || event.key === " ")) {
        event.preventDefault();
        light(row.dataset.variant);
      }
    });
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape" && lit) light(lit); });

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

  // ---- paper shows what is folded away to keep the screen clear

  const opened = [];
  addEventListener("beforeprint", () => {
    opened.push(...all("details.facts:not([open])"));
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of opened.splice(0)) details.open = false; });

  // ---- columns

  for (const table of all("table[data-short]")) {
    const heads = all("thead th", table);
    const short = Number(table.dataset.short);
    const chooser = document.createElement("details");
    chooser.className = "columns";
    chooser.append(Object.assign(document.createElement("summary"), { textContent: `columns (${short} of ${heads.length})` }));
    const show = (at, shown) => all("tr", table).forEach((row) => { row.children[at].hidden = !shown; });
    heads.forEach((head, at) => {
      const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: at < short, disabled: at === 0 });
      box.addEventListener("change", () => show(at, box.checked));
      const label = document.createElement("label");
      label.append(box, ` ${head.textContent}`);
      chooser.append(label);
      if (at >= short) show(at, false);
    });
    table.parentElement.before(chooser);
  }
})();
