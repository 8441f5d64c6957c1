// ---- all of a head's attention in one sentence: queries by keys
const VIEWS = { attention: "Attention", exact: "Exact", difference: "Exact − attention" };
const FORMS = { grid: "Grid", lines: "Lines" };
let view = "difference";
let form = "grid";

function choiceOf(name, words, options, chosen) {
  const choice = element("fieldset", undefined, "choice");
  choice.append(element("legend", words));
  for (const [value, text] of Object.entries(options)) {
    const option = element("label");
    const radio = element("input");
    Object.assign(radio, { type: "radio", name, value, checked: value === chosen });
    option.append(radio, element("span", text));
    choice.append(option);
  }
  return choice;
}

const roughWeights = (text) => Array.from(bytesOf(text), (byte) => (byte / 255) ** 2);

function matrixOf(index) {
  const section = element("section", undefined, "matrix");
  section.append(element("h4", `All attention in one ${data.reads === "images" ? "image" : data.unit === "token" ? "sentence" : "input"}`));
  const entry = data.matrices[index];
  if (!entry) {
    section.append(element("p", data.matrices.some(Boolean) ? "Kept on the page for the heads that are farthest; examples.json has those of all heads." : "No sentence of this head was recorded.", "note"));
    return section;
  }
  const [[document_, window_, length], queries, keys, queryTexts, keyTexts] = data.sentences[entry[0]];
  const weights = { attention: roughWeights(entry[1]), exact: roughWeights(entry[2]) };
  weights.difference = weights.exact.map((weight, place) => weight - weights.attention[place]);
  const width = keys.length + 1;
  // The last column is what is on tokens that are not shown: nothing where all are.
  const last = (place) => place % width === width - 1;
  const cut = ["attention", "exact"].some((name) => weights[name].some((weight, place) => last(place) && weight > 0.002));
  const columns = cut ? width : width - 1;
  const label = (texts, positions, place) => (place < positions.length ? (texts[place] ?? "").trim() || String(positions[place]) : "other");
  const most = Math.sqrt(Math.max(...weights.attention, ...weights.exact, 1e-9));
  const apart = Math.sqrt(Math.max(...weights.difference.map(Math.abs), 1e-9));
  const shown = queries.length < length ? `the first ${queries.length} of its ${length} ${data.unit}s` : `its ${length} ${data.unit}s`;
  section.append(element("p", `Document ${document_}, window ${window_}: ${shown}. In the grid rows are queries and columns keys; lines, of 0.02 and more, lead from queries to keys${cut ? "; “other” is all that is on ${data.unit}s not shown" : ""}. Colour grows with the square root, and what is shown was kept to ±0.004.`, "note"));

  const choice = choiceOf("matrix-view", "What to show", VIEWS, view);
  const forms = choiceOf("matrix-form", "How to show it", FORMS, form);
  const says = element("p", `Point at a cell or a ${data.unit}, or tab to it and use the arrow keys, to read its values.`, "readout");
  says.setAttribute("role", "status");

  const table = element("table", undefined, "attention");
  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", "Attention, queries by keys");
  const header = table.createTHead().insertRow();
  header.append(element("td", undefined, "corner"));
  for (let key = 0; key < columns; key += 1) {
    const cell = element("th");
    cell.scope = "col";
    cell.append(element("span", label(keyTexts, keys, key)));
    header.append(cell);
  }
  const body = table.createTBody();
  queries.forEach((_, query) => {
    const row = body.insertRow();
    const name = element("th", label(queryTexts, queries, query));
    name.scope = "row";
    row.append(name);
    for (let key = 0; key < columns; key += 1) row.insertCell().tabIndex = query || key ? -1 : 0;
  });
  const cells_ = [...body.rows].map((row) => [...row.cells].slice(1));

  function paint() {
    cells_.forEach((row, query) => row.forEach((cell, key) => {
      const value = weights[view][query * width + key];
      if (view === "difference") cell.className = Math.abs(value) < 0.004 ? "" : change(Math.sign(value) * Math.sqrt(Math.abs(value)), apart);
      else cell.className = `q${Math.min(levels - 1, Math.floor((levels * Math.sqrt(value)) / most))}`;
    }));
  }
  function tell(cell) {
    const query = cell.parentElement.rowIndex - 1;
    const key = cell.cellIndex - 1;
    const place = query * width + key;
    says.replaceChildren(
      element("b", label(queryTexts, queries, query)), ` (${queries[query]}) on `, element("b", label(keyTexts, keys, key)), key < keys.length ? ` (${keys[key]})` : " tokens",
      `: attention ${short(weights.attention[place])}, exact ${short(weights.exact[place])}, difference ${signed(weights.difference[place])}`,
    );
    for (const other of table.querySelectorAll(".on")) other.classList.remove("on");
    cell.parentElement.cells[0].classList.add("on");
    header.cells[key + 1].classList.add("on");
  }
  const cellOf = (event) => event.target.closest("tbody td");
  for (const kind of ["pointerover", "focusin"]) table.addEventListener(kind, (event) => cellOf(event) && tell(cellOf(event)));
  table.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    if (!cell || !(event.key in arrows) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [down, right] = arrows[event.key];
    const clamp = (place, last) => Math.max(0, Math.min(last, place));
    const next = cells_[clamp(cell.parentElement.rowIndex - 1 + down, cells_.length - 1)][clamp(cell.cellIndex - 1 + right, columns - 1)];
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  const scroll = element("div", undefined, "scroll");
  const labels = {
    query: queries.map((_, place) => label(queryTexts, queries, place)),
    key: Array.from({ length: columns }, (_, place) => label(keyTexts, keys, place)),
  };
  function tellLines(side, place, others) {
    const other = side === "query" ? "key" : "query";
    const written = others.map(([index_, weight]) => `${labels[other][index_]} ${view === "difference" ? signed(weight) : short(weight)}`);
    says.replaceChildren(element("b", labels[side][place]), side === "query" ? " as a query: " : " as a key, of: ", written.join(", ") || "no line");
  }
  function draw() {
    if (form === "grid") {
      paint();
      scroll.replaceChildren(table);
    } else {
      scroll.replaceChildren(linesOf(labels, weights[view], width, view === "difference", tellLines));
    }
  }
  choice.addEventListener("change", (event) => { view = event.target.value; draw(); });
  forms.addEventListener("change", (event) => { form = event.target.value; draw(); });
  draw();
  const chosen = element("div", undefined, "choices");
  chosen.append(choice, forms);
  section.append(chosen, says, scroll);
  return section;
}
