// ---- tables of cells: what a cell stands for, and the keyboard
const maps = [...document.querySelectorAll("table.heat")];
const cells = (map) => [...map.querySelectorAll("td[data-row]")];

const tooltip = document.getElementById("tooltip");
let described = null;

function hide() {
  tooltip.hidden = true;
  described?.removeAttribute("aria-describedby");
  described = null;
}

function describe(cell, ...parts) {
  tooltip.replaceChildren(...parts);
  hide();
  tooltip.hidden = false;
  cell.setAttribute("aria-describedby", "tooltip");
  described = cell;
  place();
}

function place() {
  const box = described.getBoundingClientRect();
  const width = document.documentElement.clientWidth;
  const left = Math.max(6, Math.min(box.left + box.width / 2 - tooltip.offsetWidth / 2, width - tooltip.offsetWidth - 6));
  const above = box.top - tooltip.offsetHeight - 8;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${above >= 6 ? above : box.bottom + 8}px`;
}

const arrows = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };

function focusOn(cell) {
  cell.closest("table.heat").querySelector("td[tabindex='0']")?.setAttribute("tabindex", "-1");
  cell.tabIndex = 0;
  cell.focus();
}

function move(map, cell, [down, right]) {
  const rows = [...map.tBodies[0].rows];
  const clamp = (place, most) => Math.max(0, Math.min(most - 1, place));
  const line = rows[clamp(rows.indexOf(cell.parentElement) + down, rows.length)];
  let place = clamp(cell.cellIndex - 1 + right, line.cells.length - 1);
  while (!line.cells[place + 1].dataset.row) {
    place += right < 0 ? -1 : 1;
    if (place < 0 || place > line.cells.length - 2) return;
  }
  focusOn(line.cells[place + 1]);
}

// Show what cells stand for, and do something where one is chosen.
function walk(show, open) {
  for (const map of maps) {
    cells(map).forEach((cell, place) => { cell.tabIndex = place ? -1 : 0; });
    const over = (event) => {
      const cell = event.target.closest("td[data-row]");
      if (cell) show(cell);
    };
    map.addEventListener("pointerover", over);
    map.addEventListener("focusin", over);
    map.addEventListener("pointerleave", hide);
    map.addEventListener("click", (event) => {
      const cell = event.target.closest("td[data-row]");
      if (cell && open) open(cell);
    });
    map.addEventListener("focusout", hide);
    map.addEventListener("keydown", (event) => {
      const cell = event.target.closest("td[data-row]");
      if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") hide();
      if (open && (event.key === "Enter" || event.key === " ")) {
        event.preventDefault();
        open(cell);
      }
      if (!(event.key in arrows)) return;
      event.preventDefault();
      move(map, cell, arrows[event.key]);
    });
  }
  // Focus may scroll the page to its cell: the tooltip follows.
  addEventListener("scroll", () => { if (described) place(); }, { passive: true, capture: true });
}

