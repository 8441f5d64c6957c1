// ---- heads that open: by a click, by Enter, by an address such as #L5H6
const panel = document.getElementById("opened");
const byAddress = new Map(data.addresses.map((address, index) => [address, index]));
// A head's kind may be named although it is the report's first.
data.addresses.forEach((address, index) => byAddress.set(`${data.kind_prefixes[read(data.rows[index], "kind")]}${address.replace(/^[a-z]+-/, "")}`, index));
let openedHead = null;
let returnTo = null;

function nameOf(index) {
  const row = data.rows[index];
  return `${data.kinds[read(row, "kind")]}, layer ${read(row, "layer")}, head ${read(row, "head")}`;
}

function linkTo(index, text) {
  const link = element("a", text);
  link.href = `#${data.addresses[index]}`;
  return link;
}

function openFrom(cell) {
  hide();
  returnTo = cell;
  const address = `#${data.addresses[cell.dataset.row]}`;
  if (location.hash === address) follow();
  else location.hash = address;
}

function numbersTable(index) {
  const row = data.rows[index];
  const table = element("table", undefined, "data numbers-of-head");
  const header = table.createTHead().insertRow();
  const title = (text) => {
    const cell = element("th", text, header.cells.length ? "number" : "");
    cell.scope = "col";
    header.append(cell);
  };
  // Of a sample: how many queries its means speak for, and their standard errors.
  const [population, ...errors] = data.sampled?.[index] ?? [];
  title(`Over ${count(read(row, "queries"))}${population ? ` of ${count(population)}` : ""} queries`);
  for (const words of Object.values(data.statistics)) title(words);
  if (data.twins) ["twin, mean", "difference"].forEach(title);
  title("rank");
  const body = table.createTBody();
  for (const [metric, words] of Object.entries(data.metrics)) {
    const line = body.insertRow();
    const name = element("th", words);
    name.scope = "row";
    line.append(name);
    for (const statistic of Object.keys(data.statistics)) line.append(element("td", measured(metric, numberOf(index, "model", metric, statistic)), "number"));
    const error = errors[Object.keys(data.metrics).indexOf(metric)];
    if (Number.isFinite(error)) line.cells[1].append(element("small", ` ± ${decimal(error)}`));
    if (data.twins) line.append(element("td", measured(metric, numberOf(index, "twin", metric, "mean")), "number"), element("td", signed(numberOf(index, "difference", metric, "mean")), "number"));
    const mean = numberOf(index, "model", metric, "mean");
    const above = data.rows.filter((_, other) => (numberOf(other, "model", metric, "mean") ?? -1) > (mean ?? Infinity)).length;
    line.append(element("td", mean === null ? "–" : `${above + 1} of ${data.rows.length}`, "number"));
  }
  const scroll = element("div", undefined, "scroll");
  scroll.tabIndex = 0;
  scroll.append(table);
  return scroll;
}

function comparison(index) {
  const line = element("p", undefined, "beside");
  const part = (words, value) => value !== null && line.append(line.childNodes.length ? ", " : "Relative deviation: ", `${words} `, element("b", short(value)));
  part("model", numberOf(index, "model", "relative_deviation", "mean"));
  part("untrained twin", numberOf(index, "twin", "relative_deviation", "mean"));
  part("predicted by the covariance alone", numberOf(index, "model", "predicted_deviation", "mean"));
  const effect = data.effects[index];
  if (effect) line.append(`. Exact inference in this head alone changes the model’s ${data.changed} by `, element("b", short(effect[0])), effect[1] === null ? "" : ` (${short(effect[1])} to ${short(effect[2])})`);
  const missed = read(data.rows[index], "not_converged");
  line.append(`. ${short(read(data.rows[index], "newton_steps"))} steps of the solver a query, ${missed ? `${count(missed)} not converged` : "all certified"}.`);
  return line;
}

function patternTable(pattern, base) {
  const part = element("div", undefined, "pattern");
  part.append(element("h4", "Where its weight is, and what would move"));
  const table = element("table", undefined, "data");
  const header = table.createTHead().insertRow();
  for (const words of ["Share of a query’s weight on", "attention", "exact", "leaves", "reaches", ...(base ? ["of all positions"] : [])]) {
    const cell = element("th", words, header.cells.length ? "number" : "");
    cell.scope = "col";
    header.append(cell);
  }
  const body = table.createTBody();
  pattern.classes.forEach((numbers, place) => {
    if (numbers.every((value) => value === 0)) return;
    const line = body.insertRow();
    const name = element("th", data.places[data.classes[place]] ?? data.classes[place]);
    name.scope = "row";
    const shown = base ? [...numbers, base[place]] : numbers;
    line.append(name, ...shown.map((value) => element("td", value === null ? "–" : short(value), "number")));
  });
  const words = (title, tokens) => {
    if (!tokens.length) return;
    const line = element("p", `${title}: `, "facts tokens");
    for (const [token, net] of tokens) {
      const code = element("code");
      code.append(element("bdi", token));
      line.append(code, element("small", ` ${signed(net)} `), " ");
    }
    part.append(line);
  };
  part.append(table);
  words("Over all queries, tokens that get too much", pattern.much);
  words("Too little", pattern.little);
  return part;
}

