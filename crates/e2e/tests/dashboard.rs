//! The dashboard as a user meets it: in a real browser, with real data from a running cluster.
//!
//! Pictures of every view are left in `target/dashboard` for eyes; what a program can judge is judged here: that every
//! view tells what happened, that nobody is shut out, that nothing is asked of anybody but the node, and that the page
//! survives its server.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{
    BROWSER, Browser, Cluster, Http, Node, Scratch, Screen, alone, alongside, run_tenure, scale,
    skipped_without, until, until_some,
};

const ACCESSIBILITY: &str = include_str!("../../../web/tests/accessibility.js");
const LOGIC: &str = include_str!("../../../web/tests/logic.js");
const VIEWS: [(&str, &str); 5] = [
    ("cluster", "document.querySelectorAll('main tbody tr').length === 3"),
    ("leases", "document.querySelector('main .found').textContent.includes('leases')"),
    ("resource/settlement%2Fcron", "document.querySelectorAll('main .hold').length >= 3"),
    ("incident", "document.querySelectorAll('main .events li').length > 5"),
    ("tuner", "document.querySelectorAll('main .sum').length === 4"),
];

/// Does it, as soon as there is a leader: a loaded machine may change it in between.
#[track_caller]
fn post(http: &mut Http, path: &str, body: &Value) -> Value {
    let done = until_some("the cluster has a leader that does it", Duration::from_secs(60), || {
        let reply = http.post(path, body);
        (reply.code() != "no_leader").then_some(reply)
    });
    done.expect(200)
}

#[track_caller]
fn acquire(http: &mut Http, resource: &str, body: Value) -> Value {
    post(http, &format!("/v1/leases/{resource}:acquire"), &body)
}

/// A resource with a past: a lease that was given back, one that expired, one that is held, fenced in one of two places, with
/// fourteen stale writes refused. Gives back the session that holds it.
fn history(http: &mut Http) -> String {
    let fences = json!(["pg:ledger", "s3:reports"]);
    let first =
        acquire(http, "settlement/cron", json!({"holder": "node-a", "ttl_ms": 60_000, "fences": fences}));
    post(http, "/v1/leases/settlement/cron:release", &json!({"session": first["session"]}));
    let second = acquire(http, "settlement/cron", json!({"holder": "node-b", "ttl_ms": 500}));
    until("the second lease has expired", Duration::from_secs(30), || {
        http.get("/v1/leases/settlement/cron").json()["state"] == "free"
    });
    let third = acquire(http, "settlement/cron", json!({"holder": "node-c", "ttl_ms": 3_600_000}));
    let armed = json!({"fence": "pg:ledger", "token": third["token"]});
    post(http, "/v1/fences/settlement/cron:arm", &armed);
    let refused =
        json!({"fence": "pg:ledger", "presented": second["token"], "seen": third["token"], "count": 14});
    post(http, "/v1/fences/settlement/cron:refused", &refused);
    let many: Vec<String> = (0..40).map(|shard| format!("ingest/shard-{shard:02}")).collect();
    let body = json!({"resources": many, "holder": "ingest-7", "ttl_ms": 3_600_000});
    post(http, "/v1/leases:acquire", &body);
    for trainer in ["gpu-a", "gpu-b"] {
        acquire(http, "gpu/pool", json!({"holder": trainer, "ttl_ms": 3_600_000, "mode": {"slots": 4}}));
    }
    third["session"].as_str().expect("a session has an id").to_owned()
}

/// Somebody in the queue, as long as the thread runs; the answer does not matter.
fn waits(node: &Node) -> std::thread::JoinHandle<()> {
    let mut http = node.http().with_limit(Duration::from_secs(120));
    std::thread::spawn(move || {
        let body = json!({"holder": "node-d", "ttl_ms": 60_000, "wait_ms": 60_000});
        let _ = http.call("POST", "/v1/leases/settlement/cron:acquire", Some(&body));
    })
}

/// Where pictures are left, for eyes.
fn pictures() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let target = program.ancestors().find(|path| path.ends_with("debug") || path.ends_with("release"));
    let folder = target.and_then(|path| path.parent()).expect("cargo's build output").join("dashboard");
    std::fs::create_dir_all(&folder).expect("a folder below the build output can be made");
    folder
}

