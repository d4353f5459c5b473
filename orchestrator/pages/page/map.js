// --- the map --------------------------------------------------------------------------------------

let drawnGrid = null; // what is drawn: the view, the places of its cells, and what each of them shows

function drawMap() {
  drawDownloads();
  if (choice.view !== "map") {
    drawView();
    return;
  }
  nearest = null;
  const map = mapCells();
  const scale = colourScale(map);
  const grid = data.is_grid ? gridOf(map) : null;
  if (grid === null) {
    drawnGrid = null;
    replaceDrawing(pointMap(map, scale));
  } else if (drawnGrid?.view === viewOf(map, scale)) {
    if (!drawnGrid.table.isConnected) document.getElementById("map").replaceChildren(drawnGrid.table); // another view was shown
    updateGrid(map, scale, grid);
  } else {
    document.getElementById("map").replaceChildren(gridMap(map, scale, grid));
  }
  const hasRise = panel().range !== null && [...map.values()].some((c) => cells.num_risen[c]);
  const words = new Set(panel().range === null ? [] : [...map.values()].map((c) => cells.lr_health[c]));
  const states = new Set([...map.values()].map((c) => cells.state[c]));
  const hasGap = grid !== null && map.size < grid.columns.length * grid.rows.length;
  if (hasGap) states.add(look.gap);
  const hasEdge = grid !== null && document.querySelector("#map .edge-right, #map .edge-up") !== null;
  drawKey(states, hasEdge, hasRise, words, scale);
  document.getElementById("map-title").textContent = `${panel().title}${scale.isClipped ? " (colour clipped)" : ""}`;
}

// Where this is the same, the same cells are at the same places in the same colours, but for those that have changed.
const viewOf = (map, scale) => JSON.stringify([choice, data.axes.map(({ labels }) => labels), map.size, scale.low, scale.high]);
const isRecommended = (c) => c !== null && c === data.recommended;
const shownOf = (c) => (c === undefined ? "" : [c, cellWords(c), cellText(c), panel().values[c], selection.includes(c), isRecommended(c)].join("\n"));

function gridMap(map, scale, grid) {
  const { columns, rows, axisX, axisY, isSmall } = grid;
  const table = element("table", { class: isSmall ? "map small" : "map", "aria-label": "stability map" });
  table.style.setProperty("--columns", columns.length);
  table.style.setProperty("--rows", rows.length);
  const places = new Map();
  for (let j = rows.length - 1; j >= 0; j--) {
    const line = element("tr", {}, element("th", { scope: "row" }, axisY.heads[rows[j]]));
    columns.forEach((_, i) => {
      const place = element("td");
      fillPlace(place, i, j, scale, grid);
      places.set(`${i},${j}`, { place, shown: shownOf(grid.at(i, j)) });
      line.append(place);
    });
    table.append(line);
  }
  const every = Math.max(1, Math.ceil(columns.length / (isSmall ? 16 : 40)));
  const heads = columns.map((x, i) => element("th", { scope: "col" }, i % every ? "" : axisX.heads[x]));
  table.append(element("tr", {}, element("td"), ...heads));
  table.append(element("tr", {}, element("td"), element("th", { colspan: columns.length }, axisX.name)));
  const caption = axisY.name ? `${axisY.name} upwards, ${axisX.name} to the right` : `${axisX.name} to the right`;
  table.prepend(element("caption", {}, caption));
  table.addEventListener("keydown", moveFocus);
  const first = table.querySelector("button");
  if (first) first.tabIndex = 0;
  drawnGrid = { view: viewOf(map, scale), places, table };
  return table;
}

function fillPlace(place, i, j, scale, grid) {
  const c = grid.at(i, j);
  const isHatched = c === undefined && look.states[look.gap].is_hatched;
  place.className = [grid.isEdgeRight(i, j) && "edge-right", grid.isEdgeUp(i, j) && "edge-up", isHatched && "hatched"].filter(Boolean).join(" ");
  place.replaceChildren(...(c === undefined ? [] : [cellButton(c, scale, grid.isSmall)]));
}

// Draws the cells anew that have changed, and the edges beside them.
function updateGrid(map, scale, grid) {
  for (const [at, each] of drawnGrid.places) {
    const [i, j] = at.split(",").map(Number);
    const shown = shownOf(grid.at(i, j));
    if (shown === each.shown) continue;
    each.shown = shown;
    for (const [column, row] of [[i, j], [i - 1, j], [i, j - 1]]) {
      const place = drawnGrid.places.get(`${column},${row}`)?.place;
      if (place === undefined) continue;
      const [hadFocus, tabIndex] = [place.contains(document.activeElement), place.firstChild?.tabIndex ?? -1];
      fillPlace(place, column, row, scale, grid);
      if (place.firstChild) place.firstChild.tabIndex = tabIndex;
      if (hadFocus) place.firstChild?.focus({ preventScroll: true });
    }
  }
}

