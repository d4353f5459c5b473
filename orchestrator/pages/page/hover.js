// --- what the pointer does on the map: a hint with a small curve, a click, a region ----------------------

const tip = element("div", { id: "tip", role: "tooltip", hidden: "" });
document.body.append(tip);
let tipped = null; // the cell that the hint is about
const [ASK_AFTER_MS, TIP_WIDTH, TIP_HEIGHT] = [120, 220, 64];
const small = new Map(); // small curves by the cell's trials and their outcomes

const smallKey = (c) => cells.members[c].map((i) => `${trials.trial_id[i]} ${trials.outcome[i]}`).join();

async function smallCurve(c) {
  const key = smallKey(c);
  if (!small.has(key)) {
    const members = cells.members[c].slice(0, 8);
    const curves = isLive() ? await ask("curves", { trials: members.map((i) => trials.trial_id[i]).join(",") }) : await later().then((file) => members.map((i) => file.curves[i]));
    small.set(key, smallDrawing(c, members, curves));
  }
  return small.get(key);
}

// The losses of a cell's seeds without axes; a diverged one leaves at the top.
function smallDrawing(c, members, curves) {
  const series = curves.map((curve, n) => ({ i: members[n], curve })).filter(({ curve }) => curve.loss).map((line) => ({ ...line, ...pointsOf(line.curve, "loss") }));
  const calm = series.filter(({ i }) => trials.outcome[i] !== "diverged");
  const all = (calm.length ? calm : series).flatMap(({ values }) => [...values]);
  if (!all.length) return element("span", {}, "no curve");
  const { high, toY } = heightsOf(all, TIP_HEIGHT - 3, 3);
  const last = Math.max(1, ...series.map(({ curve }) => curve.last));
  const toX = (step) => 2 + ((TIP_WIDTH - 4) * step) / last;
  const drawn = series.map(({ steps, values }, k) => svg("path", { class: "curve", d: pathOf(steps, values, { toX, toY, high }), ...strokeOf(k) }));
  return svg("svg", { width: TIP_WIDTH, height: TIP_HEIGHT, viewBox: `0 0 ${TIP_WIDTH} ${TIP_HEIGHT}`, "aria-hidden": "true" }, ...drawn);
}

function tipWords(c) {
  const lines = [element("strong", {}, cellName(c)), element("span", {}, cells.words[c])];
  const loss = data.panels.find(({ name }) => name === "final_loss");
  for (const each of new Set([loss, panel().range === null ? panel() : undefined])) {
    if (each?.texts[c]) lines.push(element("span", {}, `${each.title} ${each.texts[c]}`));
  }
  if (isRecommended(c)) lines.push(element("span", {}, "the setting to take"));
  return lines;
}

// Shows the hint of a cell beside a place in the window; without a cell it goes.
function showTip(c, x, y) {
  if (c === null) {
    tip.hidden = true;
    tipped = null;
    return;
  }
  if (c !== tipped) {
    tipped = c;
    const room = element("div", { class: "room" });
    tip.replaceChildren(...tipWords(c), room);
    const kept = small.get(smallKey(c));
    if (kept) room.append(kept);
    else {
      setTimeout(async () => {
        if (tipped !== c || tip.hidden) return; // the pointer has gone on
        const drawing = await smallCurve(c).catch(() => element("span", {}, "no curve"));
        if (tipped === c) room.replaceChildren(drawing);
      }, ASK_AFTER_MS);
    }
  }
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 16 + width > innerWidth ? x - width - 12 : x + 16)}px`;
  tip.style.top = `${Math.max(4, y + 16 + height > innerHeight ? y - height - 12 : y + 16)}px`;
}

// The cell under the pointer: of a mark that stands for one, or the nearest of a view.
function cellUnder(event) {
  const mark = event.target.closest?.("[data-number]");
  if (mark) return Number(mark.dataset.number);
  const drawing = event.target.closest?.("#map svg");
  if (!drawing || nearest === null) return null;
  const box = drawing.getBoundingClientRect();
  const [, , width, height] = drawing.getAttribute("viewBox").split(" ").map(Number);
  return nearest(((event.clientX - box.left) * width) / box.width, ((event.clientY - box.top) * height) / box.height);
}

const mapPlace = document.getElementById("map");
let dragged = null; // where a region begins: the event and the cell
let isRegion = false; // the pointer has gone far enough

mapPlace.addEventListener("pointermove", (event) => {
  if (dragged !== null) markRegion(event);
  else if (event.pointerType !== "touch") showTip(cellUnder(event), event.clientX, event.clientY);
});
mapPlace.addEventListener("pointerleave", () => showTip(null));
mapPlace.addEventListener("focusin", (event) => {
  if (!event.target.matches(":focus-visible") || event.target.dataset.number === undefined) return;
  const box = event.target.getBoundingClientRect();
  showTip(Number(event.target.dataset.number), box.right - 8, box.bottom - 8);
});
mapPlace.addEventListener("focusout", () => showTip(null));
addEventListener("keydown", (event) => { if (event.key === "Escape") showTip(null); });
mapPlace.addEventListener("scroll", () => showTip(null));

// A click on a view pins the nearest cell; marks that stand for a cell have their own.
mapPlace.addEventListener("click", (event) => {
  if (event.target.closest("[data-number]")) return;
  const c = cellUnder(event);
  if (c !== null) select(c, event.shiftKey);
});

// --- a region: all cells of the map between two corners ---------------------------------------------------

mapPlace.addEventListener("pointerdown", (event) => {
  const c = event.pointerType === "touch" || event.button !== 0 || choice.view !== "map" ? null : cellUnder(event);
  if (c !== null) dragged = { event, c };
});

function markRegion(event) {
  const [from, to] = [dragged.event, event];
  if (!isRegion && Math.hypot(to.clientX - from.clientX, to.clientY - from.clientY) < 8) return;
  isRegion = true;
  showTip(null);
  const c = cellUnder(event);
  if (c !== null) dragged.to = c;
  const inside = new Set(regionOf(dragged.c, dragged.to ?? dragged.c));
  for (const each of mapPlace.querySelectorAll("[data-number]")) each.classList.toggle("inside", inside.has(Number(each.dataset.number)));
}

addEventListener("pointerup", () => {
  const found = isRegion ? regionOf(dragged.c, dragged.to ?? dragged.c) : null;
  dragged = null;
  if (found === null) return;
  for (const each of mapPlace.querySelectorAll(".inside")) each.classList.remove("inside");
  setTimeout(() => { isRegion = false; }); // after the click that ends it
  selectAll(found);
});
addEventListener("pointercancel", () => { dragged = null; isRegion = false; });
mapPlace.addEventListener("click", (event) => { if (isRegion) event.stopPropagation(); }, true);

// The cells on the map whose values lie between those of two, row by row.
function regionOf(from, to) {
  const map = mapCells();
  const corner = (c) => [cells.at[c][choice.x], choice.y < 0 ? 0 : cells.at[c][choice.y]];
  const [a, b] = [corner(from), corner(to)];
  const isBetween = (value, k) => value >= Math.min(a[k], b[k]) && value <= Math.max(a[k], b[k]);
  return [...map].map(([key, c]) => ({ at: key.split(",").map(Number), c }))
    .filter(({ at }) => isBetween(at[0], 0) && isBetween(at[1], 1))
    .sort((one, other) => one.at[1] - other.at[1] || one.at[0] - other.at[0]).map(({ c }) => c);
}