/// What the page says.
fn text(browser: &Browser, selector: &str) -> String {
    let found = browser.evaluate(&format!("document.querySelector('{selector}')?.innerText ?? ''"));
    found.as_str().unwrap_or_default().to_owned()
}

fn go(browser: &Browser, view: &str) {
    browser.evaluate(&format!("location.hash = '#/{view}'"));
}

#[track_caller]
fn says(browser: &Browser, words: &[&str]) {
    let page = text(browser, "main");
    for word in words {
        assert!(page.contains(word), "{word:?} is not on the page:\n{page}");
    }
}

#[test]
fn every_view_shows_a_running_cluster_to_everybody() {
    if skipped_without(BROWSER, "every_view_shows_a_running_cluster_to_everybody") {
        return;
    }
    let _turn = alongside();
    let mut cluster = Cluster::start("dashboard", 3);
    let leader = cluster.leader();
    let mut http = cluster.node(leader).http();
    let holder = history(&mut http);
    let waiter = waits(cluster.node(leader));
    let browser = Browser::start();
    let address = format!("http://{}/", cluster.node(leader).address());
    browser.open(&address);

    // What each view tells.
    let folder = pictures();
    for (screen, name) in [(Screen::DESKTOP, "light"), (Screen::NIGHT, "dark"), (Screen::PHONE, "phone")] {
        browser.screen(screen);
        for (view, there) in VIEWS {
            go(&browser, view);
            browser.until(&format!("{view} is shown"), there);
            browser.drawn();
            let short = view.split('/').next().unwrap_or(view);
            std::fs::write(folder.join(format!("{short}-{name}.png")), browser.picture()).expect("a picture");
            let problems = browser.evaluate(ACCESSIBILITY);
            assert_eq!(problems, json!([]), "{view} on {name}: {problems:#}");
            match (short, name) {
                ("cluster", "light") => {
                    says(&browser, &["healthy", "3 of 3 nodes answer", "leads in term", "Behind", "answers"]);
                    let tiles = ["Leases", "Sessions", "Queued", "Grants per second", "Renewals per second"];
                    says(&browser, &tiles);
                    let tiles =
                        ["Expiries per second", "Refused stale writes", "Cluster time", "Dropped time"];
                    says(&browser, &tiles);
                    says(&browser, &["Expiry runs late by", "Near misses"]);
                    // The feed begins with what happened before the page was opened.
                    browser.until(
                        "what happened is told",
                        "document.querySelector('#events').innerText.includes('granted to gpu-b')",
                    );
                    browser.until(
                        "the leases are counted",
                        "document.querySelector('#tile-leases .figure').textContent === '43'",
                    );
                    browser.until(
                        "what was prevented is counted",
                        "document.querySelector('#tile-refused .figure').textContent === '14'",
                    );
                }
                ("leases", "light") => {
                    says(&browser, &["gpu/pool#0", "gpu-a", "ingest/shard-00", "Fences armed", "none"]);
                }
                ("resource", "light") => says(
                    &browser,
                    &[
                        "node-c",
                        "node-d",
                        "held by node-c",
                        "1 of 2 armed",
                        "never armed",
                        "expired",
                        "14",
                        "Leader gap, last 24 hours",
                        "Gaps",
                        "Longest",
                        "Total",
                        "with token",
                    ],
                ),
                ("incident", "light") => {
                    says(&browser, &["granted to node-c", "expired", "took office", "refused 14"])
                }
                ("tuner", "light") => {
                    says(
                        &browser,
                        &["Safety", "Availability", "They fit", "The five numbers", "The trade-off"],
                    );
                    assert_eq!(browser.evaluate("document.querySelectorAll('svg.curve').length"), json!(1));
                }
                _ => {}
            }
        }
    }
    browser.screen(Screen::DESKTOP);

    by_keyboard(&browser);
    an_incident_is_saved(&browser);
    the_tuner_judges_what_is_typed(&browser);
    a_grant_is_shown_as_it_happens(&browser, &mut http);
    a_lease_is_revoked_when_confirmed(&browser, &mut http);
    a_lease_is_handed_over_when_confirmed(&browser, &mut http, &holder);

    // Nothing was thrown, nothing was against the policy, nobody else was asked.
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let foreign: Vec<String> = browser
        .requests()
        .into_iter()
        // What the browser brings itself (the icon of a date field) is asked of nobody.
        .filter(|url| !["about:blank", "blob:", "data:"].iter().any(|own| url.starts_with(own)))
        .filter(|url| !url.starts_with(&address))
        .collect();
    assert_eq!(foreign, Vec::<String>::new());

    a_server_that_goes_away_and_comes_back(&browser, cluster.node_mut(leader));
    waiter.join().expect("the waiter ends");
}

