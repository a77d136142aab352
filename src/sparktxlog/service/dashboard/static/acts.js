// Sends a confirmed act to the route that the command line uses, with the token that was typed.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches(".act")) return;
  event.preventDefault();
  const token = form.querySelector("[type=password]").value, said = form.querySelector("output");
  const { method, path, says } = form.dataset, body = JSON.parse(form.dataset.body);
  for (const field of form.querySelectorAll("[name]")) body[field.name] = field.value;
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  said.textContent = "…";
  try {
    const found = { findings: [] };
    do {
      // What a browser keeps for pages is no right to act.
      const how = { method, headers, credentials: "omit" };
      if (method !== "GET") how.body = JSON.stringify(body);
      const answer = await fetch(path, how);
      if (!answer.ok) {
        const problem = await answer.json();
        const what = problem.definite ? "Refused, and nothing was done" : "Look whether it was done";
        said.textContent = `${what}: ${problem.detail}. ${problem.hint || ""}`;
        return;
      }
      const part = await answer.json();
      const files = (found.files || 0) + (part.files || 0);
      Object.assign(found, part, { files, findings: [...found.findings, ...(part.findings || [])] });
      // A recount of a commit table comes in parts, and says how far it is.
      body.after = found.checked;
      said.textContent = `… ${found.checked ?? ""}`;
    } while (found.checked < found.placed);
    if (!says) return location.reload();
    found.found = found.findings.map((one) => one.text + (one.repaired ? " (mended)" : "")).join("; ");
    found.found ||= "each is as it was recorded";
    said.textContent = says.replace(/{(\w+)}/g, (_, name) => found[name]);
  } catch (error) {
    said.textContent = `No answer: ${error}. Look whether it was done.`;
  }
});
