// ---- a sentence whose tokens are shaded by exact weight less attention's
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const fineWeights = (text) => {
  const bytes = bytesOf(text);
  return Array.from({ length: bytes.length / 2 }, (_, place) => (bytes[2 * place] + 256 * bytes[2 * place + 1]) / 65535);
};
const NUMBERED = 6; // tokens whose change is written beside them
const LEAST_NUMBERED = 0.015;
const LEAST_SHADED = 0.004;

function tokenMark(piece, value, most, numbered, isQuery) {
  const spaces = piece.match(/^\s*/)[0];
  const word = piece.slice(spaces.length);
  const mark = element(isQuery ? "strong" : "span", word || "·", `token ${Math.abs(value) >= LEAST_SHADED ? change(value, most) : ""}${isQuery ? " query" : ""}`);
  if (numbered) mark.append(element("sub", signed(value)));
  return spaces ? [document.createTextNode(" "), mark] : [document.createElement("wbr"), mark];
}

function sentenceOf(query) {
  const quote = element("blockquote", undefined, "sentence");
  if (query.context?.join("")) {
    const [before, token, after] = query.context;
    const line = element("bdi");
    line.append(before, ...(token ? [element("strong", token, "token query")] : []), after);
    const part = element("p");
    part.append(line);
    quote.append(part);
  }
  if (query.text === undefined) return quote;
  const pieces = data.texts[query.text];
  const [attention, exact] = query.weights.map(fineWeights);
  const moved = exact.map((weight, place) => weight - attention[place]);
  const sizes = moved.map(Math.abs);
  const most = Math.max(...sizes, 1e-9);
  const numbered = new Set(sizes.map((_, place) => place).sort((a, b) => sizes[b] - sizes[a]).slice(0, NUMBERED));
  const line = element("bdi");
  if (query.first > 1) line.append("… ");
  pieces.forEach((piece, place) => {
    const isQuery = !query.context && query.first + place === query.place[2];
    line.append(...tokenMark(piece, moved[place], most, numbered.has(place) && sizes[place] >= LEAST_NUMBERED, isQuery));
  });
  if (query.first + pieces.length - 1 < query.window) line.append(" …");
  const part = element("p");
  part.append(line);
  quote.append(part);
  return quote;
}

function weightList(title, tokens, sign) {
  const part = element("div");
  part.append(element("h5", title));
  if (!tokens.length) part.append(element("p", "none that matters", "note"));
  const table = element("table", undefined, "weights");
  const body = table.createTBody();
  for (const [position, token, attention, exact] of tokens) {
    const row = body.insertRow();
    const name = element("th");
    name.scope = "row";
    const code = element("code");
    code.append(element("bdi", token));
    name.append(code);
    // What is no text is named by its position already.
    if (data.reads !== "images" && token !== `position ${position}`) name.append(element("small", ` at ${position}`));
    row.append(name, element("td", `${short(attention)} → ${short(exact)}`, "number"), element("td", signed(exact - attention), `number ${sign}`));
  }
  if (tokens.length) part.append(table);
  return part;
}

function queryCard(query) {
  const card = element("article", undefined, "card");
  const title = element("h4");
  const code = element("code");
  code.append(element("bdi", query.token));
  title.append("Query ", code);
  const [document_, window_, position] = query.place;
  const facts = element("p", undefined, "facts");
  facts.append("Total variation ", element("b", short(query.variation)), ", relative deviation ", element("b", short(query.deviation === "inf" ? Infinity : query.deviation)));
  facts.append(data.reads === "images" ? `; image ${document_}, position ${position}` : `; document ${document_}, window ${window_}, position ${position}`);
  const [, leaves, reaches] = query.pattern;
  const moves = element("p", undefined, "facts");
  if (leaves && reaches) moves.append("Most of what moves leaves ", element("b", data.places[leaves] ?? leaves), " and reaches ", element("b", data.places[reaches] ?? reaches), ".");
  const lists = element("div", undefined, `two${query.picture ? " places" : ""}`);
  lists.append(weightList("Attention gives too much to", query.much, "less"), weightList("too little to", query.little, "more"));
  const sentence = sentenceOf(query);
  const picture = query.picture ? [pictureOf(query.picture)] : [];
  card.append(title, facts, moves, ...(sentence.childNodes.length ? [sentence] : []), ...picture, lists);
  return card;
}