/// From the top of the page to a lease and into it, without a mouse.
fn by_keyboard(browser: &Browser) {
    go(browser, "cluster");
    browser.until("the cluster is shown", "document.querySelector('h1').textContent === 'Cluster'");
    browser.evaluate("document.activeElement.blur()");
    let mut visited = Vec::new();
    for _ in 0..4 {
        browser.press("Tab");
        visited.push(text(browser, ":focus"));
        let outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle");
        assert_ne!(outline, json!("none"), "what has the focus is not shown: {visited:?}");
    }
    assert_eq!(visited, ["Skip to the content", "Tenure", "Cluster", "Leases"].map(String::from));
    browser.press("Enter");
    browser.until("the leases are shown", "document.querySelectorAll('main .rows .row').length > 5");
    browser.press("/");
    browser.until("the search has the focus", "document.activeElement.id === 'search'");
    browser.type_text("settlement");
    browser.until("one lease is left", "document.querySelectorAll('main .rows .row').length === 1");
    browser.press("ArrowDown");
    browser.press("Enter");
    browser.until("the resource is shown", "document.querySelector('h1')?.textContent === 'settlement/cron'");
    browser.until("its timeline is drawn", "document.querySelector('.timeline') !== null");
    let range = "document.querySelector('.timeline').getAttribute('aria-label')";
    let before = browser.evaluate(range);
    browser.evaluate("document.querySelector('.picture').focus()");
    browser.press("+");
    assert_ne!(browser.evaluate(range), before, "it is zoomed by a key");
}

fn a_grant_is_shown_as_it_happens(browser: &Browser, http: &mut Http) {
    go(browser, "leases");
    browser.until("the leases are shown", "document.querySelectorAll('main .rows .row').length > 5");
    let before = text(browser, "main .found");
    acquire(http, "aaa/newcomer", json!({"holder": "late", "ttl_ms": 3_600_000}));
    let granted = Instant::now();
    browser.until(
        "the new lease is shown",
        "document.querySelector('main .rows').innerText.includes('aaa/newcomer')",
    );
    eprintln!("a grant was on the page after {:?} ({before} before)", granted.elapsed());
}