function cellButton(c, scale, isSmall) {
  const words = cellWords(c);
  const button = element("button", { type: "button", "aria-label": words, tabindex: -1 });
  button.setAttribute("aria-pressed", String(selection.includes(c)));
  if (lookOf(c).is_painted) {
    const { paint, ink } = painted(c, scale);
    Object.assign(button.style, { backgroundColor: paint, color: ink });
  }
  if (lookOf(c).is_hatched) button.classList.add("hatched");
  if (isRecommended(c)) button.classList.add("recommended");
  button.textContent = isSmall ? lookOf(c).sign : cellText(c);
  button.dataset.cell = cellName(c);
  button.dataset.number = c;
  button.addEventListener("click", (event) => select(c, event.shiftKey));
  return button;
}

// A click shows one cell; with Shift it adds a cell to compare, or takes it away.
function select(c, isAdded) {
  if (!isAdded) selectAll([c]);
  else selectAll(selection.includes(c) ? selection.filter((other) => other !== c) : [...selection, c]);
}

function selectAll(found) {
  zoom.steps = null;
  selection = found;
  if (choice.view === "map") markSelection();
  else drawMap();
  keepView();
  drawSelection();
}

// Presses the buttons of the chosen cells, and no others.
function markSelection() {
  const chosen = new Set(selection.map(String));
  for (const each of document.querySelectorAll('#map [aria-pressed="true"]')) if (!chosen.has(each.dataset.number)) each.setAttribute("aria-pressed", "false");
  for (const each of document.querySelectorAll("#map [data-number]")) if (chosen.has(each.dataset.number)) each.setAttribute("aria-pressed", "true");
}

// Arrow keys walk over the cells; Tab leaves the map.
function moveFocus(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const place = event.target.closest("td");
  const rows = [...event.currentTarget.rows];
  let [column, row] = [place.cellIndex, rows.indexOf(place.parentNode)];
  do {
    [column, row] = [column + step[0], row + step[1]];
    const next = rows[row]?.cells[column]?.querySelector("button");
    if (next) {
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      return;
    }
  } while (rows[row]?.cells[column]);
}

function pointMap(map, scale) {
  const width = widthOfViews();
  const { drawing, toX, toY, axisX, axisY } = plane(width, heightOfViews(width), "stability map");
  const places = [];
  for (const [key, c] of map) {
    const [column, row] = key.split(",").map(Number);
    const [x, y] = [toX(axisX.positions[column]), axisY ? toY(axisY.positions[row]) : toY(0)];
    const { paint, ink } = painted(c, scale);
    const point = svg("circle", {
      cx: x, cy: y, r: 9, fill: paint, tabindex: -1, role: "button",
      "aria-label": cellWords(c), "aria-pressed": String(selection.includes(c)),
    });
    point.dataset.cell = cellName(c);
    point.dataset.number = c;
    if (isRecommended(c)) point.classList.add("recommended");
    point.addEventListener("click", (event) => select(c, event.shiftKey));
    places.push({ c, x, y, point });
    drawing.append(point);
    const mark = svg("text", { x, y: y + 4, "text-anchor": "middle", "pointer-events": "none", "aria-hidden": "true" }, lookOf(c).sign);
    mark.style.fill = ink;
    drawing.append(mark);
  }
  return withStops(drawing, places);
}

function drawKey(states, hasEdge, hasRise, words, scale) {
  const items = Object.entries(look.states).filter(([state]) => states.has(state)).map(([state, { sign, label, is_hatched }]) =>
    element("li", {}, element("span", { class: `swatch ${state}${is_hatched ? " hatched" : ""}` }, sign), ` ${label}`));
  const bar = element("span", { class: "swatch" });
  bar.style.cssText = `width: 7em; background: linear-gradient(90deg, ${scale.table.paint.join(",")})`;
  items.push(element("li", {}, `${tickText(scale.low)} `, bar, ` ${tickText(scale.high)}`));
  if (hasRise) items.push(element("li", {}, look.rise.join(" ")));
  for (const [word, sign] of Object.entries(look.lr)) if (words.has(word)) items.push(element("li", {}, sign.join(" ")));
  if (document.querySelector("#map .recommended")) items.push(element("li", {}, element("span", { class: "swatch ring" }), " the setting to take"));
  if (hasEdge) items.push(element("li", {}, `thick lines: ${look.edge}`));
  document.getElementById("key").replaceChildren(...items);
}

