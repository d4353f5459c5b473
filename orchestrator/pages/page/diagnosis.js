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
  if (!told.has(key)) {
    const file = isLive() ? null : await later();
    told.set(key, file === null ? await ask("diagnosis", { trial: id }) : { html: file.diagnoses[id], remedy_picture: file.remedy_pictures[id] });
  }
  return told.get(key);
}

const causes = new Map(); // of trials that were diagnosed, for their charts

// The words of the cause up to its first comma; nothing where there is none.
function takeCause(id, place) {
  const label = [...place.querySelectorAll(".label")].find((each) => each.textContent === "cause");
  const words = label?.nextSibling?.textContent.trim().split(/[,;]/)[0] ?? "";
  if (words) causes.set(id, words);
  sayCauses();
}

// A page that is served can ask about every trial with a result; one that is a file has what was put in.
const canTell = async (i) => (isLive() ? trials.has_result[i] : trials.trial_id[i] in (await later()).diagnoses);
const isUnstable = (i) => trials.is_unstable[i];

// One part to open for each of these trials; that of the first unstable one of a single cell is open.
async function drawDiagnoses(members) {
  const place = document.getElementById("diagnoses");
  const turn = asked;
  const tellable = await Promise.all(members.map(canTell));
  if (turn !== asked) return;
  const shown = members.filter((_, n) => tellable[n]).sort((a, b) => isUnstable(b) - isUnstable(a));
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
        takeCause(id, text);
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