/// The story of an incident, as it would be put into a ticket.
fn an_incident_is_saved(browser: &Browser) {
    let folder = Scratch::new("saved");
    browser.save_into(folder.path());
    go(browser, "incident");
    browser.until("the story is told", "document.querySelectorAll('main .events li').length > 5");
    let saved = |button: &str, ending: &str| {
        press(browser, button);
        until_some("the file is saved", Duration::from_secs(30), || {
            let files = folder.listing();
            let (path, ..) = files.iter().find(|(path, ..)| path.to_string_lossy().ends_with(ending))?;
            Some(std::fs::read_to_string(path).expect("a saved file can be read"))
        })
    };
    let text = saved("Save as text", ".txt");
    for word in ["settlement/cron granted to node-c", "expired", "pg:ledger refused 14 stale writes"] {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
    let json: Value = serde_json::from_str(&saved("Save as JSON", ".json")).expect("one object");
    let kinds: Vec<&str> = json["events"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|event| event["kind"].as_str())
        .collect();
    for kind in ["took_office", "granted", "ended", "refused"] {
        assert!(kinds.contains(&kind), "{kind} is not among {kinds:?}");
    }
}

#[track_caller]
fn press(browser: &Browser, word: &str) {
    let find = format!(
        "[...document.querySelectorAll('button')].reduce((done, b) => b.textContent === '{word}' ? (b.click(), 'pressed') : done, null)"
    );
    assert_eq!(browser.evaluate(&find), json!("pressed"), "{word}");
}

/// Asked, left alone; asked again, confirmed.
fn a_lease_is_revoked_when_confirmed(browser: &Browser, http: &mut Http) {
    go(browser, "resource/aaa%2Fnewcomer");
    browser.until("the holder is shown", "document.querySelector('main').innerText.includes('late')");
    press(browser, "Revoke…");
    browser.until("it is asked", "document.querySelector('dialog[open]') !== null");
    assert_eq!(browser.evaluate(ACCESSIBILITY), json!([]), "the dialog");
    press(browser, "Leave it");
    browser.until("the question is gone", "document.querySelector('dialog') === null");
    assert_eq!(http.get("/v1/leases/aaa/newcomer").json()["holders"][0]["notice"], Value::Null);
    press(browser, "Revoke…");
    browser.until("it is asked", "document.querySelector('dialog[open]') !== null");
    browser.evaluate("document.querySelector('dialog [name=reason]').value = 'tried by a test'");
    browser.evaluate("document.querySelector('dialog [name=now]').click()");
    press(browser, "Revoke");
    browser.until("it has ended", "document.querySelector('main').innerText.includes('tried by a test')");
    assert_eq!(http.get("/v1/leases/aaa/newcomer").json()["state"], "free");
}

/// Nobody but the holder may hand a lease over, so its session is asked for; a wrong one changes nothing.
fn a_lease_is_handed_over_when_confirmed(browser: &Browser, http: &mut Http, session: &str) {
    let asked = |session: &str| {
        press(browser, "Transfer…");
        browser.until("it is asked", "document.querySelector('dialog[open] [name=to]') !== null");
        assert_eq!(browser.evaluate(ACCESSIBILITY), json!([]), "the dialog");
        says_in(browser, "dialog", &["Hand settlement/cron over?", "node-d", "with a new token"]);
        browser.evaluate(&format!("document.querySelector('dialog [name=session]').value = '{session}'"));
        press(browser, "Hand over");
    };
    go(browser, "resource/settlement%2Fcron");
    browser.until("both are shown", "document.querySelector('main').innerText.includes('held by node-c')");
    let number = session.split('-').next().expect("a session has a number");
    asked(&format!("{number}-00000000000000000000000000000000"));
    browser.until(
        "it is refused",
        "document.querySelector('dialog[open]')?.innerText.includes('It was not done')",
    );
    press(browser, "I see");
    browser.until("the answer is gone", "document.querySelector('dialog') === null");
    assert_eq!(http.get("/v1/leases/settlement/cron").json()["holder"], "node-c");
    // The browser notes every refusal; this one was asked for.
    let noted = browser.complaints();
    assert!(noted.iter().all(|note| note.contains("settlement/cron:transfer")), "{noted:?}");
    asked(session);
    browser
        .until("it has been handed over", "document.querySelector('main').innerText.includes('transferred')");
    assert_eq!(http.get("/v1/leases/settlement/cron").json()["holder"], "node-d");
}

#[track_caller]
fn says_in(browser: &Browser, selector: &str, words: &[&str]) {
    let page = text(browser, selector);
    for word in words {
        assert!(page.contains(word), "{word:?} is not in {selector}:\n{page}");
    }
}

/// Numbers that do not fit are refused by the name of the inequality, and the usual ones are a button away.
fn the_tuner_judges_what_is_typed(browser: &Browser) {
    go(browser, "tuner");
    browser.until("the numbers fit", "document.querySelector('main .health').innerText.includes('They fit')");
    let type_in = |id: &str, value: &str| {
        browser.evaluate(&format!(
            "(() => {{ const input = document.getElementById('n-{id}'); input.value = '{value}'; \
             input.dispatchEvent(new Event('input')); }})()"
        ));
    };
    let verdict = || text(browser, "main .health");
    type_in("sigma", "20");
    assert!(verdict().contains("Refused"), "sigma below the pause: {}", verdict());
    assert_eq!(browser.evaluate("document.querySelectorAll('.sum.broken').length"), json!(1));
    press(browser, "The usual ones for this TTL");
    assert!(verdict().contains("They fit"), "{}", verdict());
    type_in("renew", "9000");
    assert!(verdict().contains("Refused: availability"), "R of 9 s in a TTL of 10 s: {}", verdict());
    press(browser, "The usual ones for this TTL");
    let gap = |browser: &Browser| text(browser, "main .figures");
    let before = gap(browser);
    type_in("ttl", "30000");
    press(browser, "The usual ones for this TTL");
    assert_ne!(gap(browser), before, "a longer TTL costs a longer gap");
    assert!(
        browser.evaluate("location.hash").as_str().unwrap_or_default().contains("ttl=30000"),
        "it can be sent on"
    );
}

fn a_server_that_goes_away_and_comes_back(browser: &Browser, node: &mut Node) {
    go(browser, "leases");
    browser.until("the leases are shown", "document.querySelectorAll('main .rows .row').length > 5");
    node.kill();
    browser.until("the page says so", "!document.getElementById('trouble').hidden");
    let printed = text(browser, "#trouble");
    assert!(printed.contains("has not answered since"), "{printed}");
    let rows = browser.evaluate("document.querySelectorAll('main .rows .row').length");
    assert!(rows.as_u64() > Some(5), "what was known is still shown: {rows}");
    node.restart();
    browser.until("the page is live again", "document.getElementById('trouble').hidden");
    let mut http = node.http();
    acquire(&mut http, "aaa/afterwards", json!({"holder": "later", "ttl_ms": 3_600_000}));
    browser.until(
        "what happens is shown again",
        "document.querySelector('main .rows').innerText.includes('aaa/afterwards')",
    );
}

/// The arithmetic and the layout behind the views, in the browser that runs them.
#[test]
fn the_logic_of_the_views_holds() {
    if skipped_without(BROWSER, "the_logic_of_the_views_holds") {
        return;
    }
    let _turn = alongside();
    let node = Node::start("dashboard-logic");
    let browser = Browser::start();
    browser.open(&format!("http://{}/", node.address()));
    let judged = browser.evaluate(LOGIC);
    assert_eq!(judged["failed"], json!([]), "{:#}", judged["failed"]);
    assert!(judged["passed"].as_u64() > Some(50), "{judged}");
}

/// Thousands of rows, and only those in sight exist.
#[test]
fn five_thousand_leases_are_filtered_at_once() {
    const LEASES: usize = 5_000;
    if skipped_without(BROWSER, "five_thousand_leases_are_filtered_at_once") {
        return;
    }
    let _turn = alone();
    let node = Node::start("dashboard-thousands");
    let mut http = node.http().with_limit(Duration::from_secs(60));
    // A session may have so many leases, an acquire so many resources.
    for session in 0..LEASES / 1_000 {
        let body = json!({"holder": format!("ingest-{session}"), "ttl_ms": 3_600_000});
        let id = post(&mut http, "/v1/sessions", &body)["session"].clone();
        for part in 0..1_000 / 50 {
            let names: Vec<String> =
                (0..50).map(|at| format!("ingest/shard-{session}-{:04}", part * 50 + at)).collect();
            post(&mut http, "/v1/leases:acquire", &json!({"resources": names, "session": id}));
        }
    }
    let browser = Browser::start();
    browser.open(&format!("http://{}/#/leases", node.address()));
    browser.until("all leases are read", "document.querySelector('.found')?.textContent === '5 000 leases'");
    let rows = browser.evaluate("document.querySelectorAll('.rows .row').length");
    assert!((1..100).contains(&rows.as_u64().expect("a count")), "{rows} rows exist");

    // From the key to the frame in which the rows are drawn, as a user would time it.
    let typed = |query: &str| {
        let script = format!(
            "new Promise((done) => {{
                const input = document.getElementById('search');
                const began = performance.now();
                input.value = {query:?};
                input.dispatchEvent(new Event('input'));
                requestAnimationFrame(() => setTimeout(() => done([performance.now() - began, document.querySelector('.found').textContent])));
            }})"
        );
        let printed = browser.evaluate(&script);
        (printed[0].as_f64().expect("milliseconds"), printed[1].as_str().unwrap_or_default().to_owned())
    };
    let mut took: Vec<f64> = Vec::new();
    for (query, left) in [
        ("shard-3", "1 000 of 5 000 leases"),
        ("shard-3-01", "100 of 5 000 leases"),
        ("ingest-4 0007", "1 of 5 000 leases"),
        ("nobody", "0 of 5 000 leases"),
        ("", "5 000 leases"),
    ] {
        let (ms, found) = typed(query);
        assert_eq!(found, left, "{query}");
        took.push(ms);
    }
    let slowest = took.iter().copied().fold(0.0, f64::max);
    eprintln!("filtering 5,000 leases took {took:.1?} ms, drawn");
    if scale().full {
        assert!(slowest < 200.0, "filtering took {slowest} ms");
    }

    browser.evaluate("document.querySelector('.viewport').scrollTop = 1e9");
    browser.until(
        "the last row is in sight",
        "document.querySelector('.rows').innerText.includes('shard-4-0999')",
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Names are anybody's choice. In no view may one become anything but text.
#[test]
fn attack_web_hostile_names() {
    if skipped_without(BROWSER, "attack_web_hostile_names") {
        return;
    }
    let _turn = alongside();
    let node = Node::start("dashboard-hostile");
    let mut http = node.http();
    let hostile = [
        "<img src=x onerror=window.pwned=1>",
        "\"><script>window.pwned=1</script>",
        "' onmouseover='window.pwned=1",
        "javascript:window.pwned=1",
        "{{window.pwned=1}}${window.pwned=1}",
        "</td></tr></table><svg onload=window.pwned=1>",
    ];
    for name in hostile {
        let body = json!({
            "resources": [name], "holder": name, "ttl_ms": 3_600_000, "fences": [name],
        });
        let lease = post(&mut http, "/v1/leases:acquire", &body);
        let token = lease["grants"][0]["token"].clone();
        let place = tenure_e2e::path_segment(name);
        http.post(&format!("/v1/fences/{place}:arm"), &json!({"fence": name, "token": token}));
        let refused = json!({"fence": name, "presented": 1, "seen": token, "count": 3});
        http.post(&format!("/v1/fences/{place}:refused"), &refused);
        http.post(&format!("/v1/leases/{place}:revoke"), &json!({"reason": name}));
        http.put(&format!("/v1/registers/{place}"), &json!({"value": name}));
    }
    let browser = Browser::start();
    browser.open(&format!("http://{}/", node.address()));
    let shown = "document.querySelector('main h1') !== null";
    let mut views: Vec<String> =
        ["cluster", "leases", "incident", "tuner", "signin"].map(String::from).to_vec();
    views.extend(hostile.map(|name| format!("resource/{}", tenure_e2e::path_segment(name))));
    for view in views {
        browser.evaluate(&format!("location.hash = {}", json!(format!("#/{view}"))));
        browser.until("the view is shown", shown);
        browser.drawn();
        // What a name could have become, and what would have run.
        let found = browser.evaluate(
            "[window.pwned ?? null, document.querySelectorAll('main img, main script, main svg[onload], main iframe').length,
              [...document.querySelectorAll('main *')].filter((one) => [...one.attributes].some((attribute) => attribute.name.startsWith('on'))).length,
              [...document.querySelectorAll('main a')].filter((link) => link.protocol === 'javascript:').length]",
        );
        assert_eq!(found, json!([null, 0, 0, 0]), "{view}");
    }
    go(&browser, "leases");
    browser.until(
        "the names are there as text",
        "document.querySelector('main').innerText.includes('<img src=x')",
    );
    // Nor did the browser have to stop anything.
    let complaints = browser.complaints();
    assert!(!complaints.iter().any(|one| one.contains("Content Security Policy")), "{complaints:?}");
}

