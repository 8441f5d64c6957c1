// ---- an image whose patches are shaded by exact weight less attention's
const positionName = (place, columns, extra) => {
  if (place < extra) return place ? `extra token ${place + 1}` : "[CLS]";
  const patch = place - extra;
  return `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;
};
const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

function pictureOf([image, rows, columns, extra, first, last, asked]) {
  const [attention, exact] = [first, last].map(fineWeights);
  const moved = exact.map((weight, place) => weight - attention[place]);
  // Tokens that are no patches, of which one can move more than all patches, have their numbers written.
  const most = largest(moved.slice(extra)) || 1e-9;
  const part = element("div", undefined, "of-image");
  const says = element("p", undefined, "readout");
  says.setAttribute("aria-live", "polite");

  const figures = element("div", undefined, "figures");
  const figure = (words, shown) => {
    const made = element("figure");
    made.append(shown, element("figcaption", words));
    figures.append(made);
  };
  const drawn = () => {
    const picture = element("img");
    Object.assign(picture, { src: data.images[image], alt: "" });
    const frame = element("div", undefined, "patches");
    frame.style.aspectRatio = `${columns} / ${rows}`;
    frame.append(picture);
    return frame;
  };
  const grid = () => {
    const made = element("div", undefined, "grid");
    made.style.gridTemplate = `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)`;
    return made;
  };
  const patchOf = (place) => element("span", undefined, place === asked ? "query" : "");

  const plain = drawn();
  const marks = grid();
  const shaded = drawn();
  const patches = grid();
  shaded.classList.add("shaded");
  for (let place = extra; place < moved.length; place += 1) {
    marks.append(patchOf(place));
    const patch = patchOf(place);
    const shade = Math.abs(moved[place]) < LEAST_SHADED / 10 ? "" : change(moved[place], most);
    patch.className = `${shade} ${patch.className}`.trim();
    patch.dataset.place = place;
    patch.tabIndex = place === extra ? 0 : -1;
    patch.setAttribute("role", "img");
    patch.setAttribute("aria-label", `${positionName(place, columns, extra)}: ${signed(moved[place])}`);
    patches.append(patch);
  }
  plain.append(marks);
  shaded.append(patches);
  figure("the image", plain);
  figure(`exact − attention, at most ${short(most)}`, shaded);

  function tell(place) {
    says.replaceChildren(
      element("b", positionName(place, columns, extra)),
      `: attention ${short(attention[place])}, exact ${short(exact[place])}, difference ${signed(moved[place])}`,
    );
  }
  const placeOf = (event) => event.target.closest?.("[data-place]");
  for (const kind of ["pointerover", "focusin"]) part.addEventListener(kind, (event) => placeOf(event) && tell(Number(placeOf(event).dataset.place)));
  patches.addEventListener("keydown", (event) => {
    const patch = placeOf(event);
    if (!patch || !(event.key in arrows) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const own = Number(patch.dataset.place) - extra;
    const [down, right] = arrows[event.key];
    const clamp = (value, count_) => Math.max(0, Math.min(count_ - 1, value));
    const next = patches.children[clamp(Math.floor(own / columns) + down, rows) * columns + clamp((own % columns) + right, columns)];
    patch.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  part.append(figures);
  if (extra) {
    const line = element("p", "No patch: ", "facts extra-tokens");
    for (let place = 0; place < extra; place += 1) {
      const token = tokenMark(positionName(place, columns, extra), moved[place], most, true, place === asked).at(-1);
      token.dataset.place = place;
      line.append(token, " ");
    }
    part.append(line);
  }
  tell(largest(moved) > 0 ? moved.findIndex((value) => Math.abs(value) === largest(moved)) : asked ?? 0);
  part.append(says);
  return part;
}

// Of the farthest heads, in the order of their cards.
document.querySelectorAll(".picture").forEach((place, number) => place.append(pictureOf(data.pictures[number])));
