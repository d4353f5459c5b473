// The page of `sweep watch` asks for what is new while it is open.
setInterval(async () => {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("now");
    if (answer.ok) document.querySelector("main").innerHTML = await answer.text();
    state.textContent = answer.ok ? "" : "the page cannot be read";
  } catch {
    state.textContent = "the watch has ended";
  }
}, 2000);