function neighbour(index, step) {
  const button = element("button", step < 0 ? "‹ previous" : "next ›");
  button.type = "button";
  const other = index + step;
  button.disabled = !(other in data.rows);
  if (!button.disabled) button.setAttribute("aria-label", `${step < 0 ? "Previous" : "Next"}: ${nameOf(other)}`);
  button.addEventListener("click", () => location.replace(`#${data.addresses[other]}`));
  return button;
}

function fillPanel(index) {
  const title = element("h3", nameOf(index));
  title.id = "opened-title";
  title.tabIndex = -1;
  const close = element("button", "close");
  close.type = "button";
  close.className = "close";
  close.addEventListener("click", leave);
  const address = linkTo(index, `#${data.addresses[index]}`);
  address.title = "The address of this head";
  const bar = element("div", undefined, "bar");
  bar.append(address, neighbour(index, -1), neighbour(index, 1), close);
  const top = element("div", undefined, "opened-top");
  top.append(title, bar);

  const histograms = element("div", undefined, "histograms");
  data.axes.forEach((_, place) => histograms.append(histogramOf(index, place)));
  const key = element("p", "Bars: the model. ", "note");
  if (data.twins) key.append("Dotted outline and line: its untrained twin. ");
  key.append("Dashed line: the mean; dash-dotted: what the covariance alone predicts.");

  const parts = [top, comparison(index), histograms, key, numbersTable(index)];
  if (data.patterns[index]) parts.push(patternTable(data.patterns[index], data.positions[data.rows[index][0]]));
  const queries = data.queries[index];
  const far = element("section");
  far.append(element("h4", "Farthest queries"));
  if (queries?.length) {
    const words = element("p", undefined, "key shading");
    words.append(element("span", "exact gives more", "token more by5"), element("span", "exact gives less", "token less by5"), element("strong", "the query", "token query"));
    const cards = element("div", undefined, "cards");
    cards.append(...queries.map(queryCard));
    far.append(words, cards);
  } else {
    far.append(element("p", queries ? "No example of this head was recorded." : "The page shows those of the heads that are farthest; examples.json has those of all heads.", "note"));
  }
  parts.push(far, matrixOf(index));
  panel.replaceChildren(...parts);
  return title;
}

function cellsOf(index) {
  return maps.flatMap((map) => cells(map).filter((cell) => Number(cell.dataset.row) === index));
}

function markOpened(index) {
  for (const cell of document.querySelectorAll("td.opened")) { cell.classList.remove("opened"); cell.removeAttribute("aria-selected"); }
  openedHead = index;
  if (index === null) return;
  for (const cell of cellsOf(index)) { cell.classList.add("opened"); cell.setAttribute("aria-selected", "true"); }
}

function shut() {
  if (openedHead === null) return;
  const back = returnTo && Number(returnTo.dataset.row) === openedHead ? returnTo : cellsOf(openedHead)[0];
  markOpened(null);
  panel.hidden = true;
  panel.replaceChildren();
  returnTo = null;
  return back;
}

// How many entries of the history were made since no head was open: so many steps back shut it.
const depth = () => history.state?.depth ?? 0;

function leave() {
  if (depth() > 0) history.go(-depth());
  else {
    history.replaceState(null, "", location.pathname + location.search);
    follow();
  }
}

function follow(event) {
  const index = byAddress.get(decodeURIComponent(location.hash.slice(1)));
  if (index === undefined) {
    const back = shut();
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target) target.scrollIntoView();
    else if (back) focusOn(back);
    return;
  }
  if (event && history.state === null) history.replaceState({ depth: openedHead === null ? 1 : depthBefore + 1 }, "");
  depthBefore = depth();
  markOpened(index);
  panel.hidden = false;
  const title = fillPanel(index);
  panel.scrollIntoView({ block: "start" });
  title.focus({ preventScroll: true });
}
let depthBefore = 0;

addEventListener("hashchange", follow);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && openedHead !== null && !event.defaultPrevented) leave();
});
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const code = document.getElementById(button.dataset.of);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
  });
}
if (location.hash) follow();
document.documentElement.classList.add("with-script");
