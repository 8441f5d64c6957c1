// ---- the same attention as lines from queries to keys
const LEAST_LINE = 0.02;
const NAMED_LINES = 4;
const LINE_HEIGHT = 16;
const SIDES = { query: { at: 110, anchor: "end" }, key: { at: 350, anchor: "start" } };

// `weights` are those of the view, `tell` writes what is read out of one token.
function linesOf(labels, weights, width, differs, tell) {
  const height = LINE_HEIGHT * (Math.max(labels.query.length, labels.key.length) + 1);
  const picture = svg("svg", { class: "lines", viewBox: `0 0 470 ${height}`, role: "group", "aria-label": "Lines from queries to keys" });
  const y = (place) => LINE_HEIGHT * (place + 1);
  const most = Math.max(...weights.map(Math.abs), 1e-9);
  const drawn = [];
  labels.query.forEach((_, query) => labels.key.forEach((__, key) => {
    const weight = weights[query * width + key];
    if (Math.abs(weight) < LEAST_LINE) return;
    const share = Math.abs(weight) / most;
    const path = svg("path", {
      class: differs ? (weight > 0 ? "gains" : "loses") : "weight",
      d: `M118 ${y(query) - 4}C210 ${y(query) - 4} 250 ${y(key) - 4} 342 ${y(key) - 4}`,
      "stroke-width": (0.6 + 3.4 * share).toFixed(2),
      opacity: (0.25 + 0.75 * share).toFixed(2),
    });
    drawn.push({ path, query, key, weight });
    picture.append(path);
  }));
  const tokens = Object.fromEntries(Object.entries(SIDES).map(([side, { at, anchor }]) => [side, labels[side].map((text, place) => {
    const token = svg("text", { x: at, y: y(place), "text-anchor": anchor, tabindex: side === "query" && place === 0 ? 0 : -1, "data-side": side, "data-place": place });
    token.textContent = text.length > 16 ? `${text.slice(0, 15)}…` : text;
    picture.append(token);
    return token;
  })]));
  const tokenOf = (event) => event.target.closest?.("text");
  function show(token) {
    const { side } = token.dataset;
    const place = Number(token.dataset.place);
    const other = side === "query" ? "key" : "query";
    for (const line of drawn) line.path.classList.toggle("aside", line[side] !== place);
    for (const all of Object.values(tokens)) for (const one of all) one.classList.toggle("on", one === token);
    const own = drawn.filter((line) => line[side] === place).sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight));
    tell(side, place, own.slice(0, NAMED_LINES).map((line) => [line[other], line.weight]));
  }
  function showAll() {
    for (const line of drawn) line.path.classList.remove("aside");
    for (const one of picture.querySelectorAll("text.on")) one.classList.remove("on");
  }
  for (const kind of ["pointerover", "focusin"]) picture.addEventListener(kind, (event) => tokenOf(event) && show(tokenOf(event)));
  for (const kind of ["pointerleave", "focusout"]) picture.addEventListener(kind, showAll);
  picture.addEventListener("keydown", (event) => {
    const token = tokenOf(event);
    if (!token || !(event.key in arrows) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [down, right] = arrows[event.key];
    const all = tokens[right < 0 ? "query" : right > 0 ? "key" : token.dataset.side];
    const next = all[Math.max(0, Math.min(all.length - 1, Number(token.dataset.place) + down))];
    token.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
  return picture;
}
