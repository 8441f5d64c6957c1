// ---- heat maps: statistic, keyboard, tooltip
const maps = [...document.querySelectorAll("table.heat")];
const cells = (map) => [...map.querySelectorAll("td[data-row]")];

let shownSource = "model";

function colour() {
  const statistic = document.getElementById("heat-statistic").value;
  const highest = {};
  for (const map of maps) {
    const metric = map.dataset.metric;
    map.dataset.shown = statistic || map.dataset.statistic;
    if (metric in highest) continue;
    const sized = (source) => data.rows.map((_, index) => numberOf(index, source, metric, map.dataset.shown));
    // The twin keeps the model's colours, so that the two can be compared.
    const all = shownSource === "twin" ? [...sized("model"), ...sized("twin")] : sized(shownSource);
    highest[metric] = all.filter((value) => value !== null && Number.isFinite(value)).reduce((most, value) => Math.max(most, Math.abs(value)), -Infinity);
  }
  for (const map of maps) {
    const top = highest[map.dataset.metric];
    const differs = shownSource === "difference";
    for (const cell of cells(map)) {
      const value = numberOf(cell.dataset.row, shownSource, map.dataset.metric, map.dataset.shown);
      cell.textContent = differs ? signed(value) : short(value);
      if (value === null) cell.className = "missing";
      else if (!Number.isFinite(value)) cell.className = "unbounded";
      else if (differs) cell.className = change(value, top);
      else cell.className = `q${top > 0 ? Math.min(levels - 1, Math.floor((levels * value) / top)) : 0}`;
      cell.classList.toggle("opened", Number(cell.dataset.row) === openedHead);
    }
    const figure = map.closest("figure");
    figure.querySelector(".statistic").textContent = data.statistics[map.dataset.shown] + (shownSource === "model" ? "" : `, ${sources[shownSource]}`);
    const end = Number.isFinite(top) ? top : null;
    figure.querySelector(".legend.amount").hidden = differs;
    figure.querySelector(".legend.change")?.toggleAttribute("hidden", !differs);
    figure.querySelector(".highest").textContent = short(end);
    for (const least of figure.querySelectorAll(".legend.change .least")) least.textContent = end === null ? "–" : `−${short(end)}`;
    for (const most of figure.querySelectorAll(".legend.change .most")) most.textContent = end === null ? "–" : `+${short(end)}`;
  }
}
for (const map of maps) map.dataset.shown = map.dataset.statistic;
document.getElementById("heat-statistic").addEventListener("change", colour);
document.getElementById("heat-source")?.addEventListener("change", (event) => {
  shownSource = event.target.value;
  colour();
});

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
  const index = Number(cell.dataset.row);
  const row = data.rows[index];
  const list = element("dl");
  if (data.twins) list.classList.add("with-twin");
  if (data.twins) list.append(element("dt"), element("dd", "model"), element("dd", "twin"));
  for (const [statistic, words] of Object.entries(data.statistics)) {
    list.append(element("dt", words), element("dd", measured(metric, numberOf(index, "model", metric, statistic))));
    if (data.twins) list.append(element("dd", measured(metric, numberOf(index, "twin", metric, statistic))));
  }
  const wide = (term, text) => list.append(element("dt", term), element("dd", text), ...(data.twins ? [element("dd")] : []));
  wide("queries", count(read(row, "queries")));
  const missed = read(row, "not_converged");
  if (missed) wide("not converged", count(missed));
  tooltip.replaceChildren(element("strong", nameOf(index)), element("span", data.metrics[metric]), list);
  if (read(row, `${metric}_max`) === Infinity) tooltip.append(element("p", "∞: unbounded for at least one query"));
  tooltip.append(element("p", "Click or press Enter to open the head"));
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

const arrows = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };

function focusOn(cell) {
  cell.closest("table.heat").querySelector("td[tabindex='0']")?.setAttribute("tabindex", "-1");
  cell.tabIndex = 0;
  cell.focus();
}

function move(map, cell, [down, right]) {
  const rows = [...map.tBodies[0].rows];
  const clamp = (place, most) => Math.max(0, Math.min(most - 1, place));
  const line = rows[clamp(rows.indexOf(cell.parentElement) + down, rows.length)];
  let place = clamp(cell.cellIndex - 1 + right, line.cells.length - 1);
  while (!line.cells[place + 1].dataset.row) {
    place += right < 0 ? -1 : 1;
    if (place < 0 || place > line.cells.length - 2) return;
  }
  focusOn(line.cells[place + 1]);
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
  map.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-row]");
    if (cell) openFrom(cell);
  });
  map.addEventListener("focusout", hide);
  map.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td[data-row]");
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") hide();
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      openFrom(cell);
    }
    if (!(event.key in arrows)) return;
    event.preventDefault();
    move(map, cell, arrows[event.key]);
  });
}
// Focus may scroll the page to its cell: the tooltip follows.
addEventListener("scroll", () => { if (described) place(); }, { passive: true, capture: true });

