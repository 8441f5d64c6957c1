(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("audit-data").textContent);
  const column = Object.fromEntries(data.columns.map((name, place) => [name, place]));
  const levels = document.querySelector(".ramp")?.children.length ?? 1;
  const read = (row, name) => {
    const value = row[column[name]];
    return value === "inf" ? Infinity : value ?? null;
  };

  // The same digits as the Python functions `short` and `decimal`.
  const fixed = (value, digits) => {
    // Where a number is exactly in the middle, which takes a whole number of such parts, Python takes the even digit.
    const below = Math.floor(value * 10 ** digits);
    const tie = Number.isInteger(value * 2 ** (digits + 1)) && value * 10 ** digits - below === 0.5;
    return tie && below % 2 === 0 ? (below / 10 ** digits).toFixed(digits) : value.toFixed(digits);
  };
  const scientific = (value) => value.toExponential(1).replace("e+", "e");
  const unusual = (value) => (value === null ? "–" : value === Infinity ? "∞" : null);
  const short = (value) =>
    unusual(value) ?? (value >= 1e4 ? scientific(value) : fixed(value, value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0));
  const decimal = (value) => {
    if (unusual(value) !== null) return unusual(value);
    if (value === 0) return "0";
    if (value < 1e-4 || value >= 1e5) return scientific(value);
    return fixed(value, value < 1 ? 4 : value < 10 ? 3 : value < 100 ? 2 : 1);
  };
  const count = (value) => value.toLocaleString("en-US");
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  document.documentElement.classList.add("with-script");

  // ---- heat maps: statistic, keyboard, tooltip
  const maps = [...document.querySelectorAll("table.heat")];
  const cells = (map) => [...map.querySelectorAll("td[data-row]")];

  function colour(statistic) {
    const highest = {};
    for (const map of maps) {
      const metric = map.dataset.metric;
      map.dataset.shown = statistic || map.dataset.statistic;
      if (metric in highest) continue;
      const finite = data.rows.map((row) => read(row, `${metric}_${map.dataset.shown}`)).filter(Number.isFinite);
      highest[metric] = finite.reduce((most, value) => Math.max(most, value), -Infinity);
    }
    for (const map of maps) {
      const top = highest[map.dataset.metric];
      for (const cell of cells(map)) {
        const value = read(data.rows[cell.dataset.row], `${map.dataset.metric}_${map.dataset.shown}`);
        cell.textContent = short(value);
        if (value === null) cell.className = "missing";
        else if (!Number.isFinite(value)) cell.className = "unbounded";
        else cell.className = `q${top > 0 ? Math.min(levels - 1, Math.floor((levels * value) / top)) : 0}`;
      }
      const figure = map.closest("figure");
      figure.querySelector(".statistic").textContent = data.statistics[map.dataset.shown];
      figure.querySelector(".highest").textContent = short(Number.isFinite(top) ? top : null);
    }
  }
  for (const map of maps) map.dataset.shown = map.dataset.statistic;
  document.getElementById("heat-statistic").addEventListener("change", (event) => colour(event.target.value));

  const tooltip = document.getElementById("tooltip");
  let described = null;

  function hide() {
    tooltip.hidden = true;
    described?.removeAttribute("aria-describedby");
    described = null;
  }

  function show(cell) {
    const map = cell.closest("table.heat");
    const metric = map.dataset.metric;
    const row = data.rows[cell.dataset.row];
    const list = element("dl");
    for (const [statistic, words] of Object.entries(data.statistics)) {
      list.append(element("dt", words), element("dd", decimal(read(row, `${metric}_${statistic}`))));
    }
    list.append(element("dt", "queries"), element("dd", count(read(row, "queries"))));
    const missed = read(row, "not_converged");
    if (missed) list.append(element("dt", "not converged"), element("dd", count(missed)));
    const title = `${data.kinds[read(row, "kind")]}, layer ${read(row, "layer")}, head ${read(row, "head")}`;
    tooltip.replaceChildren(element("strong", title), element("span", data.metrics[metric]), list);
    if (read(row, `${metric}_max`) === Infinity) tooltip.append(element("p", "∞: unbounded for at least one query"));
    hide();
    tooltip.hidden = false;
    cell.setAttribute("aria-describedby", "tooltip");
    described = cell;
    place();
  }

  function place() {
    const box = described.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const left = Math.max(6, Math.min(box.left + box.width / 2 - tooltip.offsetWidth / 2, width - tooltip.offsetWidth - 6));
    const above = box.top - tooltip.offsetHeight - 8;
    tooltip.style.left = `${left}px`;
    tooltip.style.top = `${above >= 6 ? above : box.bottom + 8}px`;
  }

  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };

  function move(map, cell, [down, right]) {
    const rows = [...map.tBodies[0].rows];
    const clamp = (place, most) => Math.max(0, Math.min(most - 1, place));
    const line = rows[clamp(rows.indexOf(cell.parentElement) + down, rows.length)];
    let place = clamp(cell.cellIndex - 1 + right, line.cells.length - 1);
    while (!line.cells[place + 1].dataset.row) {
      place += right < 0 ? -1 : 1;
      if (place < 0 || place > line.cells.length - 2) return;
    }
    const next = line.cells[place + 1];
    map.querySelector("td[tabindex='0']")?.setAttribute("tabindex", "-1");
    next.tabIndex = 0;
    next.focus();
  }

  for (const map of maps) {
    cells(map).forEach((cell, place) => { cell.tabIndex = place ? -1 : 0; });
    const over = (event) => {
      const cell = event.target.closest("td[data-row]");
      if (cell) show(cell);
    };
    map.addEventListener("pointerover", over);
    map.addEventListener("focusin", over);
    map.addEventListener("pointerleave", hide);
    map.addEventListener("focusout", hide);
    map.addEventListener("keydown", (event) => {
      const cell = event.target.closest("td[data-row]");
      if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") hide();
      if (!(event.key in steps)) return;
      event.preventDefault();
      move(map, cell, steps[event.key]);
    });
  }
  // Focus may scroll the page to its cell: the tooltip follows.
  addEventListener("scroll", () => { if (described) place(); }, { passive: true, capture: true });

  // ---- distributions: which metric
  for (const choice of document.querySelectorAll(".choice")) {
    choice.addEventListener("change", (event) => {
      for (const part of document.querySelectorAll(`[data-choice="${choice.dataset.group}"]`)) {
        part.hidden = part.dataset.metric !== event.target.value;
      }
    });
  }

  // ---- table: sort, filter, statistic
  const table = document.getElementById("heads-table");
  const headers = [...table.tHead.rows[0].cells];
  const kindFilter = document.getElementById("filter-kind");
  const layerFilter = document.getElementById("filter-layer");
  const statistic = document.getElementById("table-statistic");
  const showAll = document.getElementById("show-all");
  let order = data.rows.map((_, index) => index);
  let sorted = null;
  let limited = true;

  const field = (header) => header.dataset.column ?? `${header.dataset.metric}_${statistic.value}`;
  const words = {
    kind: (row) => data.short_kinds[read(row, "kind")],
    layer: (row) => String(read(row, "layer")),
    head: (row) => String(read(row, "head")),
    queries: (row) => count(read(row, "queries")),
    not_converged: (row) => count(read(row, "not_converged")),
    newton_steps: (row) => short(read(row, "newton_steps")),
  };

  function fill() {
    const wanted = order.filter((index) => {
      const row = data.rows[index];
      const rightKind = !kindFilter?.value || read(row, "kind") === Number(kindFilter.value);
      return rightKind && (!layerFilter.value || read(row, "layer") === Number(layerFilter.value));
    });
    const visible = limited ? wanted.slice(0, data.most_rows) : wanted;
    const lines = visible.map((index) => {
      const row = data.rows[index];
      const line = element("tr", undefined, read(row, "not_converged") ? "missed" : "");
      for (const header of headers) {
        const name = field(header);
        const text = words[name] ? words[name](row) : decimal(read(row, name));
        line.append(element("td", text, header.classList.contains("number") ? "number" : ""));
      }
      return line;
    });
    table.tBodies[0].replaceChildren(...lines);
    document.getElementById("shown").textContent = `${count(visible.length)} of ${count(data.rows.length)} heads shown`;
    showAll.hidden = visible.length === wanted.length;
    showAll.textContent = `Show all ${count(wanted.length)}`;
  }

  function sort() {
    if (!sorted) return;
    const name = field(sorted.header);
    order.sort((a, b) => {
      const left = read(data.rows[a], name);
      const right = read(data.rows[b], name);
      // What is missing comes last in both directions.
      if (left === null || right === null) return (left === null) - (right === null);
      return left === right ? 0 : (left < right ? -1 : 1) * sorted.sign;
    });
  }

  for (const header of headers) {
    header.firstElementChild.addEventListener("click", () => {
      const first = header.dataset.metric || ["newton_steps", "not_converged"].includes(header.dataset.column) ? -1 : 1;
      const sign = sorted?.header === header ? -sorted.sign : first;
      sorted = { header, sign };
      for (const other of headers) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      sort();
      fill();
    });
  }
  for (const layer of [...new Set(data.rows.map((row) => read(row, "layer")))].sort((a, b) => a - b)) {
    layerFilter.append(new Option(layer, layer));
  }
  kindFilter?.addEventListener("change", fill);
  layerFilter.addEventListener("change", fill);
  statistic.addEventListener("change", () => { sort(); fill(); });
  showAll.addEventListener("click", () => { limited = false; fill(); });
  fill();
})();
