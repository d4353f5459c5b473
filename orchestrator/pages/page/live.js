// --- news of a sweep that trains: the page asks its server ------------------------------------------------

const [NEWS_AFTER_MS, ANSWERS_AFTER_MS] = [1000, 4000];
const main = document.querySelector("main");
const hasMap = document.getElementById("data") !== null;

// Puts a part of the page in its place that the server sends as HTML in which all text is escaped.
function takePart(id, text) {
  const [old, next] = [document.getElementById(id), new DOMParser().parseFromString(text, "text/html").body];
  if (old.innerHTML.trim() === next.innerHTML.trim()) return;
  const open = new Set([...old.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
  old.replaceChildren(...next.childNodes);
  for (const each of old.querySelectorAll("details > summary")) each.parentNode.open = open.has(each.textContent);
}

function takeNews({ version, summary, changes, data: found }) {
  takePart("summary", summary);
  if (version === main.dataset.version) return;
  main.dataset.version = version;
  if (found === null) return;
  if (!hasMap) location.reload(); // there is a map now
  else showData(found === undefined ? applyChanges(data, changes) : found);
}

async function fetched(what) {
  const response = await fetch(what, { cache: "no-cache" });
  document.body.classList.remove("ended");
  return response.ok ? response : null;
}

function repeat(action, after) {
  setTimeout(async () => {
    try {
      await action();
    } catch (error) {
      if (!(error instanceof TypeError)) console.error(error);
      document.body.classList.add("ended"); // the server has ended; the page keeps what it shows
    }
    repeat(action, after);
  }, after);
}

async function news() {
  const response = await fetched(`news?since=${encodeURIComponent(main.dataset.version)}`);
  if (response !== null) takeNews(await response.json());
}

let lastTag = null;

async function answers() {
  const response = await fetched("answers");
  if (response === null || response.headers.get("ETag") === lastTag) return;
  lastTag = response.headers.get("ETag");
  takePart("answers", await response.text());
  showPart(shownPart);
  if (!hasMap) return;
  drawEdge();
  drawViews();
  if (choice.view !== "map" && shownPart === "map") drawMap();
}

repeat(news, NEWS_AFTER_MS);
answers().catch(() => {}).finally(() => repeat(answers, ANSWERS_AFTER_MS));
