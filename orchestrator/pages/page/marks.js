// --- marks on a curve: episodes, what is not finite, verdicts, and where training ended early ----------

// Bands of several seeds lie over each other: the more there are, the fainter each is.
function episodeMarks({ c, i, k, curve }, frame, hasWords, num) {
  return data.episodes[i].filter(([onset, recovery]) => frame.shows(onset, recovery ?? curve.last)).flatMap(([onset, recovery], n) => {
    const [from, to] = [frame.toX(onset), frame.toX(recovery ?? curve.last)];
    const band = svg("rect", { class: "episode", x: from, y: frame.top, width: Math.max(2, to - from), height: frame.bottom - frame.top, opacity: (1 / Math.sqrt(num)).toFixed(2) },
      svg("title", {}, `${lineWords({ c, i })}: off its trend from step ${onset} ${recovery === null ? "on" : `to ${recovery}`}`));
    if (!hasWords || n > 0) return [band];
    // The first one is what a diagnosis is about; its words come with it.
    const start = svg("path", { class: "onset", d: `M${from - 5} ${frame.top - 9}h10l-5 8Z`, fill: strokeOf(k).stroke },
      svg("title", {}, `${lineWords({ c, i })}: onset at step ${onset}`));
    const isRight = from > (frame.left + frame.right) / 2;
    const cause = svg("text", { class: "cause", x: from + (isRight ? -8 : 8), y: frame.top - 2, "text-anchor": isRight ? "end" : "start" });
    cause.dataset.trial = trials.trial_id[i];
    return [band, start, cause];
  });
}

// Says on the chart what a diagnosis gives as the cause; where several seeds have theirs at one place, once.
function sayCauses() {
  const said = [];
  for (const place of document.querySelectorAll("#cell text.cause")) {
    const words = causes.get(place.dataset.trial) ?? "";
    const x = Number(place.getAttribute("x"));
    const isTaken = said.some((other) => Math.abs(other - x) < 6 * words.length);
    place.textContent = isTaken ? "" : words;
    if (words && !isTaken) said.push(x);
  }
}

function brokenMarks({ c, i, curve }, name, frame) {
  const broken = curve[`${name}_broken`];
  if (broken === undefined || !frame.shows(broken, broken)) return [];
  return [svg("text", { class: "broken", x: frame.toX(broken), y: frame.top + 10, "text-anchor": "middle" }, "✕",
    svg("title", {}, `${lineWords({ c, i })}: not finite at step ${broken}`))];
}

// Where a curve leaves the chart upwards for the first time.
function clippedMarks({ c, i, k, steps, values }, frame) {
  const n = values.findIndex((value) => value > frame.high);
  if (n < 0 || !frame.shows(steps[n], steps[n])) return [];
  const mark = svg("text", { class: "clipped", x: frame.toX(steps[n]), y: frame.top + 9, "text-anchor": "middle" }, "▲",
    svg("title", {}, `${lineWords({ c, i })}: above the chart from step ${steps[n]}, ${tickText(values[n])} there`));
  mark.style.fill = strokeOf(k).stroke;
  return [mark];
}

const VERDICTS = { lost: "found lost", slow: "found slow beside others", plateau: "no longer improving" };
const [LINE_OF_WORDS, MOST_LINES, WIDTH_OF_LETTER] = [13, 6, 6.2];

// A line at each verdict and at each change of a trial in mid-run, planned or by a rule. On the chart of the loss with words, each set where it
// covers no other; what is the same for several seeds at one step is said once.
function verdictMarks(series, frame, hasWords) {
  const found = new Map();
  for (const line of series) {
    for (const [step, word] of trials.marks[line.i]) {
      if (!frame.shows(step, step)) continue;
      const key = `${step} ${word}`;
      if (!found.has(key)) found.set(key, { step, word, seeds: [] });
      found.get(key).seeds.push(lineWords(line));
    }
  }
  const ends = []; // of the words on each line
  return [...found.values()].sort((a, b) => a.step - b.step).flatMap(({ step, word, seeds }) => {
    const x = frame.toX(step);
    const mark = svg("line", { class: word in VERDICTS ? "verdict" : "change", x1: x, x2: x, y1: frame.top, y2: frame.bottom },
      svg("title", {}, `${seeds.join(", ")}: ${VERDICTS[word] ?? word} at step ${step}`));
    if (!hasWords) return [mark];
    const width = WIDTH_OF_LETTER * word.length + 6;
    const isLeft = x + width > frame.right;
    const start = isLeft ? x - width : x;
    const row = [...Array(MOST_LINES).keys()].find((n) => (ends[n] ?? -Infinity) < start);
    if (row === undefined) return [mark];
    ends[row] = start + width;
    return [mark, svg("text", { class: "mark", x: x + (isLeft ? -3 : 3), y: frame.bottom - 5 - LINE_OF_WORDS * row, "text-anchor": isLeft ? "end" : "start" }, word)];
  });
}

// What the marks mean that are on the charts.
function curveKey(lines, from, to) {
  const isSeen = (first, end) => first <= to && end >= from;
  const has = (test) => lines.some(test);
  const marks = lines.flatMap(({ i }) => trials.marks[i]).filter(([step]) => isSeen(step, step)).map(([, word]) => word in VERDICTS);
  const items = selection.length < 2 ? [] : [...new Map(lines.map(({ c, k }) => [c, k]))].map(([c, k]) => element("li", {}, lineSample(k), ` ${cellName(c)}`));
  const add = (kind, words) => items.push(element("li", {}, element("span", { class: `sign ${kind}` }), ` ${words}`));
  if (has(({ i, curve }) => data.episodes[i].some(([onset, recovery]) => isSeen(onset, recovery ?? curve.last)))) {
    add("sign-episode", "off its trend");
    items.push(element("li", {}, "▼ onset"));
  }
  if (marks.includes(true)) add("sign-verdict", "found lost, slow or on a plateau");
  if (marks.includes(false)) add("sign-change", "changed in mid-run");
  if (has(({ curve }) => "loss_broken" in curve)) items.push(element("li", {}, "✕ not finite"));
  return element("ul", { class: "key" }, ...items);
}