/// Everything `tenure` is asked here must work.
#[track_caller]
fn tenure(node: &Node, credential: Option<&std::path::Path>, arguments: &[&str]) -> String {
    let mut all = Vec::new();
    let shown = credential.map(|path| path.display().to_string());
    if let Some(path) = &shown {
        all.extend(["--credential", path]);
    }
    all.extend(arguments);
    let output = run_tenure(&node.endpoint(), &all);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "tenure {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// A credential file as `tenure auth new > FILE` leaves it.
#[track_caller]
fn credential(node: &Node, own: Option<&std::path::Path>, name: &str, may: &str) -> PathBuf {
    let text = tenure(node, own, &["auth", "new", name, "--on", "*", "--may", may]);
    let path = node.scratch().path().join(format!("{name}.cred"));
    std::fs::write(&path, text).expect("a file");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    path
}

/// Pastes a credential file into the page.
fn sign_in(browser: &Browser, text: &str) {
    go(browser, "signin");
    browser.until("it can be pasted", "document.getElementById('file') !== null");
    browser.evaluate(&format!("document.getElementById('file').value = {}", json!(text)));
    browser.evaluate("document.querySelector('main form').requestSubmit()");
}

/// Who pastes a credential sees what its policies allow; and the secret is nowhere but in the page's memory.
#[test]
fn attack_web_credential_in_storage_or_url() {
    if skipped_without(BROWSER, "attack_web_credential_in_storage_or_url") {
        return;
    }
    let _turn = alongside();
    let node = Node::start("dashboard-sign-in");
    let every = "read,hold,write,manage,observe,operate,grant";
    let admin = credential(&node, None, "admin", every);
    let reader = credential(&node, Some(&admin), "reader", "read,observe");
    tenure(&node, Some(&admin), &["auth", "enforce"]);
    tenure(&node, Some(&admin), &["acquire", "settlement/cron", "--ttl", "1h", "--holder", "node-a"]);

    let browser = Browser::start();
    browser.open(&format!("http://{}/", node.address()));
    browser.until("one is asked who one is", "document.querySelector('main h1')?.textContent === 'Sign in'");
    std::fs::write(pictures().join("sign-in.png"), browser.picture()).expect("a picture");
    sign_in(&browser, "not a credential");
    browser.until(
        "it is refused",
        "document.querySelector('main [role=alert]').textContent.includes('no credential file')",
    );

    let text = std::fs::read_to_string(&reader).expect("the file");
    let line = text.lines().find_map(|line| line.strip_prefix("credential: ")).expect("a credential");
    let secret = line.rsplit('_').next().expect("a secret").to_owned();
    sign_in(&browser, &text);
    browser.until("it is known", "document.getElementById('who').textContent === 'cred/reader'");
    browser
        .until("the cluster is shown", "document.getElementById('link').textContent.startsWith('live from')");
    go(&browser, "resource/settlement%2Fcron");
    browser.until("the holder is shown", "document.querySelector('main').innerText.includes('node-a')");
    let buttons = "[...document.querySelectorAll('main .holder button')].map((button) => button.textContent)";
    assert_eq!(browser.evaluate(buttons), json!([]), "a reader is offered nothing that it may not do");
    tenure(&node, Some(&admin), &["acquire", "settlement/later", "--ttl", "1h", "--holder", "node-b"]);
    go(&browser, "leases");
    browser.until(
        "events arrive with the header",
        "document.querySelector('main').innerText.includes('settlement/later')",
    );
    std::fs::write(pictures().join("signed-in.png"), browser.picture()).expect("a picture");

    // Everywhere that outlives the page, or that others see.
    let places = browser.evaluate(
        "(async () => JSON.stringify([
            location.href, document.cookie, {...localStorage}, {...sessionStorage}, history.state, window.name,
            (await indexedDB.databases()).map((one) => one.name), 'caches' in window ? await caches.keys() : [],
            performance.getEntries().map((entry) => entry.name), document.documentElement.outerHTML,
            [...document.querySelectorAll('input, textarea')].map((one) => one.value),
        ]))()",
    );
    let places = places.as_str().expect("text");
    assert!(places.contains("/v1/leases"), "the requests are listed: {places}");
    assert!(!places.contains(&secret) && !places.contains("tenure_"), "{places}");
    for request in browser.requests() {
        assert!(!request.contains(&secret), "{request}");
    }
    assert!(!node.log().contains(&secret), "the node's log has the secret");
    let audit =
        std::fs::read_to_string(node.data_path().join("audit/audit-000001.jsonl")).expect("an audit log");
    assert!(audit.contains("\"call\":\"auth.put_credential\"") && !audit.contains(&secret), "{audit}");

    // Who may revoke is offered it; and a reloaded page has forgotten everything.
    sign_in(&browser, &std::fs::read_to_string(&admin).expect("the file"));
    browser.until("it is another now", "document.getElementById('who').textContent === 'cred/admin'");
    go(&browser, "resource/settlement%2Fcron");
    browser.until("it may revoke", "[...document.querySelectorAll('main .holder button')].some((button) => button.textContent === 'Revoke…')");
    browser.open(&format!("http://{}/?again", node.address()));
    browser.until("one is asked again", "document.querySelector('main h1')?.textContent === 'Sign in'");
}
