// Copy buttons of code blocks, and a search that finds a pasted error. All else works without a script.
"use strict";

const lines = (block) => {
  const text = block.querySelector("pre").innerText.replace(/\n$/, "");
  const commands = text.split("\n").filter((line) => line.startsWith("$ "));
  return commands.length ? commands.map((line) => line.slice(2)).join("\n") : text;
};

const copyButton = (block) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(lines(block));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
};

// A pasted error has values that no page has. So a long query finds the pages that have most of its words, and of
// equal ones the page of errors comes first; a short one finds pages that have all of them, if there are any.
const forgiving = (strict) => (terms, excluded) => {
  const found = strict(terms, excluded);
  if (terms.size < 2 || (found.length && terms.size < 4)) return found;
  const pages = new Map();
  for (const word of terms) {
    for (const result of strict(new Set([word]), excluded)) {
      const page = pages.get(result[0]) ?? { result, words: result[0].endsWith("/errors") ? 1.5 : 0 };
      page.words += 1;
      pages.set(result[0], page);
    }
  }
  const most = Math.max(0, ...[...pages.values()].map((page) => page.words));
  return [...pages.values()]
    .filter((page) => page.words >= Math.max(2, most - 2))
    .map(({ result, words }) => [...result.slice(0, 4), words, ...result.slice(5)]);
};

document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search !== "undefined") Search.performTermsSearch = forgiving(Search.performTermsSearch);
  for (const block of document.querySelectorAll("div.highlight")) block.append(copyButton(block));
});
