(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("compare-data").textContent);
  const maps = [...document.querySelectorAll("table.heat")];
  const cells = (map) => [...map.querySelectorAll("td[data-row]")];
  const place = Object.fromEntries(data.metrics.map((name, index) => [name, index]));
  const fields = { first: { p50: 0, mean: 2 }, last: { p50: 1, mean: 3 }, difference: { p50: 4, mean: 5 } };
  let shown = "p50";

  // The same digits as the Python functions `short` and `signed_short`.
  const short = (value) => {
    if (value === null) return "–";
    if (value === "inf") return "∞";
    const size = Math.abs(value);
    if (size >= 1e4) return value.toExponential(1).replace("e+", "e");
    return value.toFixed(size < 1 ? 3 : size < 10 ? 2 : size < 100 ? 1 : 0);
  };
  const signed = (value) => {
    if (value === null) return "–";
    if (value === 0) return "0";
    return (value > 0 ? "+" : "−") + short(Math.abs(value)).replace(/^0\./, ".");
  };
  const element = (name, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const numbers = (cell) => data.rows[cell.dataset.row][3][place[cell.closest("table.heat").dataset.metric]];

  document.documentElement.classList.add("with-script");

  // ---- medians or means
  function colour() {
    for (const map of maps) {
      const metric = place[map.dataset.metric];
      const sizes = data.rows.map((row) => row[3][metric][fields.difference[shown]]).filter((value) => value !== null).map(Math.abs);
      const highest = sizes.length ? Math.max(...sizes) : null;
      for (const cell of cells(map)) {
        const found = numbers(cell);
        const value = found[fields.difference[shown]];
        cell.textContent = signed(value);
        const side = value > 0 ? "r" : "f";
        const step = Math.min(data.steps, Math.max(1, Math.ceil((data.steps * Math.abs(value)) / highest)));
        cell.className = value === null ? "missing" : value === 0 ? "z" : `${side}${step}`;
        // The interval is one of medians.
        if (shown === "p50" && found[8]) cell.classList.add("moved");
      }
      const figure = map.closest("figure");
      figure.querySelector(".statistic").textContent = shown === "p50" ? "median" : "mean";
      for (const end of figure.querySelectorAll(".highest")) end.textContent = short(highest);
    }
  }
  document.getElementById("statistic").addEventListener("change", (event) => { shown = event.target.value; colour(); });

  // ---- which metric
  for (const choice of document.querySelectorAll(".choice")) {
    choice.addEventListener("change", (event) => {
      for (const part of document.querySelectorAll(`[data-choice="${choice.dataset.group}"]`)) {
        part.hidden = part.dataset.metric !== event.target.value;
      }
    });
  }

  // ---- what a cell stands for
  const tooltip = document.getElementById("tooltip");
  let described = null;

  function hide() {
    tooltip.hidden = true;
    described?.removeAttribute("aria-describedby");
    described = null;
  }

  function put() {
    const box = described.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const left = Math.max(6, Math.min(box.left + box.width / 2 - tooltip.offsetWidth / 2, width - tooltip.offsetWidth - 6));
    const above = box.top - tooltip.offsetHeight - 8;
    tooltip.style.left = `${left}px`;
    tooltip.style.top = `${above >= 6 ? above : box.bottom + 8}px`;
  }

  function show(cell) {
    const [kind, layer, head] = data.rows[cell.dataset.row];
    const found = numbers(cell);
    const list = element("dl");
    for (const [statistic, words] of [["p50", "median"], ["mean", "mean"]]) {
      list.append(
        element("dt", words),
        element("dd", `${short(found[fields.first[statistic]])} → ${short(found[fields.last[statistic]])}`),
      );
    }
    list.append(element("dt", "medians differ by"), element("dd", `${found[6]} to ${found[7]}`));
    const metric = data.metric_names[cell.closest("table.heat").dataset.metric];
    tooltip.replaceChildren(element("strong", `${kind}, layer ${layer}, head ${head}`), element("span", metric), list);
    hide();
    tooltip.hidden = false;
    cell.setAttribute("aria-describedby", "tooltip");
    described = cell;
    put();
  }

  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };

  function move(map, cell, [down, right]) {
    const rows = [...map.tBodies[0].rows];
    const clamp = (wanted, most) => Math.max(0, Math.min(most - 1, wanted));
    const line = rows[clamp(rows.indexOf(cell.parentElement) + down, rows.length)];
    const there = [...line.cells].slice(1);
    let column = clamp(cell.cellIndex - 1 + right, there.length);
    while (!there[column].dataset.row) {
      column += right < 0 ? -1 : 1;
      if (column < 0 || column >= there.length) return;
    }
    map.querySelector("td[tabindex='0']")?.setAttribute("tabindex", "-1");
    there[column].tabIndex = 0;
    there[column].focus();
  }

  for (const map of maps) {
    cells(map).forEach((cell, index) => { cell.tabIndex = index ? -1 : 0; });
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
  addEventListener("scroll", () => { if (described) put(); }, { passive: true, capture: true });
})();
