// What a person pastes to sign in, and what the policies then let the page show. Nothing here decides: the node does.

const BEARER = /^tenure_[0-9a-f]{16}_[0-9a-f]{64}$/;
const TOKEN = /^[\w-]+\.[\w-]+\.[\w-]+$/;

/** What a pasted credential file presents, or a bare credential or JSON web token; null for anything else. */
export function bearerIn(text) {
  const trimmed = text.trim();
  if (BEARER.test(trimmed) || TOKEN.test(trimmed)) return trimmed;
  const lines = trimmed.split(/\r?\n/);
  if (!/^tenure-credential:\s*1$/.test(lines[0].trimEnd())) return null;
  const found = lines.map((line) => /^credential:\s*(\S+)\s*$/.exec(line)?.[1]).filter(Boolean);
  return found.length === 1 && BEARER.test(found[0]) ? found[0] : null;
}

/** Whether a prefix of a policy covers a name: `pay` covers `pay` and `pay/x`, not `payroll`. */
export function covers(prefix, name) {
  return prefix === "*" || name === prefix || name.startsWith(`${prefix}/`);
}

/** Whether whoever `who` is may do this, as far as its policies say; so that the page offers nothing in vain. */
export function may(who, verb, name) {
  if (!who) return true;
  if (!who.enforced || who.operator) return true;
  return who.policies.some((policy) => policy.may.includes(verb) && policy.on.some((prefix) => covers(prefix, name)));
}

/** Whether there is anything at all to be seen. */
export function seesNothing(who) {
  return Boolean(who && who.enforced && !who.operator && who.policies.length === 0);
}
