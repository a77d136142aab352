// A click on the box of a command, or a key on its button, copies the command.
document.addEventListener("click", async (event) => {
  const box = event.target.closest(".command");
  if (!box || (event.target.tagName !== "BUTTON" && String(getSelection()))) return;
  const code = box.querySelector("code"), said = document.getElementById("said");
  let done = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // Over plain HTTP to another machine a browser has no clipboard: keys copy what is marked.
    getSelection().selectAllChildren(code);
    done = document.execCommand("copy");
  }
  said.textContent = done ? "Copied" : "Marked: Ctrl+C copies it";
  setTimeout(() => { said.textContent = ""; }, 2000);
});
