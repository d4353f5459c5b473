// Draws the maps and curves of the report from the JSON in #data. Loads nothing, writes text only. Cells, their order
// and their looks come from the data, as in the figures; this script only selects and draws.

let data, look, cells, trials, reductions;
const choice = { x: 0, y: -1, panel: 0, slices: [], view: "map" };
let otherSweep = ""; // what is compared with
let selection = []; // cells whose curves are shown, in the order of their choice
const isLive = () => document.getElementById("later") === null; // a page that is served asks for curves and diagnoses

function readData(found) {
  data = found;
  ({ look, cells, trials } = data);
  reductions = Object.keys(data.reductions);
  Object.assign(choice, { x: 0, y: data.axes.length > 1 ? 1 : -1, panel: 0, slices: data.axes.map(() => reductions[0]) });
  selection = [];
}

readData(JSON.parse(document.getElementById("data").textContent));

let unpacked = null;

// Curves and diagnoses of a page that is a file, which are unpacked when the first of them is wanted.
function later() {
  unpacked ??= (async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("later").textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  })();
  return unpacked;
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A number on an axis or colour scale; numbers of cells and seeds are text in the data.
function tickText(value) {
  const size = Math.abs(value);
  if (value === 0 || (size >= 0.01 && size < 1000)) return String(Number(value.toPrecision(3)));
  return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
}

const endsOf = (numbers) => [numbers.reduce((a, b) => Math.min(a, b)), numbers.reduce((a, b) => Math.max(a, b))];

// From values to heights between two, on the ``scale`` that was chosen or else a log axis where they span much; what lies
// beyond ``numbers`` is at an end. A single value has no log axis: there may be no room for one around it.
function heightsOf(numbers, bottom, top, scale) {
  let [low, high] = numbers.length ? endsOf(numbers) : [0, 1];
  const canLog = low > 0 && high > low;
  const isLog = canLog && (scale ? scale === "log" : high / low > look.log_curves_from);
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const place = isLog ? Math.log10 : (v) => v;
  const toY = (value) => bottom - ((bottom - top) * (place(Math.min(Math.max(value, low), high)) - place(low))) / (place(high) - place(low));
  return { low, high, canLog, isLog, toY };
}

const [ASK_AGAIN_MS, TRIES] = [1500, 6]; // of a server that computes other answers first

// What the server of a live page answers at ``what``.
async function ask(what, words = {}) {
  let response = await fetch(`${what}?${new URLSearchParams(words)}`);
  for (let n = 1; response.status === 503 && n < TRIES; n += 1) {
    await new Promise((resolve) => { setTimeout(resolve, ASK_AGAIN_MS); });
    response = await fetch(`${what}?${new URLSearchParams(words)}`);
  }
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

const safeName = (name) => name.replace(/[^\w.=-]+/g, "_");

// Gives the reader a file of this text.
function download(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  element("a", { href: address, download: safeName(name) }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

