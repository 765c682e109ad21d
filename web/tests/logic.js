// The pure modules, tried where they run. Evaluated in a page of a node; gives back what failed.
(async () => {
  const words = await import("/web/logic/words.js");
  const metrics = await import("/web/logic/metrics.js");
  const leases = await import("/web/logic/leases.js");
  const time = await import("/web/logic/timeline.js");
  const incident = await import("/web/logic/incident.js");
  const timing = await import("/web/logic/timing.js");
  const credential = await import("/web/logic/credential.js");
  const { EventReader } = await import("/web/logic/stream.js");

  const failed = [];
  let passed = 0;
  function equal(found, wanted, what) {
    if (JSON.stringify(found) === JSON.stringify(wanted)) passed += 1;
    else failed.push(`${what}: ${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);
  }

  // Words.
  const spans = [[0, "0 s"], [0.25, "250 µs"], [4.25, "4.3 ms"], [42, "42 ms"], [999, "999 ms"], [1000, "1.0 s"], [59_940, "59.9 s"], [59_990, "1 min"], [61_000, "1 min 1 s"], [3_600_000, "1 h"], [5_400_000, "1 h 30 min"], [90_000_000, "1 d 1 h"], [null, "–"], [-5, "0 s"]];
  for (const [ms, text] of spans) equal(words.span(ms), text, `span ${ms}`);
  equal(words.count(1234567), "1 234 567", "count");
  equal([words.rate(0), words.rate(0.256), words.rate(12.34), words.rate(1234)], ["0", "0.26", "12.3", "1 234"], "rate");
  const noon = new Date(2026, 2, 4, 12).getTime();
  equal([words.when(noon, noon + 1000), words.when(noon, noon + 86_400_000)], ["12:00:00", "2026-03-04 12:00"], "today by its time, else with its day");
  equal(words.inPath("a/b c:d#é"), "a/b%20c%3Ad%23%C3%A9", "a name in a path");

  equal(words.cut({ leases: 1 }), "1 older lease was dropped.", "a cut of which only the number is known");
  equal(words.cut({ leases: 12, limit: "history_per_resource_max", max: 1000, token: 57 }), "12 older leases were dropped, limit history_per_resource_max = 1 000: every lease above token 57 is listed.", "a cut");

  // Signing in.
  const bearer = `tenure_00010203ffeeddcc_${"a5".repeat(32)}`;
  const file = `tenure-credential: 1\nname: pay\nendpoints: db-1:7400\ncredential: ${bearer}\n\n-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n`;
  const pasted = [file, file.replaceAll("\n", "\r\n"), `  ${bearer}\n`, "aa.b-b.c_c"];
  equal(pasted.map(credential.bearerIn), [bearer, bearer, bearer, "aa.b-b.c_c"], "what can be pasted");
  const unreadable = ["", "hunter2", bearer.slice(0, -1), file.slice(1), file.replace("a5a5", "A5A5"), `${file}credential: ${bearer}\n`, file.replace(": 1", ": 2"), "a.b", "a.b.c.d", "<b>.x.y"];
  equal(unreadable.map(credential.bearerIn), unreadable.map(() => null), "what cannot");
  equal([credential.covers("pay", "pay"), credential.covers("pay", "pay/x"), credential.covers("pay", "payroll"), credential.covers("*", "x")], [true, true, false, true], "prefixes end at segments");
  const who = { enforced: true, operator: false, policies: [{ on: ["pay"], may: ["read", "hold"] }] };
  equal([credential.may(who, "hold", "pay/x"), credential.may(who, "manage", "pay/x"), credential.may(who, "hold", "shop"), credential.may({ ...who, enforced: false }, "manage", "x"), credential.may({ ...who, operator: true }, "manage", "x"), credential.may(null, "manage", "x")], [true, false, false, true, true, true], "what is offered");
  equal([credential.seesNothing(who), credential.seesNothing({ ...who, policies: [] }), credential.seesNothing({ enforced: false, policies: [] }), credential.seesNothing(null)], [false, true, false, false], "who is asked to sign in");

  // Events out of text.
  const sent = ": hello\n\nid: 7\nevent: granted\ndata: {\"a\":\ndata: 1}\n\nevent: ended\r\ndata:x\r\n\r\ndata: tail";
  const whole = new EventReader();
  equal(whole.push(sent), [{ kind: "granted", data: '{"a":\n1}' }, { kind: "ended", data: "x" }], "events");
  const bit = new EventReader();
  equal([...sent].flatMap((letter) => bit.push(letter)), [{ kind: "granted", data: '{"a":\n1}' }, { kind: "ended", data: "x" }], "the same letter by letter");
  equal([whole.lastId, bit.lastId], ["7", "7"], "where to go on");

  // Metrics.
  const page = metrics.parse('# HELP x y\n# TYPE x counter\nx 3\ny{a="q\\"\\\\\\n",b="c"} 1.5\ny{b="d"} 2\nz_bucket{le="0.1"} 50\nz_bucket{le="1"} 100\nz_bucket{le="+Inf"} 100\n');
  equal([metrics.value(page, "x"), metrics.value(page, "y"), metrics.value(page, "y", { b: "d" }), metrics.value(page, "none")], [3, 3.5, 2, null], "values");
  equal(page.get("y")[0].labels.a, 'q"\\\n', "an escaped label");
  equal([metrics.quantile(page, "z", 0.5), metrics.quantile(page, "z", 0.75), metrics.quantile(page, "none", 0.5)], [0.1, 0.55, null], "quantiles");
  equal([metrics.perSecond(10, 30, 2), metrics.perSecond(30, 4, 2), metrics.perSecond(null, 4, 2)], [10, 2, null], "a counter that began anew");

  // Leases.
  const lease = (resource, holder, token, more = {}) => ({ resource, waiters: [], fences: [], holders: [{ holder, session_number: token, mode: "exclusive", slot: null, token, generation: 1, remaining_ms: 5000, ttl_ms: 10_000, held_ms: 1 }], ...more });
  const rows = [lease("b", "zoe", 3), lease("a", "yan", 2), lease("c", "yan", 1)].flatMap((one) => leases.rowsOf(one, 1000));
  equal(leases.sort(rows, "name", false, 1000).map((row) => row.name), ["a", "b", "c"], "by name");
  equal(leases.sort(rows, "token", true, 1000).map((row) => row.token), [3, 2, 1], "by token, falling");
  equal(leases.sort(rows, "holder", false, 1000).map((row) => row.name), ["a", "c", "b"], "equal ones by name");
  equal(leases.search(rows, "yan c").map((row) => row.name), ["c"], "every word");
  equal(leases.search(rows, " ").length, 3, "no words");
  equal([leases.leftOf(rows[0], 3000), leases.leftOf(rows[0], 99_000)], [3000, 0], "what is left counts down and stops");
  equal(leases.visible(5000, 40, 4000, 800, 5), { first: 95, end: 125 }, "in sight");
  equal(leases.visible(3, 40, 0, 800, 5), { first: 0, end: 3 }, "a short list");
  equal(leases.visible(0, 40, 0, 800), { first: 0, end: 0 }, "an empty list");
  equal([leases.reveal(0, 40, 100, 400), leases.reveal(20, 40, 100, 400), leases.reveal(5, 40, 100, 400)], [0, 440, 100], "reveal");
  const fenced = lease("f", "h", 7, { fences: [{ fence: "pg:x", armed: [{ token: 7 }] }, { fence: "s3:y", armed: [{ token: 6 }] }, { fence: "z", armed: [] }] });
  equal(leases.armedCount(fenced, fenced.holders[0]), 1, "armed with this token");
  const line = lease("w", "h", 7, { waiters: [{ holder: "a", mode: "exclusive", priority: 5, resources: ["w", "x"] }, { holder: "b", mode: "shared", priority: 0 }], delayed_ms: 3000 });
  equal(leases.whyWaits(line, 0).map((reason) => reason.kind), ["rest", "held", "others"], "why the first waits");
  equal(leases.whyWaits(line, 1).map((reason) => [reason.kind, reason.prior]), [["rest", undefined], ["held", undefined], ["line", 1]], "why the second waits");

  // Timeline.
  const at = (seconds) => new Date(seconds * 1000).toISOString();
  const past = (token, from, to, why = "released") => ({ token, generation: token, holder: `h${token}`, mode: "exclusive", from: at(from), to: at(to), held_ms: (to - from) * 1000, why });
  const history = { transitions: [past(3, 30, 40, "expired"), past(2, 10, 20), past(1, 0, 10)], holders: [{ token: 4, generation: 4, holder: "h4", mode: "exclusive", slot: null, held_ms: 50_000 }] };
  const dated = { transitions: [], holders: [{ ...history.holders[0], from: at(7) }] };
  equal(time.bars(dated, 100_000)[0].from, 7_000, "the calendar goes before what was counted");
  const bars = time.bars(history, 100_000);
  equal(bars.map((bar) => [bar.token, bar.from, bar.to]), [[1, 0, 10_000], [2, 10_000, 20_000], [3, 30_000, 40_000], [4, 50_000, null]], "bars, the oldest first");
  const gaps = time.gaps(bars, 0, 100_000);
  equal(gaps.map((gap) => [gap.from, gap.to, gap.after.why]), [[20_000, 30_000, "released"], [40_000, 50_000, "expired"]], "gaps");
  equal(time.summary(gaps), { count: 2, longest: 10_000, total: 20_000, unplanned: 1 }, "their sum");
  equal(time.gaps(bars, 25_000, 45_000).map((gap) => [gap.from, gap.to]), [[25_000, 30_000], [40_000, 45_000]], "cut to the window");
  equal(time.gaps(time.bars({ transitions: [past(1, 0, 10)], holders: [] }, 60_000), 0, 60_000).map((gap) => gap.open), [true], "a gap that is still open");
  equal(time.gaps([], 0, 1), [], "nothing known, no gap");
  const together = time.bars({ transitions: [past(1, 0, 50), past(2, 10, 20), past(3, 60, 70)], holders: [] }, 80_000);
  equal(time.lanes(together).map((bar) => bar.lane), [0, 1, 0], "lanes");
  equal(time.gaps(together, 0, 70_000).map((gap) => [gap.from, gap.to]), [[50_000, 60_000]], "a long lease covers a short one");
  const bounds = { from: 0, to: 1000 };
  const shown = new time.Window(0, 1000).zoom(0.5, 0.25, bounds);
  equal([shown.from, shown.to, shown.share(250)], [125, 625, 0.25], "zoom keeps what is under the pointer");
  const moved = shown.pan(2, bounds);
  equal([moved.from, moved.to], [500, 1000], "not beyond the bounds");
  equal([shown.zoom(99, 0.5, bounds).from, shown.zoom(99, 0.5, bounds).to], [0, 1000], "all of it");
  equal(time.ticks(new time.Window(0, 60_000), 6).at, [0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000].filter((tick) => tick % 10_000 === 0), "ticks");
  equal(time.colour("node-a", 8) === time.colour("node-a", 8) && time.colour("node-a", 8) < 8, true, "a colour for a holder");

  // Incident.
  const events = [
    { kind: "ended", at: at(10), revision: 5, resource: "a", holder: "x", slot: null, token: 1, why: "expired", held_ms: 9000, late_us: 2500, reason: null },
    { kind: "granted", at: at(10), revision: 5, resource: "a", holder: "y", slot: null, token: 2, generation: 2, waited_ms: 400 },
    { kind: "took_office", at: at(9), revision: 4, node: 2, term: 7 },
    { kind: "refused", at: at(11), revision: 6, scope: "a#1", fence: "pg:t", presented: 1, seen: 2, count: 14 },
    { kind: "granted", at: at(12), revision: 7, resource: "b", holder: "z", slot: null, token: 3, generation: 1, waited_ms: 0 },
  ];
  const lines = incident.inWindow(events, 0, 60_000);
  equal(lines.map((one) => one.event.kind), ["took_office", "ended", "granted", "refused", "granted"], "in the order of the log");
  equal(lines[1].text, "a ended for x, token 1: expired (no renewal came in time) after 9.0 s, 2.5 ms late", "an end in words");
  equal(lines[3].text, "pg:t refused 14 stale writes to a#1: token 1, 2 was seen", "a refusal in words");
  equal(incident.inWindow(events, 0, 60_000, "b").map((one) => one.event.kind), ["took_office", "granted"], "a prefix keeps leaders");
  equal(incident.inWindow(events, 11_000, 11_500).length, 1, "the window cuts");
  equal([incident.counts(lines).refused, incident.counts(lines).granted], [14, 2], "counts");
  const old = incident.fromHistories([{ resource: "r", transitions: [past(2, 10, 20), past(1, 0, 5)], holders: [] }], 15_000);
  equal(old.map((event) => [event.kind, event.token]).sort(), [["ended", 1], ["granted", 1], ["granted", 2]], "what histories remember");
  equal(incident.asText(lines, { from: 0, to: 60_000, cluster: "c" }).split("\n").length, 9, "as text");
  equal(JSON.parse(incident.asJson(lines, { from: 0, to: 60_000 })).events.length, 5, "as JSON");
  const times = [null, 100, 100, 200, 300, 400];
  const asked = (revision) => Promise.resolve(times[revision] ?? null);
  equal([await incident.firstRevision(1, 5, 150, asked), await incident.firstRevision(1, 5, 0, asked), await incident.firstRevision(1, 5, 999, asked)], [3, 1, 6], "where a window begins");

  // Timing: the numbers of crates/core/src/timing.rs.
  const usual = timing.forTtl(10_000);
  equal([timing.usable(usual), timing.drift(usual), timing.renewalsPerMinute(usual)], [9795, 5, 18], "the usual numbers");
  equal([timing.attemptsWithoutRetries(usual), timing.attemptsWithRetries(usual)], [2, 8], "attempts");
  for (const ttl of [500, 1000, 10_000, 30_000, 3_600_000]) equal(timing.inequalities(timing.forTtl(ttl)).filter((one) => !one.holds).map((one) => one.id), [], `the usual numbers fit at ${ttl}`);
  const broken = (numbers, bounds = {}) => timing.inequalities({ ...usual, ...numbers }, { ...timing.BOUNDS, ...bounds }).filter((one) => !one.holds).map((one) => one.id);
  equal(broken({ sigma: 0 }), ["safety"], "no slack");
  equal(broken({ renew: 9000 }), ["availability"], "one lost renewal would end it");
  equal(broken({}, { max_op: 8000 }), ["work"], "an operation that is too long");
  equal(broken({ ttl: 400, renew: 100 }), ["availability", "floor"], "below the limits");
  equal(timing.renewalsPerMinute({ renew: 1000 / 3 }), 180, "1 s at a third is 180 a minute");
  equal(timing.renewalsPerMinute({ renew: 10_000 }), 6, "30 s every 10 s is 6 a minute");
  const curve = timing.curve(usual);
  equal(curve[0].gap < curve.at(-1).gap && curve[0].load > curve.at(-1).load, true, "the trade-off");

  return { passed, failed };
})()
