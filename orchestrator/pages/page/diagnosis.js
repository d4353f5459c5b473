// --- why the chosen trials became unstable: the answer of `sweep diagnose` ------------------------------

// The answer of a question: HTML whose texts are escaped.
function takeAnswer(place, text) {
  place.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
}

const told = new Map(); // text and picture of remedies, by trial and outcome
const openness = new Map(); // trials whose diagnosis the reader has opened or closed

async function diagnosisOf(i) {
  const key = `${trials.trial_id[i]} ${trials.outcome[i]}`;
  const id = trials.trial_id[i];
  if (!told.has(key)) told.set(key, isLive() ? await ask("diagnosis", { trial: id }) : { html: data.diagnoses[id], remedy_picture: data.remedy_pictures[id] });
  return told.get(key);
}

// A page that is served can ask about every trial with a result; one that is a file has what was put in.
const canTell = (i) => (isLive() ? trials.has_result[i] : trials.trial_id[i] in data.diagnoses);
const isUnstable = (i) => trials.is_unstable[i];

// One part to open for each of these trials; that of the first unstable one of a single cell is open.
function drawDiagnoses(members) {
  const place = document.getElementById("diagnoses");
  const shown = members.filter(canTell).sort((a, b) => isUnstable(b) - isUnstable(a));
  const inFocus = document.activeElement?.id;
  const parts = shown.map((i, n) => {
    const id = trials.trial_id[i];
    const cell = selection.length > 1 ? ` of ${cellName(selection.find((c) => cells.members[c].includes(i)))}` : "";
    const text = element("div", { class: "answer" }, "…");
    const part = element("details", {}, element("summary", { id: `why-${id}` }, `diagnosis of seed ${trials.seed[i]}${cell}: ${trials.outcome[i]}`), text);
    const fill = async () => {
      try {
        const { html: words, remedy_picture: picture } = await diagnosisOf(i);
        takeAnswer(text, words);
        if (picture && !part.querySelector("img")) part.append(element("img", { src: picture, alt: "remedies by fork step, in numbers above" }));
      } catch (error) {
        text.textContent = `no diagnosis: ${error.message}`;
      }
    };
    part.open = openness.get(id) ?? (n === 0 && selection.length === 1 && isUnstable(i));
    if (part.open) fill();
    part.addEventListener("toggle", () => { openness.set(id, part.open); if (part.open) fill(); });
    return part;
  });
  place.replaceChildren(...parts);
  if (inFocus?.startsWith("why-")) document.getElementById(inFocus)?.focus({ preventScroll: true });
}

