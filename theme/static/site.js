// What every page can do beyond reading: another colour scheme, copying code, leaving the contents with Escape.
"use strict";

const root = document.documentElement;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

const toggle = document.querySelector("button.theme");
toggle.setAttribute("aria-pressed", isDark());
toggle.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  toggle.setAttribute("aria-pressed", isDark());
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // Without storage the choice holds for this page.
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && location.hash === "#contents") {
    location.hash = "main";
    document.querySelector("a.menu").focus();
  }
});

for (const block of document.querySelectorAll("article .highlight")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.querySelector("pre").innerText);
      button.textContent = "Copied";
    } catch {
      // Not allowed here (an insecure address, say): select it, for the reader to copy.
      getSelection().selectAllChildren(block.querySelector("pre"));
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  block.append(button);
}

// A box that scrolls must be reachable by keyboard; one that doesn't need not be.
for (const box of document.querySelectorAll("article pre")) {
  if (box.scrollWidth > box.clientWidth) {
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "code that scrolls sideways");
  }
}
