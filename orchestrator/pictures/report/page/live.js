// --- news of a sweep that trains: the page asks its own address ------------------------------------

const NEWS_AFTER_MS = 1000;
let shownTag = null;

// The document as the server sends it now, in place of what is shown; what was chosen stays.
function take(text) {
  const news = new DOMParser().parseFromString(text, "text/html");
  const newData = news.getElementById("data");
  const hadData = document.getElementById("data") !== null;
  if ((newData !== null) !== hadData) {
    location.reload(); // there is a map now
    return;
  }
  for (const part of ["summary", "answers"]) {
    const [old, next] = [document.getElementById(part), news.getElementById(part)];
    if (old.innerHTML !== next.innerHTML) old.replaceChildren(...next.childNodes);
  }
  if (newData !== null && newData.textContent !== document.getElementById("data").textContent) {
    document.getElementById("data").textContent = newData.textContent;
    showData(newData.textContent);
  }
}

async function news() {
  try {
    const response = await fetch(location.pathname, { cache: "no-cache" });
    const tag = response.headers.get("ETag");
    if (response.ok && tag !== shownTag) {
      take(await response.text());
      shownTag = tag;
    }
    document.body.classList.remove("ended");
  } catch {
    document.body.classList.add("ended"); // the server has ended; the page keeps what it shows
  }
  setTimeout(news, NEWS_AFTER_MS);
}

setTimeout(news, NEWS_AFTER_MS);
