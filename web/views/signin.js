// Signing in: a credential file is pasted, and presented from then on. It is kept in the page's memory alone.

import { isSignedIn } from "../api.js";
import { h, setText, table, cell } from "../dom.js";

export function mount(main, context) {
  const file = h("textarea", { id: "file", rows: "9", spellcheck: "false", autocomplete: "off", autocapitalize: "off", required: true, "aria-describedby": "kept" });
  const wrong = h("p.bad-text", { role: "alert" });
  const enter = h("button.primary", { type: "submit" }, "Sign in");
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      enter.disabled = true;
      const text = file.value;
      // It does not stay on the screen, whatever comes of it.
      file.value = "";
      setText(wrong, "");
      const refused = await context.signIn(text);
      enter.disabled = false;
      if (refused) {
        setText(wrong, refused);
        file.focus();
      }
    },
  },
  h("label", { for: "file" }, "Paste your credential file, as “tenure auth new” wrote it"),
  file,
  h("p.hint", { id: "kept" }, "It is kept in this page's memory alone, and sent to this node as a header. It is gone when the page is closed or reloaded."),
  wrong,
  h("p.actions", {}, enter));

  const { who } = context;
  const known = isSignedIn() && who
    ? h("section.card", { "aria-label": "Who you are" },
      h("p", {}, "You are ", h("strong", {}, who.identity), who.credential ? `, by credential ${who.credential}, which is ${who.standing}.` : "."),
      who.policies.length
        ? table("What you may do", ["Policy", "On", "May"], who.policies.map((policy) => h("tr", {}, cell(policy.name, null, true), cell(policy.on.join(", ")), cell(policy.may.join(", ")))))
        : h("p.quiet", {}, who.operator ? "You may do everything." : "No policy is for you."),
      h("p.actions", {}, h("button", { type: "button", onclick: () => context.signOut() }, "Sign out")))
    : null;
  main.append(...[
    h("h1", {}, isSignedIn() ? "You" : "Sign in"),
    h("p.quiet", {}, "On this cluster policies say who may see and do what."),
    known,
    h("section.card", { "aria-label": isSignedIn() ? "Sign in as somebody else" : "Sign in" }, form),
  ].filter(Boolean));
  if (!isSignedIn()) file.focus();
  return {};
}
