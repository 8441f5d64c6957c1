// ---- a comparison: medians or means, and what a cell stands for
const data = JSON.parse(document.getElementById("page-data").textContent);
const metricAt = Object.fromEntries(data.metrics.map((name, index) => [name, index]));
const fields = { first: { p50: 0, mean: 2 }, last: { p50: 1, mean: 3 }, difference: { p50: 4, mean: 5 } };
let shown = "p50";

// The same digits as the Python functions `short_size` and `signed_short`.
const shortSize = (value) => {
  if (value === null) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return size.toExponential(0);
  return short(size).replace(/^0\./, ".");
};
const signedShort = (value) => (!value ? "" : value > 0 ? "+" : "−") + shortSize(value);
const finite = (value) => (value === "inf" ? Infinity : value);
const numbersOf = (cell) => data.rows[cell.dataset.row][3][metricAt[cell.closest("table.heat").dataset.metric]];

document.documentElement.classList.add("with-script");

function colour() {
  for (const map of maps) {
    const metric = metricAt[map.dataset.metric];
    const sizes = data.rows.map((row) => row[3][metric][fields.difference[shown]]).filter((value) => value !== null).map(Math.abs);
    const highest = sizes.length ? Math.max(...sizes) : null;
    for (const cell of cells(map)) {
      const found = numbersOf(cell);
      const value = found[fields.difference[shown]];
      cell.textContent = signedShort(value);
      cell.className = change(value, highest);
      // The interval is one of medians.
      if (shown === "p50" && found[8]) cell.classList.add("moved");
    }
    const figure = map.closest("figure");
    figure.querySelector(".statistic").textContent = shown === "p50" ? "median" : "mean";
    for (const end of figure.querySelectorAll(".highest")) end.textContent = shortSize(highest);
  }
}
document.getElementById("statistic").addEventListener("change", (event) => { shown = event.target.value; colour(); });

function show(cell) {
  const [kind, layer, head] = data.rows[cell.dataset.row];
  const found = numbersOf(cell);
  const list = element("dl");
  for (const [statistic, words] of [["p50", "median"], ["mean", "mean"]]) {
    const [first, last] = ["first", "last"].map((which) => short(finite(found[fields[which][statistic]])));
    list.append(element("dt", words), element("dd", `${first} → ${last}`));
  }
  list.append(element("dt", "medians differ by"), element("dd", `${found[6]} to ${found[7]}`));
  const metric = data.metric_names[cell.closest("table.heat").dataset.metric];
  describe(cell, element("strong", `${kind}, layer ${layer}, head ${head}`), element("span", metric), list);
}
walk(show);
