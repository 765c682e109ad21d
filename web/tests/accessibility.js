// What a page owes to those who do not see it, or not well, or do not use a mouse. Gives back a list of what is missing.
(() => {
  const problems = [];
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tell = (element, what) => problems.push(`${what}: ${element.outerHTML.slice(0, 140)}`);
  const seen = (element) => element.checkVisibility?.({ visibilityProperty: true }) !== false && element.getClientRects().length > 0;

  // Language, title, landmarks, headings.
  if (!document.documentElement.lang) problems.push("the page has no language");
  if (!document.title) problems.push("the page has no title");
  for (const landmark of ["main", "nav", "header", "footer"]) if (all(landmark).length !== 1) problems.push(`there is not one ${landmark}`);
  const headings = all("h1, h2, h3, h4").filter(seen).map((heading) => Number(heading.tagName[1]));
  if (headings.filter((level) => level === 1).length !== 1) problems.push(`there are ${headings.filter((level) => level === 1).length} first headings`);
  headings.reduce((before, level) => {
    if (level > before + 1) problems.push(`a heading of level ${level} follows one of level ${before}`);
    return level;
  }, 0);

  // Names.
  const nameOf = (element) => {
    const by = element.getAttribute("aria-labelledby");
    if (by) return by.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
    const label = element.id && document.querySelector(`label[for="${CSS.escape(element.id)}"]`);
    return (element.getAttribute("aria-label") ?? label?.textContent ?? element.textContent ?? "").trim() || element.getAttribute("title") || "";
  };
  for (const element of all("a[href], button, input, select, textarea, [role=img], [role=region], [role=group], section, nav, dialog, table")) {
    if (!seen(element)) continue;
    const named = element.matches("input, select, textarea") ? element.id && document.querySelector(`label[for="${CSS.escape(element.id)}"]`) : nameOf(element);
    if (!named && !element.matches("nav")) tell(element, "no name");
    if (element.matches("nav") && !element.getAttribute("aria-label")) tell(element, "no name");
  }
  for (const image of all("img")) if (!image.hasAttribute("alt")) tell(image, "no alternative text");
  for (const picture of all("svg")) if (!picture.hasAttribute("aria-label") && picture.getAttribute("aria-hidden") !== "true") tell(picture, "a picture without words");
  for (const head of all("th")) if (!head.hasAttribute("scope")) tell(head, "a heading of a table without scope");
  for (const table of all("table")) if (!table.querySelector("caption")) tell(table, "a table without caption");

  // Identities and references.
  const ids = all("[id]").map((element) => element.id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) problems.push(`the id ${id} is there more than once`);
  for (const attribute of ["aria-labelledby", "aria-describedby", "aria-controls", "for"]) {
    for (const element of all(`[${attribute}]`)) {
      for (const id of element.getAttribute(attribute).split(/\s+/)) if (!document.getElementById(id)) tell(element, `${attribute} leads nowhere`);
    }
  }

  // Roles that need each other.
  for (const row of all("[role=row]")) if (!row.closest("[role=table]")) tell(row, "a row outside of a table");
  for (const cell of all("[role=cell], [role=columnheader]")) if (!cell.closest("[role=row]")) tell(cell, "a cell outside of a row");
  for (const item of all("[role=listitem]")) if (!item.closest("[role=list]")) tell(item, "an item outside of a list");
  for (const element of all("[tabindex]")) if (Number(element.getAttribute("tabindex")) > 0) tell(element, "a place of its own in the tab order");
  for (const hidden of all("[aria-hidden=true]")) if (hidden.querySelector("a, button, input, [tabindex='0']")) tell(hidden, "hidden, yet it can have the focus");
  // What scrolls must be reachable by keyboard, itself or by what is in it.
  for (const element of all("main *")) {
    const style = getComputedStyle(element);
    const scrolls = /auto|scroll/.test(style.overflowY) && element.scrollHeight > element.clientHeight + 1;
    if (scrolls && element.tabIndex < 0 && !element.querySelector("a[tabindex='0'], a:not([tabindex]), button, input")) tell(element, "it scrolls and no key reaches it");
  }

  // Contrast, computed: 4.5 to 1, or 3 to 1 for large text.
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const cache = new Map();
  const rgba = (text) => {
    if (!cache.has(text)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = text;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      cache.set(text, [r, g, b, a / 255]);
    }
    return cache.get(text);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const backgroundOf = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reduceRight((below, layer) => over(layer, below), rgba(getComputedStyle(document.documentElement).colorScheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#ffffff"));
  };
  const light = ([r, g, b]) => {
    const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  let checked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const done = new Set();
  for (let node; (node = walker.nextNode()); ) {
    const element = node.parentElement;
    if (!node.textContent.trim() || done.has(element) || !seen(element) || element.closest("svg, noscript, .unseen, .skip, script, option, [aria-hidden=true]")) continue;
    done.add(element);
    const style = getComputedStyle(element);
    const behind = backgroundOf(element);
    const [a, b] = [light(over(rgba(style.color), behind)), light(behind)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    checked += 1;
    if (ratio < needed) tell(element, `contrast ${ratio.toFixed(2)}, ${needed} is needed`);
  }
  if (checked < 5) problems.push(`only ${checked} pieces of text were looked at`);

  // Nothing is wider than the page, and what is tapped is large enough for a finger.
  if (document.documentElement.scrollWidth > innerWidth + 1) problems.push(`the page is ${document.documentElement.scrollWidth} wide, the screen ${innerWidth}`);
  if (matchMedia("(max-width: 720px)").matches) {
    for (const element of all("button, nav a, input, select").filter(seen)) {
      const box = element.getBoundingClientRect();
      if (box.height < 24 && element.type !== "checkbox") tell(element, `${Math.round(box.height)} pixels high`);
    }
  }
  return problems;
})()
