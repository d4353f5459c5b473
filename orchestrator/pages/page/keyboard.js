// --- marks by keyboard: one stop of Tab in a drawing, from which arrow keys walk from cell to cell -----------

const KEYS = "arrow keys walk from cell to cell, Enter pins one, with Shift beside the others, Escape unpins all";
let tabStop = ""; // the name of the cell where Tab stops, which holds when the view is drawn anew
let stops = []; // of the drawn view: where its cells are, and their own mark or how that of the one in focus is drawn

// The stops of a view whose cells have ``points``. Those with an equal row, or column, lie on one line of the walk.
function stopsOf(points, lineOf = gridLines) {
  const groups = new Map();
  for (const point of points) {
    if (!groups.has(point.c)) groups.set(point.c, []);
    groups.get(point.c).push(point);
  }
  const middle = (group, side) => group.reduce((sum, point) => sum + point[side], 0) / group.length;
  return [...groups].map(([c, group]) => ({ c, x: middle(group, "x"), y: middle(group, "y"), ...lineOf(c, group), draw: () => ringAround(group, "ring") }));
}

// On a grid arrows stay in the row or the column; scattered cells have one order by each axis.
const gridLines = (c) => (data.is_grid ? { row: cells.at[c][choice.y], column: cells.at[c][choice.x] } : {});

// Makes a drawing one that keys reach.
function withStops(drawing, found) {
  stops = found;
  drawing.setAttribute("aria-description", KEYS);
  const first = stops.find(({ c }) => cellName(c) === tabStop) ?? stops.find(({ c }) => selection.includes(c)) ?? stops[0];
  if (first?.point) first.point.setAttribute("tabindex", 0);
  else if (first) drawing.append(stopMark(first));
  drawing.addEventListener("keydown", walk);
  return drawing;
}

// Shows a drawing with ``withStops`` in place of the last one; the focus stays where Tab stops.
function replaceDrawing(drawing) {
  const place = document.getElementById("map");
  const hadFocus = place.contains(document.activeElement);
  place.replaceChildren(drawing);
  if (hadFocus) place.querySelector("svg [tabindex='0']")?.focus({ preventScroll: true });
}

function stopMark({ c, draw }) {
  const mark = svg("g", { class: "stop", tabindex: 0, role: "button", "aria-label": cellWords(c), "aria-pressed": String(selection.includes(c)) }, draw());
  mark.dataset.cell = cellName(c);
  mark.dataset.number = c;
  return mark;
}

function walk(event) {
  const mark = event.target.closest("[data-number]");
  if (mark === null) return;
  const c = Number(mark.dataset.number);
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    select(c, event.shiftKey);
    return;
  }
  const [side, line, sign] = { ArrowLeft: ["x", "row", -1], ArrowRight: ["x", "row", 1], ArrowUp: ["y", "column", -1], ArrowDown: ["y", "column", 1] }[event.key] ?? [];
  if (side === undefined) return;
  event.preventDefault();
  const at = stops.find((stop) => stop.c === c);
  const other = side === "x" ? "y" : "x";
  const far = (a, b) => (Math.abs(a - b) < 0.01 ? 0 : a - b); // places are sums, and seeds are put side by side
  const order = stops.filter((stop) => stop[line] === at[line]).sort((a, b) => far(a[side], b[side]) || far(a[other], b[other]) || a.c - b.c);
  const next = order[order.indexOf(at) + sign];
  if (next === undefined) return;
  if (next.point) {
    mark.setAttribute("tabindex", -1);
    next.point.setAttribute("tabindex", 0);
    next.point.focus();
    return;
  }
  const made = stopMark(next);
  mark.after(made); // before the old one goes, so that the focus never leaves the drawing
  made.focus();
  mark.remove();
}

// Heard here, since Chromium lets Tab stop at a drawing that hears of the focus.
document.getElementById("map").addEventListener("focusin", (event) => { tabStop = event.target.dataset.cell ?? tabStop; });

// Escape on a mark of any view, the map too, unpins what is pinned.
document.getElementById("map").addEventListener("keydown", (event) => {
  if (event.key === "Escape" && selection.length && event.target.dataset?.number !== undefined) selectAll([]);
});
