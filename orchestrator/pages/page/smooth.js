// --- the points of curves, smoothed lines, and seeds as a band -----------------------------------------

// How curves are drawn: ``smooth`` is the place of the slider, null where the number of points decides; seeds are lines or a band.
const curveLook = { smooth: null, seeds: "lines" };
const [SLIDER_END, WIDEST_SPAN, MANY_POINTS, USUAL] = [20, 0.1, 100, 6];
const spanOf = (slider) => WIDEST_SPAN * (slider / SLIDER_END) ** 2; // as a share of all steps

function decoded(text, kind) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new kind(bytes.buffer);
}

const known = new WeakMap(); // points of curves, which are decoded once

function pointsOf(curve, name) {
  if (!known.has(curve)) known.set(curve, {});
  const [steps, values] = curve[name];
  known.get(curve)[name] ??= { steps: decoded(steps, Int32Array), values: decoded(values, Float32Array) };
  return known.get(curve)[name];
}

// The number of steps over which lines are smoothed; few points are not, unless the reader says so.
function smoothSteps(series, last) {
  const most = Math.max(0, ...series.map(({ steps }) => steps.length));
  return last * spanOf(curveLook.smooth ?? (most > MANY_POINTS ? USUAL : 0));
}

// An exponential mean of the values so far, so that nothing is seen before it happens; of logarithms on such an axis.
function smoothed({ steps, values }, span, isLog) {
  const [into, back] = isLog ? [(v) => Math.log(Math.max(v, Number.MIN_VALUE)), Math.exp] : [(v) => v, (v) => v];
  const found = new Float64Array(values.length);
  let [sum, weight] = [0, 0];
  for (let n = 0; n < values.length; n++) {
    const fade = n ? Math.exp((steps[n - 1] - steps[n]) / span) : 0;
    sum = sum * fade + into(values[n]);
    weight = weight * fade + 1;
    found[n] = back(sum / weight);
  }
  return found;
}

// The number of the drawn point nearest to ``step``.
function nearestPoint(steps, step) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}

// The value of a line at ``step``, between its points; null beyond its ends.
function valueAt({ steps, seen }, step) {
  if (!steps.length || step < steps[0] || step > steps[steps.length - 1]) return null;
  let n = nearestPoint(steps, step);
  if (steps[n] > step) n -= 1;
  if (steps[n] === step || n === steps.length - 1) return seen[n];
  return seen[n] + ((seen[n + 1] - seen[n]) * (step - steps[n])) / (steps[n + 1] - steps[n]);
}

const BAND_POINTS = 240;

// Of each cell's seeds the middle one, in a band from the lowest to the highest; a seed that has ended counts no more.
function bandsOf(series, frame) {
  return [...new Set(series.map(({ c }) => c))].flatMap((c) => {
    const seeds = series.filter((line) => line.c === c);
    const size = Math.max(1, (frame.to - frame.from) / BAND_POINTS);
    const places = [];
    for (let step = frame.from; step <= frame.to; step += size) {
      const values = seeds.map((line) => valueAt(line, step)).filter((value) => value !== null).sort((a, b) => a - b);
      if (values.length) places.push({ step, low: values[0], high: values[values.length - 1], middle: values[(values.length - 1) >> 1] });
    }
    const point = (end) => ({ step, [end]: value }) => `${frame.toX(step).toFixed(1)} ${frame.toY(value).toFixed(1)}`;
    const around = [...places.map(point("high")), ...places.map(point("low")).reverse()];
    const { stroke, ...rest } = strokeOf(selection.length > 1 ? seeds[0].k : 0);
    const words = `${cellName(c)}: the middle of ${seeds.length} seeds, in a band from the lowest to the highest`;
    return [
      svg("path", { class: "seed-band", d: around.length ? `M${around.join("L")}Z` : "M0 0", fill: stroke }),
      svg("path", { class: "curve", d: pathOf(places.map(({ step }) => step), places.map(({ middle }) => middle), frame), stroke, ...rest }, svg("title", {}, words)),
    ];
  });
}

// A slider for the smoothing, and whether seeds are lines or a band.
function lookControls(lines, last) {
  const series = lines.filter(({ curve }) => curve.loss).map(({ curve }) => pointsOf(curve, "loss"));
  const span = Math.round(smoothSteps(series, last));
  const slider = element("input", { type: "range", id: "smooth", min: 0, max: SLIDER_END, step: 1, "aria-label": "smoothing" });
  slider.value = curveLook.smooth ?? (span ? USUAL : 0);
  slider.addEventListener("input", () => { curveLook.smooth = Number(slider.value); keepView(); drawAgain(); });
  const boxes = [element("label", { for: "smooth" }, "smooth ", slider, element("output", {}, span ? `${span} steps` : "off"))];
  if (lines.length > new Set(lines.map(({ c }) => c)).size) {
    const box = element("select", { id: "seeds" }, element("option", { value: "lines" }, "as lines"), element("option", { value: "band" }, "as a band"));
    box.value = curveLook.seeds;
    box.addEventListener("change", () => { curveLook.seeds = box.value; keepView(); drawAgain(); });
    boxes.push(element("label", { for: "seeds" }, "seeds ", box));
  }
  return boxes;
}

