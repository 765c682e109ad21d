// Making elements without inline anything: text stays text, styles are classes.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("a.quiet", { href: "#/" }, "text", other)`. Handlers are `onclick: f`, absent values are left out. */
export function h(name, attributes = {}, ...children) {
  return build((tag) => document.createElement(tag), name, attributes, children);
}

/** The same for pictures. */
export function s(name, attributes = {}, ...children) {
  return build((tag) => document.createElementNS(SVG, tag), name, attributes, children);
}

function build(create, name, attributes, children) {
  const [tag, ...classes] = name.split(".");
  const element = create(tag || "div");
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Sets text only where it differs: what has not changed is not laid out again. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** A heading with something beside it. */
export function section(title, ...children) {
  const id = `s-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h("section.card", { "aria-labelledby": id }, h("h2", { id }, title), ...children);
}

/** A table with a caption for those who do not see where it stands. */
export function table(caption, columns, rows) {
  return h(
    "div.scroll", { tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption.unseen", {}, caption),
      h("thead", {}, h("tr", {}, ...columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.title ?? column)))),
      h("tbody", {}, ...rows)),
  );
}

export function cell(content, kind = null, header = false) {
  return h(header ? "th" : "td", { class: kind, scope: header ? "row" : null }, content);
}

/** A small word with a colour and a sign, so that colour is not all there is. */
export function badge(text, kind) {
  const sign = { good: "●", warn: "▲", bad: "■", quiet: "○" }[kind] ?? "";
  return h("span.badge", { class: kind }, h("span", { "aria-hidden": "true" }, sign), ` ${text}`);
}

/** Says something to those who listen instead of look. */
export function announce(text) {
  const region = document.getElementById("said");
  if (region && region.textContent !== text) region.textContent = text;
}

/** Asks before doing. Resolves with the form's values, or null. */
export function confirm({ title, explain, fields = [], action, grave = false }) {
  return new Promise((resolve) => {
    const inputs = fields.map((field) => {
      const id = `ask-${field.name}`;
      const input = field.options
        ? h("select", { id, name: field.name }, ...field.options.map((option) => h("option", { value: option.value }, option.text)))
        : h("input", { id, name: field.name, type: field.type ?? "text", maxlength: field.max, required: field.required, autocomplete: "off", pattern: field.pattern });
      if (field.type === "checkbox") return h("p.check", {}, input, h("label", { for: id }, field.label));
      return h("p", {}, h("label", { for: id }, field.label), input, field.hint ? h("span.hint", {}, field.hint) : null);
    });
    const form = h("form", { method: "dialog" },
      h("h2", { id: "ask-title" }, title),
      ...[explain].flat().map((text) => h("p", {}, text)),
      ...inputs,
      h("div.actions", {},
        h("button", { type: "button", value: "no", onclick: () => dialog.close("no") }, "Leave it"),
        h("button.primary", { type: "submit", value: "yes", class: grave ? "grave" : null }, action)));
    const dialog = h("dialog", { "aria-labelledby": "ask-title" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      const values = Object.fromEntries([...form.elements].filter((input) => input.name).map((input) => [input.name, input.type === "checkbox" ? input.checked : input.value]));
      resolve(dialog.returnValue === "yes" ? values : null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Offers a file for saving. */
export function save(name, kind, content) {
  const address = URL.createObjectURL(new Blob([content], { type: kind }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
