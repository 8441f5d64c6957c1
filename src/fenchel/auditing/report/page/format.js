// The page's data, and numbers written as Python writes them.
const data = JSON.parse(document.getElementById("page-data").textContent);
const column = Object.fromEntries(data.columns.map((name, place) => [name, place]));
const levels = document.querySelector(".ramp")?.children.length ?? 1;
const read = (row, name) => {
  const value = row[column[name]];
  return value === "inf" ? Infinity : value ?? null;
};

// What bounds and does not measure is written as a bound.
const bounds = new Set(["certificate"]);
const measured = (metric, value) => (bounds.has(metric) && Number.isFinite(value) && value !== null ? `≤ ${decimal(value)}` : decimal(value));

// A head's numbers in the model, in its untrained twin, and what the model has more.
const sources = { model: "model", twin: "untrained twin", difference: "model less twin" };
function numberOf(index, source, metric, statistic) {
  const name = `${metric}_${statistic}`;
  const own = read(data.rows[index], name);
  if (source === "model") return own;
  const place = column[name] - data.metrics_from;
  const twins = data.twins?.[index]?.[place] ?? null;
  const twin = twins === "inf" ? Infinity : twins;
  if (source === "twin") return twin;
  return Number.isFinite(own) && Number.isFinite(twin) && own !== null && twin !== null ? own - twin : null;
}

