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
      const cell = element("td", name === "head" ? undefined : text, header.classList.contains("number") ? "number" : "");
      if (name === "head") cell.append(linkTo(index, text));
      line.append(cell);
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
