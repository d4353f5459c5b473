// --- marks on a curve: episodes, what is not finite, verdicts, and where training ended early ----------

function episodeMarks({ i, curve }, frame) {
  return data.episodes[i].filter(([onset, recovery]) => frame.shows(onset, recovery ?? curve.last)).map(([onset, recovery]) => {
    const [from, to] = [frame.toX(onset), frame.toX(recovery ?? curve.last)];
    return svg("rect", { class: "episode", x: from, y: frame.top, width: Math.max(2, to - from), height: frame.bottom - frame.top },
      svg("title", {}, `seed ${trials.seed[i]}: off its trend from step ${onset} ${recovery === null ? "on" : `to ${recovery}`}`));
  });
}

function brokenMarks({ i, curve }, name, frame) {
  const broken = curve[`${name}_broken`];
  if (broken === undefined || !frame.shows(broken, broken)) return [];
  return [svg("text", { x: frame.toX(broken), y: frame.top + 10, "text-anchor": "middle" }, "✕",
    svg("title", {}, `seed ${trials.seed[i]}: not finite at step ${broken}`))];
}

// Where a curve leaves the chart upwards for the first time.
function clippedMarks({ i, k, steps, values }, high, frame) {
  const n = values.findIndex((value) => value > high);
  if (n < 0 || !frame.shows(steps[n], steps[n])) return [];
  const mark = svg("text", { class: "clipped", x: frame.toX(steps[n]), y: frame.top + 9, "text-anchor": "middle" }, "▲",
    svg("title", {}, `seed ${trials.seed[i]}: above the chart from step ${steps[n]}, ${tickText(values[n])} there`));
  mark.style.fill = strokeOf(k).stroke;
  return [mark];
}

const VERDICTS = { lost: "found lost", slow: "found slow beside others", plateau: "no longer improving" };

// A line with a word at each verdict and at each change by a rule, and a short one where a run that was judged has ended before its last step.
function verdictMarks({ i }, frame) {
  return trials.marks[i].filter(([step]) => frame.shows(step, step)).flatMap(([step, word]) => {
    const x = frame.toX(step);
    const isLeft = x > (frame.left + frame.right) / 2;
    return [
      svg("line", { class: "verdict", x1: x, x2: x, y1: frame.top, y2: frame.bottom },
        svg("title", {}, `seed ${trials.seed[i]}: ${VERDICTS[word] ?? word} at step ${step}`)),
      svg("text", { class: "mark", x: x + (isLeft ? -3 : 3), y: frame.bottom - 5, "text-anchor": isLeft ? "end" : "start" }, word),
    ];
  });
}

