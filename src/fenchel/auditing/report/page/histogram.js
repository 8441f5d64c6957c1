// ---- a head's distributions, on axes that fit
const pictures = document.querySelector("svg").namespaceURI;
const svg = (name, attributes) => {
  const made = document.createElementNS(pictures, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

function outline(shares, top) {
  const width = 100 / shares.length;
  const steps_ = shares.map((share, place) => `L${place * width} ${100 - (100 * share) / top}H${(place + 1) * width}`);
  return `M0 100${steps_.join("")}L100 100Z`;
}

function histogramOf(index, place) {
  const metric = data.axes[place];
  const figure = element("figure", undefined, "panel histogram");
  const caption = element("figcaption");
  const mean = numberOf(index, "model", metric, "mean");
  caption.append(element("span", data.metrics[metric]), element("b", short(mean)));
  figure.append(caption);
  const [upper, counts, twins] = data.histograms[index][place];
  const shares = (of) => { const all = of.reduce((sum, one) => sum + one, 0); return of.map((one) => (all ? one / all : 0)); };
  const own = shares(counts);
  const other = twins && shares(twins);
  const top = Math.max(...own, 1e-9);
  const twin = numberOf(index, "twin", metric, "mean");
  const predicted = metric === "relative_deviation" ? numberOf(index, "model", "predicted_deviation", "mean") : null;
  figure.setAttribute("role", "img");
  figure.setAttribute("aria-label", `${data.metrics[metric]}: mean ${short(mean)}${twin === null ? "" : `, untrained twin ${short(twin)}`}`);
  const picture = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  picture.append(svg("path", { class: "grid", d: "M0 50H100M50 0V100" }), svg("path", { class: "bars", d: outline(own, top) }));
  if (other) picture.append(svg("path", { class: "twin-bars", d: outline(other.map((share) => Math.min(share, top)), top) }));
  const line = (value, name) => {
    if (value !== null && Number.isFinite(value)) picture.append(svg("path", { class: name, d: `M${Math.min(100, (100 * value) / upper)} 0V100` }));
  };
  line(mean, "mean");
  line(twin, "twin-mean");
  line(predicted, "predicted-mean");
  const axis = element("div", undefined, "axis");
  axis.setAttribute("aria-hidden", "true");
  const beyond = read(data.rows[index], `${metric}_max`) > upper;
  axis.append(element("span", "0"), element("span", String(upper / 2)), element("span", `${upper}${beyond ? " and more" : ""}`));
  figure.append(picture, axis);
  return figure;
}
