// Sends a confirmed act to the route that the command line uses, with the token that was typed.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches(".act")) return;
  event.preventDefault();
  const token = form.querySelector("[type=password]").value, said = form.querySelector("output");
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  said.textContent = "…";
  try {
    // What a browser keeps for pages is no right to act.
    const how = { method: "PATCH", headers, body: form.dataset.changes, credentials: "omit" };
    const answer = await fetch(form.dataset.path, how);
    if (answer.ok) return location.reload();
    const problem = await answer.json();
    const what = problem.definite ? "Refused, and nothing was done" : "Look whether it was done";
    said.textContent = `${what}: ${problem.detail}. ${problem.hint || ""}`;
  } catch (error) {
    said.textContent = `No answer: ${error}. Look whether it was done.`;
  }
});
