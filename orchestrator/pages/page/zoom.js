// --- the steps that curves show: all, or a part that the reader selects -----------------------------

const zoom = { steps: null }; // [first, last]; null shows all

function setZoom(steps) {
  zoom.steps = steps === null || steps[1] <= steps[0] ? null : steps;
  keepView();
  drawSelection();
}

// Two numbers that say which steps are shown, and a button for all of them: what the pointer does, for the keyboard.
function zoomControls(last) {
  const [from, to] = zoom.steps ?? [0, last];
  const number = (id, value) => element("input", { type: "number", id, value, min: 0, max: last, step: 1 });
  const boxes = [number("zoom-from", from), number("zoom-to", to)];
  const take = () => {
    const [first, end] = boxes.map((box) => Math.min(Math.max(Math.round(Number(box.value)), 0), last));
    setZoom(first === 0 && end === last ? null : [first, end]);
  };
  for (const box of boxes) box.addEventListener("change", take);
  const all = element("button", { type: "button", id: "zoom-all" }, "all steps");
  all.disabled = zoom.steps === null;
  all.addEventListener("click", () => { setZoom(null); document.getElementById("zoom-from")?.focus(); });
  return element("span", { class: "zoom" }, element("label", {}, "steps ", boxes[0]), element("label", {}, " to ", boxes[1]), " ", all);
}

// The pointer drags over a part of the steps to select it; a double click shows all of them again.
function zoomByPointer(drawing, stepAt, band) {
  let start = null;
  const shownBand = svg("rect", { class: "band", y: band.top, height: band.bottom - band.top, width: 0, visibility: "hidden" });
  drawing.append(shownBand);
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = event;
    drawing.setPointerCapture(event.pointerId);
  });
  drawing.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const [a, b] = [start, event].map((each) => band.placeOf(each)).sort((one, other) => one - other);
    for (const [name, value] of Object.entries({ x: a, width: b - a, visibility: "visible" })) shownBand.setAttribute(name, value);
  });
  const end = (event) => {
    if (start === null) return;
    const isFar = Math.abs(event.clientX - start.clientX) > 6;
    const steps = [stepAt(start), stepAt(event)].sort((a, b) => a - b);
    start = null;
    shownBand.setAttribute("visibility", "hidden");
    if (isFar && event.type === "pointerup") setZoom(steps);
  };
  for (const name of ["pointerup", "pointercancel"]) drawing.addEventListener(name, end);
  drawing.addEventListener("dblclick", () => { if (zoom.steps !== null) setZoom(null); });
}

