// ---- heat maps: statistic and source
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
  const unbounded = read(row, `${metric}_max`) === Infinity ? [element("p", "∞: unbounded for at least one query")] : [];
  const advice = element("p", "Click or press Enter to open the head");
  describe(cell, element("strong", nameOf(index)), element("span", data.metrics[metric]), list, ...unbounded, advice);
}
walk(show, openFrom);

